use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::{StoreError, StoreErrorKind};
use serde::{Deserialize, Serialize};

use super::watch::Watch;
use crate::client::streams::{AdvisoryStream, DlqStream, RetryStream};

const CONFIGURING: &str = "configure an event router";
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Everything that an [`EventRouter`](crate::EventRouter) can be told, for files and the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RouterConfig {
    /// The stream that the letters are written to.
    pub letters: DlqStream,
    /// The stream that keeps advisories for a router that does not run.
    pub advisories: AdvisoryStream,
    /// The name of the stream of retries, of which nothing is routed. Defaults to `DLQ_RETRY`.
    pub retries: String,
    /// Streams of which all consumers are watched. Defaults to all streams, unless there are `consumers`.
    pub streams: Vec<String>,
    /// Single consumers to watch. Defaults to all, unless there are `streams`.
    pub consumers: Vec<Watched>,
    /// The `max_deliver` that watched consumers are expected to have; a durable one with another value is reported, and
    /// one without a limit when it is among `consumers`. Defaults to none: every value will do.
    pub max_retries: Option<u32>,
    /// Interval of checks of consumers, in which those without workers are made to report what they gave up. Defaults
    /// to 5 s.
    #[serde(with = "duration")]
    pub sweep_every: Duration,
    /// For how long an advisory stays with a router without a word. Defaults to 30 s; counts only when the durable
    /// consumer is created: a router that finds one takes its lease.
    #[serde(with = "duration")]
    pub lease: Duration,
    /// The alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub cluster: String,
    /// The header that has the type of the event, e.g. `ce-type`. Defaults to none.
    pub event_header: Option<String>,
}

/// A consumer of a stream, written `STREAM/CONSUMER`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Watched {
    /// The stream.
    pub stream: String,
    /// The consumer's name at the server.
    pub consumer: String,
}

impl FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((stream, consumer)) if !stream.is_empty() && !consumer.is_empty() => {
                Ok(Self { stream: stream.to_owned(), consumer: consumer.to_owned() })
            }
            _ => Err(format!("`{text}` is not a consumer; write STREAM/CONSUMER")),
        }
    }
}

impl TryFrom<String> for Watched {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Watched> for String {
    fn from(Watched { stream, consumer }: Watched) -> Self {
        format!("{stream}/{consumer}")
    }
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            letters: DlqStream::new(),
            advisories: AdvisoryStream::new(),
            retries: RetryStream::new().name,
            streams: Vec::new(),
            consumers: Vec::new(),
            max_retries: None,
            sweep_every: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            cluster: "default".to_owned(),
            event_header: None,
        }
    }
}

impl RouterConfig {
    /// Reads variables that begin with `prefix`; what is not set keeps its default.
    ///
    /// | variable | setting |
    /// |---|---|
    /// | `STREAMS` | names with commas between them |
    /// | `CONSUMERS` | `STREAM/CONSUMER`, with commas between them |
    /// | `MAX_RETRIES` | the `max_deliver` that watched consumers are expected to have |
    /// | `SWEEP_EVERY`, `LEASE` | durations such as `5s` |
    /// | `CLUSTER`, `EVENT_HEADER` | texts |
    /// | `DLQ_STREAM`, `DLQ_PREFIX`, `DLQ_MAX_AGE`, `DLQ_REPLICAS`, `DLQ_DUPLICATE_WINDOW` | of the [stream of letters](DlqStream) |
    /// | `ADVISORY_STREAM`, `ADVISORY_MAX_AGE`, `ADVISORY_REPLICAS` | of the [stream of advisories](AdvisoryStream) |
    /// | `RETRY_STREAM` | the name of the stream of retries |
    ///
    /// ```
    /// use dlq_nats::router::RouterConfig;
    ///
    /// let lookup = |name: &str| (name == "DLQ_ROUTE_MAX_RETRIES").then(|| "3".to_owned());
    /// let config = RouterConfig::from_env("DLQ_ROUTE_", lookup)?;
    /// assert_eq!(config.max_retries, Some(3));
    /// # Ok::<(), dlq_core::StoreError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when a variable is set to something that cannot be read, or settings contradict themselves; the
    /// error names variable and value.
    pub fn from_env(
        prefix: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, StoreError> {
        let mut config = Self::default();
        let variables = Variables { prefix, lookup };
        variables.read("STREAMS", &mut config.streams, list::<String>)?;
        variables.read("CONSUMERS", &mut config.consumers, list)?;
        variables.read("MAX_RETRIES", &mut config.max_retries, |text| number(text).map(Some))?;
        variables.read("SWEEP_EVERY", &mut config.sweep_every, time)?;
        variables.read("LEASE", &mut config.lease, time)?;
        variables.read("CLUSTER", &mut config.cluster, name)?;
        variables.read("EVENT_HEADER", &mut config.event_header, |text| name(text).map(Some))?;
        variables.read("DLQ_STREAM", &mut config.letters.name, name)?;
        variables.read("DLQ_PREFIX", &mut config.letters.prefix, name)?;
        variables.read("DLQ_MAX_AGE", &mut config.letters.max_age, time)?;
        variables.read("DLQ_REPLICAS", &mut config.letters.replicas, number)?;
        variables.read("DLQ_DUPLICATE_WINDOW", &mut config.letters.duplicate_window, time)?;
        variables.read("ADVISORY_STREAM", &mut config.advisories.name, name)?;
        variables.read("ADVISORY_MAX_AGE", &mut config.advisories.max_age, time)?;
        variables.read("ADVISORY_REPLICAS", &mut config.advisories.replicas, number)?;
        variables.read("RETRY_STREAM", &mut config.retries, name)?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the settings fit together.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.sweep_every.is_zero() {
            let text = "`sweep_every = 0s` would never let the server rest; say e.g. 5s";
            return Err(invalid(text));
        }
        if self.lease < SHORTEST_LEASE {
            return Err(invalid(format!(
                "`lease = {}` is too short; say 1s or more",
                duration::format(self.lease)
            )));
        }
        if self.max_retries == Some(0) {
            let text = "`max_retries = 0` means no limit to a server, so that nothing is ever given up; say 1 or more, \
                        or leave it out";
            return Err(invalid(text));
        }
        Ok(())
    }

    pub(crate) fn watch(&self) -> Watch {
        let streams = self.streams.iter().map(|stream| (stream.clone(), None));
        let consumers = self.consumers.iter().cloned();
        let consumers = consumers.map(|Watched { stream, consumer }| (stream, Some(consumer)));
        let own = [&self.letters.name, &self.advisories.name, &self.retries];
        Watch { own: own.map(Clone::clone).to_vec(), only: streams.chain(consumers).collect() }
    }
}

struct Variables<'a, L> {
    prefix: &'a str,
    lookup: L,
}

impl<L: Fn(&str) -> Option<String>> Variables<'_, L> {
    fn read<T>(
        &self,
        name: &str,
        into: &mut T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(), StoreError> {
        let variable = format!("{}{name}", self.prefix);
        if let Some(text) = (self.lookup)(&variable) {
            let value = parse(text.trim());
            *into = value.map_err(|why| invalid(format!("the variable {variable}: {why}")))?;
        }
        Ok(())
    }
}

fn invalid(text: impl Display) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidConfig, CONFIGURING).with_detail(text.to_string())
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn time(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; give it a value, or do not set it".to_owned());
    }
    Ok(text.to_owned())
}

fn list<T: FromStr<Err: Display>>(text: &str) -> Result<Vec<T>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|why: T::Err| why.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<RouterConfig, StoreError> {
        RouterConfig::from_env("R_", |name| {
            let found = variables.iter().find(|(key, _)| name == format!("R_{key}"));
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_setting_has_a_variable() {
        assert_eq!(read(&[]).unwrap(), RouterConfig::default());
        let config = read(&[
            ("STREAMS", "ORDERS, USERS,"),
            ("CONSUMERS", "EVENTS/mail"),
            ("MAX_RETRIES", "3"),
            ("SWEEP_EVERY", "1m"),
            ("LEASE", " 10s "),
            ("CLUSTER", "eu"),
            ("EVENT_HEADER", "ce-type"),
            ("DLQ_STREAM", "DEAD"),
            ("DLQ_PREFIX", "dead"),
            ("DLQ_MAX_AGE", "7d"),
            ("DLQ_REPLICAS", "3"),
            ("DLQ_DUPLICATE_WINDOW", "5m"),
            ("ADVISORY_STREAM", "ADVICE"),
            ("ADVISORY_MAX_AGE", "1d"),
            ("ADVISORY_REPLICAS", "5"),
            ("RETRY_STREAM", "AGAIN"),
        ])
        .unwrap();
        let day = Duration::from_secs(86_400);
        let letters = DlqStream::new().name("DEAD").prefix("dead").replicas(3);
        let advisories = AdvisoryStream::new().name("ADVICE").max_age(day);
        let wanted = RouterConfig {
            letters: letters.max_age(day * 7).duplicate_window(Duration::from_secs(300)),
            advisories: advisories.replicas(5),
            retries: "AGAIN".to_owned(),
            streams: vec!["ORDERS".to_owned(), "USERS".to_owned()],
            consumers: vec!["EVENTS/mail".parse().unwrap()],
            max_retries: Some(3),
            sweep_every: Duration::from_secs(60),
            lease: Duration::from_secs(10),
            cluster: "eu".to_owned(),
            event_header: Some("ce-type".to_owned()),
        };
        assert_eq!(config, wanted);
        // No variable and no field was forgotten: every one differs from its default.
        let (told, default) = (json(&config), json(&RouterConfig::default()));
        for (field, value) in told.as_object().unwrap() {
            assert_ne!(value, &default[field], "{field}");
        }
        assert_eq!(serde_json::from_value::<RouterConfig>(told).unwrap(), config);
    }

    fn json(config: &RouterConfig) -> serde_json::Value {
        serde_json::to_value(config).unwrap()
    }

    #[test]
    fn an_error_names_variable_and_value() {
        for (variable, value) in [
            ("MAX_RETRIES", "three"),
            ("MAX_RETRIES", "-1"),
            ("SWEEP_EVERY", "5"),
            ("LEASE", "soon"),
            ("CONSUMERS", "ORDERS/a,mail"),
            ("DLQ_REPLICAS", "many"),
            ("ADVISORY_MAX_AGE", "1y"),
        ] {
            let error = read(&[(variable, value)]).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
            let text = error.to_string();
            let wrong = value.rsplit(',').next().unwrap();
            assert!(text.contains(&format!("R_{variable}")) && text.contains(wrong), "{text}");
        }
        for (variable, value) in [("LEASE", "10ms"), ("SWEEP_EVERY", "0s"), ("MAX_RETRIES", "0")] {
            let text = read(&[(variable, value)]).unwrap_err().to_string();
            assert!(text.contains(&variable.to_lowercase()) && text.contains(value), "{text}");
        }
        assert!(read(&[("CLUSTER", " ")]).unwrap_err().to_string().contains("R_CLUSTER"));
        assert!(serde_json::from_str::<RouterConfig>(r#"{"sweep":"5s"}"#).is_err());
    }
}
