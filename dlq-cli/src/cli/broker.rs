//! Arguments of the verbs that work at a broker: connection, ingest, route, and the broker options of replay, check and
//! serve.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use dlq_core::BindingKey;
use dlq_core::OperationId;
use dlq_core::policy::duration;
#[cfg(feature = "nats")]
use dlq_nats::router::Watched;

use crate::error::CliError;

/// Options for connecting to a broker.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BrokerArgs {
    /// Credentials file for NATS
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "FILE", env = "DLQ_NATS_CREDS", global = true)]
    pub(crate) creds: Option<PathBuf>,

    /// PEM file of CA certificates that NATS and Kafka servers are checked against, instead of this machine's. For Redis
    /// write ?tls-ca=FILE into the URL
    #[arg(long, value_name = "FILE", env = "DLQ_TLS_CA", global = true)]
    pub(crate) tls_ca: Option<PathBuf>,

    /// The JetStream domain, e.g. of a leaf node. Defaults to the server's own
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "NAME", env = "DLQ_NATS_DOMAIN", global = true)]
    pub(crate) js_domain: Option<String>,

    /// A setting of the Kafka client (librdkafka), e.g. security.protocol=sasl_ssl; may be given several times. The
    /// environment has them too, as DLQ_KAFKA_SECURITY_PROTOCOL
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    pub(crate) kafka: Vec<Setting>,

    /// A file of such settings, one KEY=VALUE a line
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "FILE", env = "DLQ_KAFKA_CONFIG", global = true)]
    pub(crate) kafka_config: Option<PathBuf>,

    /// Alias of the Kafka cluster. It is part of each letter's identity, so give the same one as the consumers. Defaults to
    /// default
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "NAME", env = "DLQ_KAFKA_CLUSTER", global = true)]
    pub(crate) kafka_cluster: Option<String>,

    /// File with the binding key, the secret that proves to consumers that a message is a replayed letter. One line
    /// break at the end is ignored
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    #[arg(long, value_name = "FILE", env = "DLQ_BINDING_KEY_FILE", global = true)]
    pub(crate) binding_key_file: Option<PathBuf>,
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
impl BrokerArgs {
    /// Reads the binding key that the consumers use. Returns `None` if no file is named.
    pub(crate) fn binding_key(&self) -> Result<Option<BindingKey>, CliError> {
        // Scripts unset an option by setting its variable to "", so an empty path counts as not given.
        let file = self.binding_key_file.as_ref().filter(|file| !file.as_os_str().is_empty());
        let Some(file) = file else { return Ok(None) };
        let shown = file.display();
        let secret = std::fs::read(file).map_err(|error| {
            CliError::refused(format!(
                "cannot read the binding key file {shown}: {error}; check \
                 --binding-key-file or DLQ_BINDING_KEY_FILE"
            ))
        })?;
        // Editors and `echo` end a file with a line break, which the consumers' key does not have.
        let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        if secret.is_empty() {
            return Err(CliError::refused(format!(
                "cannot use the binding key file {shown}: it is empty; write the consumers' secret into it"
            )));
        }
        Ok(Some(BindingKey::new(secret)))
    }
}

/// A setting of a client; its value may be secret.
#[cfg(feature = "kafka")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

#[cfg(feature = "kafka")]
impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("there is no `=` after a key; write KEY=VALUE".to_owned()),
        }
    }
}

/// Omits the value, which may be a password.
#[cfg(feature = "kafka")]
impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Name of a consumer or group, with the stream or topic that it reads: `STREAM/CONSUMER` or `TOPIC/GROUP`.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(any(feature = "kafka", feature = "nats")),
    expect(dead_code, reason = "only NATS and Kafka read the fields; Redis refuses the option")
)]
pub(crate) struct ConsumerName {
    /// Or the topic.
    pub(crate) stream: String,
    pub(crate) consumer: String,
}

impl FromStr for ConsumerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The first slash separates: names of streams and topics have none, names of groups may have some.
        match text.split_once('/') {
            Some((stream, consumer)) if !stream.is_empty() && !consumer.is_empty() => {
                Ok(Self { stream: stream.to_owned(), consumer: consumer.to_owned() })
            }
            _ => Err("there is no name on each side of a `/`; write STREAM/CONSUMER (NATS) or TOPIC/GROUP \
                 (Kafka)".to_owned()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// The store, which is created when it is not there, e.g. sqlite://dlq.db or postgres://HOST/DATABASE
    #[arg(long, value_name = "URL", env = "DLQ_INTO", hide_env_values = true)]
    pub(crate) into: String,
    /// End when every letter is in the store or was set aside (exit code 3), instead of waiting for more
    #[arg(long)]
    pub(crate) once: bool,
    /// Append a JSON line for each new letter to this file; defaults to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) incidents: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) alert: AlertArgs,
    #[command(flatten)]
    pub(crate) group_alerts: super::GroupAlertArgs,
    /// Append a row for each new letter to the store's processing audit
    #[arg(long)]
    pub(crate) audit: bool,
    /// Name under which the broker remembers how far this ingest has read: a durable consumer (NATS), a consumer group
    /// (Kafka) or a follower (Redis). Defaults to dlq-ingest, at Kafka to dlq-ingest.TOPIC; another group at Kafka has to
    /// be named dlq-ingest.TOPIC.SUFFIX
    #[arg(long, visible_alias = "group", value_name = "NAME")]
    pub(crate) durable: Option<String>,
    /// Time after which another ingest takes over the letters of one that died. NATS uses the value only when it creates
    /// the durable consumer. Kafka uses it as session timeout, which brokers by default allow from 6s on
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) lease: Duration,
    /// Maximum number of letters written to the store in one call
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) batch: usize,
    /// Serve the counters of this process to Prometheus at HOST:PORT, e.g. 127.0.0.1:9401; a port alone means 127.0.0.1.
    /// There is no authentication. Off by default
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

/// Alerts about each new letter. Letters do not wait for them.
#[derive(Debug, Args)]
pub(crate) struct AlertArgs {
    /// Post the incident of each new letter to this webhook, e.g. https://relay:8443/dead-letters
    #[arg(
        long,
        value_name = "URL",
        env = "DLQ_ALERT_URL",
        hide_env_values = true,
        conflicts_with = "alert_command"
    )]
    pub(crate) alert_url: Option<String>,
    /// Run this for each new letter, with its incident on standard input
    #[arg(long, value_name = "COMMAND", env = "DLQ_ALERT_COMMAND", hide_env_values = true)]
    pub(crate) alert_command: Option<String>,
}

#[cfg(feature = "nats")]
#[derive(Debug, Args)]
pub(crate) struct RouteArgs {
    /// Watch the consumers of this stream; may be given several times. Defaults to all streams
    #[arg(long, value_name = "STREAM", env = "DLQ_ROUTE_STREAMS", value_delimiter = ',')]
    pub(crate) stream: Vec<String>,
    /// Watch this consumer; may be given several times. Defaults to all consumers
    #[arg(long, value_name = "STREAM/NAME", env = "DLQ_ROUTE_CONSUMERS", value_delimiter = ',')]
    pub(crate) consumer: Vec<Watched>,
    /// Write each letter into this store too, with a row of its processing audit, e.g. postgres://HOST/DATABASE: from
    /// there it can be sent back by `dlq replay --to origin`
    #[arg(long, value_name = "URL", env = "DLQ_ROUTE_INTO", hide_env_values = true)]
    pub(crate) into: Option<String>,
    /// The `max_deliver` that these consumers should have; one with another value is reported
    #[arg(long, value_name = "N", env = "DLQ_ROUTE_MAX_RETRIES")]
    pub(crate) max_retries: Option<u32>,
    /// Interval at which consumers without workers are made to report what they gave up
    #[arg(long, value_name = "TIME", env = "DLQ_ROUTE_SWEEP_EVERY", default_value = "5s", value_parser = duration::parse)]
    pub(crate) sweep_every: Duration,
    /// Time after which another router takes over the work of one that died. Defaults to 30s. Used only when the durable
    /// consumer is created; a router that finds one uses the lease of that consumer
    #[arg(long, value_name = "TIME", env = "DLQ_ROUTE_LEASE", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// The alias of the cluster, which is part of the identity of letters
    #[arg(long, value_name = "NAME", env = "DLQ_ROUTE_CLUSTER", default_value = "default")]
    pub(crate) cluster: String,
    /// The header that says the type of the event, e.g. ce-type
    #[arg(long, value_name = "NAME", env = "DLQ_ROUTE_EVENT_HEADER")]
    pub(crate) event_header: Option<String>,
    /// The stream that keeps advisories while no router runs
    #[arg(
        long,
        value_name = "STREAM",
        env = "DLQ_ROUTE_ADVISORY_STREAM",
        default_value = "DLQ_ADVISORY"
    )]
    pub(crate) advisory_stream: String,
    /// The stream of retries, of which nothing is routed
    #[arg(
        long,
        value_name = "STREAM",
        env = "DLQ_ROUTE_RETRY_STREAM",
        default_value = "DLQ_RETRY"
    )]
    pub(crate) retry_stream: String,
    /// Number of replicas of streams that the router creates
    #[arg(long, value_name = "N", env = "DLQ_ROUTE_REPLICAS", default_value_t = 1)]
    pub(crate) replicas: usize,
    /// Serve the counters of this process to Prometheus at HOST:PORT, e.g. 127.0.0.1:9401; a port alone means 127.0.0.1.
    /// There is no authentication. Off by default
    #[arg(long, value_name = "ADDR", env = "DLQ_ROUTE_METRICS")]
    pub(crate) metrics: Option<String>,
}

/// Options of a replay at a broker only.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Replay at a broker")]
pub(crate) struct ReplayAtBrokerArgs {
    /// Also send letters that were sent before
    #[arg(long)]
    pub(crate) again: bool,
    /// Continue an interrupted replay, by the id that it printed. Needed only with --again: without it, letters that were
    /// sent are skipped anyway
    #[arg(long, value_name = "ID", requires = "again")]
    pub(crate) resume: Option<OperationId>,
    /// At NATS: the header that carries the key of a message, as the consumer has it
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "NAME", env = "DLQ_KEY_HEADER")]
    pub(crate) key_header: Option<String>,
    /// Time after which others continue if this replay dies: another replay at NATS, a waiting ingest at Redis
    #[cfg(any(feature = "nats", feature = "redis"))]
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) lease: Duration,
    /// At NATS: the stream by which letters go to their handlers
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "STREAM", default_value = "DLQ_RETRY")]
    pub(crate) retry_stream: String,
    /// At NATS: the consumer whose handlers get the letters, with --to handler. Defaults to the one that wrote each,
    /// or else the one called like the handler
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "NAME")]
    pub(crate) handler_consumer: Option<String>,
    /// At Kafka: send each to the partition where it was born, with --to origin
    #[cfg(feature = "kafka")]
    #[arg(long)]
    pub(crate) keep_partition: bool,
    /// At Kafka: the group whose handlers get the letters, with --to handler. Defaults to the group that wrote each
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "GROUP")]
    pub(crate) handler_group: Option<String>,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    pub(crate) ladder: LadderArgs,
}

impl ReplayAtBrokerArgs {
    /// Returns what holds where nothing is said, but for the environment.
    pub(crate) fn unless_said() -> Result<Self, CliError> {
        #[derive(clap::Parser)]
        struct Unsaid {
            #[command(flatten)]
            of_replay: ReplayAtBrokerArgs,
        }
        let unsaid = <Unsaid as clap::Parser>::try_parse_from(["dlq"]);
        let unsaid = unsaid.map_err(|error| CliError::refused(error.to_string()))?;
        Ok(unsaid.of_replay)
    }
}

/// The retry topics of a consumer at Kafka.
#[cfg(feature = "kafka")]
#[derive(Clone, Debug, Args)]
pub(crate) struct LadderArgs {
    /// At Kafka: the delays of the consumer's retry topics, as it has them
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_value = "30s,5m,1h", value_parser = duration::parse)]
    pub(crate) ladder: Vec<Duration>,
    /// At Kafka: how these topics are named
    #[arg(long, value_name = "TEMPLATE", default_value = "{topic}.{group}.retry.{delay}")]
    pub(crate) ladder_names: String,
}

/// Options of a check of a broker only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check of a broker")]
pub(crate) struct CheckAtBrokerArgs {
    /// At NATS: look at this stream and its consumers; may be given several times. Defaults to all streams
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Vec<String>,
    /// Check this consumer as one that uses dlq: its settings must never let the server drop a message. May be repeated
    #[arg(long, value_name = "STREAM/NAME|TOPIC/GROUP")]
    pub(crate) consumer: Vec<ConsumerName>,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    pub(crate) ladder: LadderArgs,
    /// At NATS: the stream of retries
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "STREAM", default_value = "DLQ_RETRY")]
    pub(crate) retry_stream: String,
    /// Compare with this deployment, a JSON document
    #[arg(long, value_name = "FILE", conflicts_with = "consumer")]
    pub(crate) deployment: Option<PathBuf>,
}

impl CheckAtBrokerArgs {
    /// Returns true if an option was given that only NATS and Kafka understand. `--retry-stream` and `--ladder` have
    /// defaults, so that nobody can tell whether they were typed.
    pub(crate) fn is_given(&self) -> bool {
        #[cfg(feature = "nats")]
        if !self.stream.is_empty() {
            return true;
        }
        !self.consumer.is_empty() || self.deployment.is_some()
    }
}

/// Options of `dlq serve` at a broker only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics of a broker")]
pub(crate) struct ServeAtBrokerArgs {
    /// Show how far this consumer is behind too, at Kafka with its retry topics; may be given several times
    #[arg(long, value_name = "STREAM/NAME|TOPIC/GROUP")]
    pub(crate) consumer: Vec<ConsumerName>,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    pub(crate) ladder: LadderArgs,
}

impl ServeAtBrokerArgs {
    /// Fails if `--consumer` was given although the letters are in a store. `--ladder` is ignored, since a default
    /// cannot be told from a typed value.
    pub(crate) fn refuse(&self, shown: &str) -> Result<(), CliError> {
        if self.consumer.is_empty() {
            return Ok(());
        }
        Err(CliError::refused(format!(
            "cannot use --consumer: {shown} is a store, and metrics of a store cover all consumers; leave --consumer out"
        )))
    }
}
