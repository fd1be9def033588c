//! Writes records, and returns once every replica in sync has them.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::brokers::Brokers;
use crate::error::{SetupError, is_refusal};
use crate::rebalance::log;

/// How long a record may take until it is confirmed; then the write has failed, and nothing is acknowledged.
const DELIVERY: &str = "30000";
/// For how long a queue that is full is waited for, and how often it is looked at.
const FULL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// How long the cluster may be asked for the partitions of a topic.
const ASKING: Duration = Duration::from_secs(10);

/// Speaks to `tracing`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

impl ClientContext for Log {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "the client of Kafka reports an error");
    }
}

/// A record to write.
pub(crate) struct Outgoing<'a> {
    pub(crate) operation: &'static str,
    pub(crate) topic: &'a str,
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a Bytes>,
    pub(crate) value: Option<&'a Bytes>,
    /// Makes its headers, which the client takes for itself.
    pub(crate) headers: &'a (dyn Fn() -> Result<OwnedHeaders, StoreError> + Send + Sync),
}

/// Why a record was not written.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// It is larger than the topic takes.
    TooLarge,
    Failed(StoreError),
}

/// Writes records, many at the same time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Producer {
    inner: FutureProducer<Log>,
    /// Writes one record at a time: a batch is refused whole when it is too large for its topic.
    single: Arc<OnceCell<FutureProducer<Log>>>,
    brokers: Brokers,
}

impl Producer {
    pub(crate) fn new(brokers: &Brokers) -> Result<Self, SetupError> {
        let inner = producer(brokers, &[("linger.ms", "2")])?;
        Ok(Self { inner, single: Arc::default(), brokers: brokers.clone() })
    }

    /// Writes a record, and returns once it is confirmed. Of one that is too large nothing is written.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        match self.send_by(&self.inner, outgoing).await {
            Err(Unwritten::TooLarge) => {
                let single = self.single.get_or_try_init(|| async {
                    producer(&self.brokers, &[("linger.ms", "0"), ("batch.num.messages", "1")])
                });
                let single = single
                    .await
                    .map_err(|error| Unwritten::Failed(error.for_store(outgoing.operation)))?;
                self.send_by(single, outgoing).await
            }
            Err(Unwritten::Failed(error)) if is_missing(&error) => {
                // The topic may be there again, and with fewer partitions; the client is minutes late to see it by itself.
                let Ok(count) = self.partitions(outgoing.topic).await else {
                    return Err(Unwritten::Failed(error));
                };
                let partition = outgoing.partition.map(|partition| partition % count);
                self.send_by(&self.inner, &Outgoing { partition, ..*outgoing }).await
            }
            sent => sent,
        }
    }

    async fn send_by(
        &self,
        producer: &FutureProducer<Log>,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), Unwritten> {
        let Outgoing { operation, topic, .. } = *outgoing;
        let until = Instant::now() + FULL;
        let headers = (outgoing.headers)().map_err(Unwritten::Failed)?;
        let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers);
        record.partition = outgoing.partition;
        record.key = outgoing.key.map(|key| &key[..]);
        record.payload = outgoing.value.map(|value| &value[..]);
        let delivery = loop {
            match producer.send_result(record) {
                Ok(delivery) => break delivery,
                Err((error, unsent)) => {
                    let is_full = error.rdkafka_error_code() == Some(Code::QueueFull);
                    if !is_full || Instant::now() >= until {
                        return Err(unwritten(operation, topic, error));
                    }
                    record = unsent;
                    sleep(LOOK).await;
                }
            }
        };
        match delivery.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((error, _))) => Err(unwritten(operation, topic, error)),
            Err(_) => {
                let text = "the producer was closed before the record was confirmed";
                let failed = StoreError::new(StoreErrorKind::Unavailable, operation);
                Err(Unwritten::Failed(failed.with_detail(text)))
            }
        }
    }

    /// How many partitions a topic has.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<i32, SetupError> {
        let what = format!("look for topic `{topic}` at {}", self.brokers.bootstrap());
        let (inner, name) = (self.inner.clone(), topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = inner.client().fetch_metadata(Some(&name), ASKING)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name);
            match topic.map(|topic| (topic.error(), topic.partitions().len())) {
                Some((None, count)) if count > 0 => Ok(i32::try_from(count).unwrap_or(i32::MAX)),
                Some((Some(error), _)) => Err(KafkaError::MetadataFetch(error.into())),
                _ => Err(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition)),
            }
        });
        let asked = asked
            .await
            .map_err(|error| SetupError::Unavailable(what.clone(), Some(error.into())))?;
        asked.map_err(|error| SetupError::answered(&what, error))
    }
}

fn producer(brokers: &Brokers, more: &[(&str, &str)]) -> Result<FutureProducer<Log>, SetupError> {
    let fixed = [
        ("enable.idempotence", "true"),
        ("acks", "all"),
        // What is too large is for the topic to say.
        ("message.max.bytes", "1000000000"),
        ("allow.auto.create.topics", "false"),
    ];
    let defaults = [&[("delivery.timeout.ms", DELIVERY)], more].concat();
    let config = brokers.client(&defaults, &fixed)?;
    config.create_with_context(Log).map_err(|error| SetupError::answered("make a producer", error))
}

/// Whether the record has no place, as far as the client knows.
fn is_missing(error: &StoreError) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<KafkaError>());
    error.and_then(KafkaError::rdkafka_error_code).is_some_and(is_gone)
}

fn is_gone(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)
}

fn unwritten(operation: &'static str, topic: &str, error: KafkaError) -> Unwritten {
    let code = error.rdkafka_error_code();
    if code == Some(Code::MessageSizeTooLarge) {
        return Unwritten::TooLarge;
    }
    let kind = match code {
        Some(code) if is_refusal(code) => StoreErrorKind::InvalidConfig,
        _ => StoreErrorKind::Unavailable,
    };
    let text = match code {
        Some(Code::TopicAuthorizationFailed) => {
            format!(
                "topic `{topic}` may not be written by this user; allow `Write` on it ({error})"
            )
        }
        Some(code) if is_gone(code) => {
            format!("topic `{topic}` is not there; create it again ({error})")
        }
        _ => format!("topic `{topic}`: {error}"),
    };
    Unwritten::Failed(StoreError::new(kind, operation).with_detail(text).with_source(error))
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}
