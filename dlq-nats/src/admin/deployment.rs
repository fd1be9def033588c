use std::time::Duration;

use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use dlq_core::policy::duration;
use serde::{Deserialize, Serialize};

use crate::NatsTransport;
use crate::client::streams::{DlqStream, RetryStream};
use crate::router::RouterConfig;

/// Description of the streams, buckets and consumers that should exist at the server. See the [module docs](super).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Deployment {
    /// The user's streams. Defaults to none, which means for [`check`](Self::check): those of the consumers, else all.
    pub streams: Vec<StreamPlan>,
    /// Consumers of ours.
    pub consumers: Vec<ConsumerPlan>,
    /// The stream of dead letters.
    pub letters: DlqStream,
    /// The stream of the retry queue. `None` for consumers without one.
    pub retries: Option<RetryStream>,
    /// The event router, with its stream of advisories. Defaults to none; one that is there is found anyway.
    pub router: Option<RouterConfig>,
    /// Key-value buckets that keep crash marks or idempotency keys, which are looked at when they are there.
    pub buckets: Vec<String>,
}

/// A stream of the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StreamPlan {
    /// Its name.
    pub name: String,
    /// Its subjects. Defaults to none, which means that it must exist and may have any settings.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// `limits`, `interest` or `workqueue`. Defaults to `limits`.
    #[serde(default)]
    pub retention: RetentionPolicy,
    /// Number of servers that keep it. Defaults to 1.
    #[serde(default = "one")]
    pub replicas: usize,
    /// `file` or `memory`. Defaults to `file`.
    #[serde(default = "file")]
    pub storage: StorageType,
    /// For how long messages are kept; zero for ever. Defaults to zero.
    #[serde(default, with = "duration")]
    pub max_age: Duration,
    /// For how long the server refuses a second copy of a message. Defaults to 2 minutes.
    #[serde(default = "two_minutes", with = "duration")]
    pub duplicate_window: Duration,
}

/// A consumer of ours, as [`NatsTransport`] describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ConsumerPlan {
    /// Its stream.
    pub stream: String,
    /// Its name, as the handler is called.
    pub name: String,
    /// Its name at the server. Defaults to one that is made of `name`.
    #[serde(default)]
    pub durable: Option<String>,
    /// The subjects that it reads. Defaults to any.
    #[serde(default)]
    pub filter_subjects: Option<Vec<String>>,
    /// Its lease. Defaults to 60 s when it is created, and to any when it is looked at.
    #[serde(default, with = "duration::option")]
    pub ack_wait: Option<Duration>,
    /// Maximum number of unsettled messages. Defaults to 1024 when it is created, and to any number when it is checked.
    #[serde(default)]
    pub max_ack_pending: Option<u32>,
    /// Number of messages that a process fetches ahead. Defaults to 32.
    #[serde(default = "prefetch")]
    pub prefetch: usize,
}

fn one() -> usize {
    1
}

fn file() -> StorageType {
    StorageType::File
}

fn two_minutes() -> Duration {
    Duration::from_secs(120)
}

fn prefetch() -> usize {
    32
}

impl Default for Deployment {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            consumers: Vec::new(),
            letters: DlqStream::new(),
            retries: Some(RetryStream::new()),
            router: None,
            buckets: Vec::new(),
        }
    }
}

impl StreamPlan {
    /// The stream `name`, of any settings until it has subjects.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            subjects: Vec::new(),
            retention: RetentionPolicy::Limits,
            replicas: 1,
            storage: StorageType::File,
            max_age: Duration::ZERO,
            duplicate_window: two_minutes(),
        }
    }

    /// Returns its configuration at the server; `None` if any settings will do.
    pub(super) fn config(&self) -> Option<Config> {
        // A server takes no window that is longer than what it keeps.
        let longest = if self.max_age.is_zero() { Duration::MAX } else { self.max_age };
        (!self.subjects.is_empty()).then(|| Config {
            name: self.name.clone(),
            subjects: self.subjects.clone(),
            retention: self.retention,
            num_replicas: self.replicas,
            storage: self.storage,
            max_age: self.max_age,
            duplicate_window: self.duplicate_window.min(longest),
            ..crate::client::streams::base(self.replicas)
        })
    }
}

impl ConsumerPlan {
    /// The consumer called `name` of `stream`.
    #[must_use]
    pub fn new(stream: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            name: name.into(),
            durable: None,
            filter_subjects: None,
            ack_wait: None,
            max_ack_pending: None,
            prefetch: prefetch(),
        }
    }

    /// The same for a process that reads.
    pub fn consumer(&self, retries: Option<&RetryStream>) -> NatsTransport {
        let mut consumer = NatsTransport::new(self.stream.as_str()).name(self.name.as_str());
        if let Some(durable) = &self.durable {
            consumer = consumer.durable(durable.as_str());
        }
        for subject in self.filter_subjects.iter().flatten() {
            consumer = consumer.subject(subject.as_str());
        }
        if let Some(lease) = self.ack_wait {
            consumer = consumer.lease(lease);
        }
        if let Some(messages) = self.max_ack_pending {
            consumer = consumer.max_ack_pending(messages);
        }
        match retries {
            Some(stream) => consumer.retry_stream(stream.clone()),
            None => consumer.without_retries(),
        }
        .prefetch(self.prefetch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_is_read_from_a_file() {
        let text = r#"{
            "streams": [{"name": "ORDERS", "subjects": ["orders.>"], "retention": "workqueue", "replicas": 3, "max_age": "1m"}],
            "consumers": [{"stream": "ORDERS", "name": "billing", "ack_wait": "30s", "filter_subjects": ["orders.new"]}],
            "letters": {"name": "DEAD", "max_age": "7d"},
            "retries": null,
            "router": {"max_retries": 3, "streams": ["USERS"]},
            "buckets": ["marks"]
        }"#;
        let deployment: Deployment = serde_json::from_str(text).unwrap();
        let stream = deployment.streams[0].config().unwrap();
        assert_eq!((stream.num_replicas, stream.retention), (3, RetentionPolicy::WorkQueue));
        assert_eq!(stream.duplicate_window, Duration::from_secs(60), "no longer than max_age");
        let durable = &deployment.consumers[0].consumer(None).durables("billing")[0];
        assert_eq!(
            (durable.lease, &durable.filters[..]),
            (Duration::from_secs(30), &["orders.new".to_owned()][..])
        );
        let again = serde_json::to_string(&deployment).unwrap();
        assert_eq!(serde_json::from_str::<Deployment>(&again).unwrap(), deployment);
        for wrong in [
            r#"{"stream": []}"#,
            r#"{"letters": {"max_age": 7}}"#,
            r#"{"consumers": [{"name": "x"}]}"#,
        ] {
            assert!(serde_json::from_str::<Deployment>(wrong).is_err(), "{wrong}");
        }
    }
}
