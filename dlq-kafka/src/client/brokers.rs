use std::collections::BTreeMap;
use std::sync::Arc;

use dlq_core::BindingKey;
use rdkafka::ClientConfig;

use crate::client::error::SetupError;

/// Settings of the client on which a guarantee rests; they are not the user's to change.
const OURS: &[(&str, &str)] = &[
    ("enable.auto.commit", "offsets are committed when their records are done"),
    ("enable.auto.offset.store", "offsets are committed when their records are done"),
    ("auto.offset.reset", "nothing is passed over unasked; see `KafkaTransport::start`"),
    ("enable.partition.eof", "the source waits for more at the end of a partition"),
    ("enable.idempotence", "a copy may be written twice otherwise"),
    ("metadata.broker.list", "brokers are named where the cluster is"),
    ("acks", "a letter has to be confirmed by every replica in sync"),
    ("delivery.report.only.error", "nothing would be known to be written"),
    ("group.id", "it is the consumer's name; see `KafkaTransport::group`"),
    ("transactional.id", "transactions are the replay's"),
];

/// Settings that the client has two names for, of which the second is the one used here.
const ALIASES: &[(&str, &str)] = &[
    ("auto.commit.enable", "enable.auto.commit"),
    ("compression.codec", "compression.type"),
    ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("message.send.max.retries", "retries"),
    ("message.timeout.ms", "delivery.timeout.ms"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("request.required.acks", "acks"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
];

/// The one name of a setting: of two the client would take the one that it reads last, in no order.
fn name_of(setting: &str) -> &str {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == setting);
    alias.map_or(setting, |(_, name)| name)
}

/// Address and settings of a cluster.
///
/// # TLS and logins
///
/// `security.protocol` is `plaintext` (the default), `ssl`, `sasl_plaintext` or `sasl_ssl`; `sasl.mechanisms` says how
/// `sasl.username` and `sasl.password` are told. `PLAIN` without TLS is in every build; TLS, `SCRAM-SHA-256`,
/// `SCRAM-SHA-512` and `OAUTHBEARER` are with the feature `ssl`, which wants OpenSSL. `GSSAPI` (Kerberos) is in none. What
/// is set is never shown, neither by `Debug` nor in an error.
///
/// ```
/// use dlq_kafka::Brokers;
///
/// let brokers = Brokers::at("kafka-1:9092,kafka-2:9092")
///     .with("security.protocol", "ssl")
///     .with("ssl.ca.location", "/etc/ssl/ca.pem");
/// # let _ = brokers;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Brokers {
    bootstrap: String,
    settings: BTreeMap<String, String>,
    cluster: Arc<str>,
    key: Option<BindingKey>,
}

impl Brokers {
    /// The cluster of these brokers: `HOST:PORT`, several by commas.
    pub fn at(bootstrap: impl Into<String>) -> Self {
        let (settings, cluster) = (BTreeMap::new(), Arc::from("default"));
        Self { bootstrap: bootstrap.into(), settings, cluster, key: None }
    }

    /// Sets a [setting of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md), for
    /// consumers, producers and administration alike. Those on which a guarantee rests are refused when something is
    /// opened.
    pub fn with(mut self, setting: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name_of(&setting.into()).to_owned(), value.into());
        self
    }

    /// Returns advice about brokers that do not respond.
    pub(crate) fn reach(&self) -> &'static str {
        if self.settings.contains_key("security.protocol") {
            "check address and network"
        } else {
            "check address and network, and set `security.protocol` if they want TLS or a login"
        }
    }

    /// Returns advice about a refused login.
    pub(crate) fn login(&self) -> String {
        let set = |name| self.settings.get(name);
        match set("sasl.mechanisms") {
            Some(mechanism) => format!(
                "; check `sasl.username` and `sasl.password`, and that brokers take them by `sasl.mechanisms`, which is \
                 `{mechanism}`"
            ),
            None if set("security.protocol").is_some() => {
                "; check `security.protocol`, and the settings `sasl.*` and `ssl.*`".to_owned()
            }
            None => {
                "; set `security.protocol`, and `sasl.*` or `ssl.*` as it needs them".to_owned()
            }
        }
    }

    /// Sets the alias of the cluster, which is part of the identity of letters. Defaults to `default`.
    pub fn with_cluster(mut self, alias: impl Into<Arc<str>>) -> Self {
        self.cluster = alias.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to their topics. Consumers that have one believe no
    /// message to be a letter that was not bound by it, and handle it as a new one; retry topics are not concerned. Give it
    /// to those who send letters back before the consumers. Defaults to none: then any producer that knows payload and key
    /// of a message can claim the identity of its letter.
    pub fn with_binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    pub(crate) fn binding_key(&self) -> Option<&BindingKey> {
        self.key.as_ref()
    }

    /// The alias of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(crate) fn cluster_shared(&self) -> &Arc<str> {
        &self.cluster
    }

    /// The brokers, for messages.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The configuration of a client: `defaults`, then what the user says, then `fixed`.
    pub(crate) fn client(
        &self,
        defaults: &[(&str, &str)],
        fixed: &[(&str, &str)],
    ) -> Result<ClientConfig, SetupError> {
        for (setting, why) in OURS {
            if let Some(value) = self.settings.get(*setting) {
                return Err(SetupError::Config(format!(
                    "`{setting}` is set to `{value}`, and it is not to be set: {why}"
                )));
            }
        }
        // Apart from `OURS`: the value that holds anyway is no reason to refuse a configuration that is shared with others.
        match self.settings.get("isolation.level").map(String::as_str) {
            None | Some("read_committed") => {}
            Some(level) => {
                return Err(SetupError::Config(format!(
                    "`isolation.level` is set to `{level}`, and it is not to be set: records of aborted transactions were \
                     taken back by their producer"
                )));
            }
        }
        let mut config = ClientConfig::new();
        // A server that is back is found within a second, and not within ten.
        config.set("reconnect.backoff.max.ms", "1000");
        for (setting, value) in defaults {
            config.set(name_of(setting), *value);
        }
        for (setting, value) in &self.settings {
            config.set(setting, value);
        }
        // These come after the user's, so none of those overrules what a guarantee rests on.
        for (setting, value) in fixed {
            config.set(name_of(setting), *value);
        }
        config.set("bootstrap.servers", &self.bootstrap);
        Ok(config)
    }
}

/// Without the values of settings, among which are passwords.
impl std::fmt::Debug for Brokers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brokers")
            .field("bootstrap", &self.bootstrap)
            .field("cluster", &self.cluster)
            .field("settings", &self.settings.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_one_name_and_what_a_guarantee_rests_on_is_refused_by_each() {
        let brokers = Brokers::at("h")
            .with("sasl.mechanisms", "PLAIN")
            .with("sasl.mechanism", "SCRAM-SHA-512");
        assert_eq!(brokers.client(&[], &[]).unwrap().get("sasl.mechanisms"), Some("SCRAM-SHA-512"));
        for (setting, value) in [
            ("request.required.acks", "1"),
            ("auto.commit.enable", "true"),
            ("metadata.broker.list", "x"),
            ("isolation.level", "read_uncommitted"),
        ] {
            let error = Brokers::at("h").with(setting, value).client(&[], &[]).unwrap_err();
            assert!(error.to_string().contains("not to be set"), "{error}");
        }
        let committed = Brokers::at("h").with("isolation.level", "read_committed");
        assert!(committed.client(&[], &[]).is_ok(), "it is so anyway");
    }
    #[test]
    fn what_is_fixed_holds_whichever_name_the_user_has_for_it() {
        for (alias, name) in ALIASES {
            for (user, ours) in [(alias, name), (name, alias), (alias, alias)] {
                let brokers = Brokers::at("h").with(*user, "theirs");
                if OURS.iter().any(|(ours, _)| ours == name) {
                    continue;
                }
                let get = |defaults: &[_], fixed: &[_]| {
                    let config = brokers.client(defaults, fixed).unwrap();
                    assert_eq!(config.get(alias), None, "{name} has one name");
                    config.get(name).map(str::to_owned)
                };
                assert_eq!(get(&[(*ours, "default")], &[]).as_deref(), Some("theirs"), "{user}");
                assert_eq!(get(&[], &[(*ours, "fixed")]).as_deref(), Some("fixed"), "{user}");
            }
        }
    }

    #[test]
    fn the_client_knows_both_names_of_a_setting() {
        // One is an older name that only topics have, and some are in builds with TLS only.
        let is_asked = |name: &str| {
            name != "enable.auto.commit" && !name.starts_with("sasl.oauthbearer.client.")
        };
        for (alias, name) in ALIASES.iter().filter(|(_, name)| is_asked(name)) {
            let value = match *name {
                "compression.type" => "lz4",
                "acks" => "1",
                "sasl.mechanisms" => "PLAIN",
                _ => "77",
            };
            for (set, other) in [(alias, name), (name, alias)] {
                let config = ClientConfig::new().set(*set, value).create_native_config().unwrap();
                assert_eq!(config.get(other).unwrap(), value, "{set} is {other}");
            }
        }
    }
}
