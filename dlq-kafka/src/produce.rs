//! Writes records, and returns once every replica in sync has them.

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use tokio::sync::{Notify, OnceCell, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::brokers::Brokers;
use crate::error::{SetupError, is_refusal};
use crate::rebalance::log;
use crate::shared::lock;

/// How long a record may take until it is confirmed; then the write has failed, and nothing is acknowledged.
const DELIVERY: &str = "30000";
/// For how long a queue that is full is waited for, and how often it is looked at.
const FULL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// How long the cluster may be asked for the partitions of a topic.
const ASKING: Duration = Duration::from_secs(10);

/// What became of a record, for whoever waits for it.
type Waiting = oneshot::Sender<Result<(), KafkaError>>;

/// What the client's own thread has to say. It is told on a task: to wake each of those who wait from another thread would
/// cost more than to write their records.
#[derive(Default)]
struct Reports {
    queue: Mutex<Vec<(Waiting, Result<(), KafkaError>)>>,
    arrived: Notify,
}

impl Reports {
    async fn tell(self: Arc<Self>) {
        loop {
            self.arrived.notified().await;
            for (waiting, outcome) in std::mem::take(&mut *lock(&self.queue)) {
                // Who does not wait any more does not want to know.
                let _ = waiting.send(outcome);
            }
        }
    }
}

struct Context(Arc<Reports>);

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Waiting>;

    fn delivery(&self, outcome: &DeliveryResult<'_>, waiting: Box<Waiting>) {
        let outcome = outcome.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        lock(&self.0.queue).push((*waiting, outcome));
        self.0.arrived.notify_one();
    }
}

impl ClientContext for Context {
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
    inner: Client,
    /// Writes one record at a time: a batch is refused whole when it is too large for its topic.
    single: Arc<OnceCell<Client>>,
    brokers: Brokers,
}

#[derive(Clone)]
struct Client {
    producer: Arc<ThreadedProducer<Context>>,
    _telling: Arc<JoinSet<()>>,
}

impl Producer {
    pub(crate) fn new(brokers: &Brokers) -> Result<Self, SetupError> {
        let inner = client(brokers, &[("linger.ms", "2")], &[])?;
        Ok(Self { inner, single: Arc::default(), brokers: brokers.clone() })
    }

    /// Writes a record, and returns once it is confirmed. Of one that is too large nothing is written.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        match self.send_by(&self.inner, outgoing).await {
            Ok(()) => Ok(()),
            // Apart, since it is rare, and large in memory.
            Err(unwritten) => Box::pin(self.send_again(outgoing, unwritten)).await,
        }
    }

    async fn send_again(
        &self,
        outgoing: &Outgoing<'_>,
        unwritten: Unwritten,
    ) -> Result<(), Unwritten> {
        match unwritten {
            Unwritten::TooLarge => {
                let single = self.single.get_or_try_init(|| async {
                    client(&self.brokers, &[], &[("linger.ms", "0"), ("batch.num.messages", "1")])
                });
                let single = single
                    .await
                    .map_err(|error| Unwritten::Failed(error.for_store(outgoing.operation)))?;
                self.send_by(single, outgoing).await
            }
            Unwritten::Failed(error) if is_missing(&error) => {
                // The topic may be there again, and with fewer partitions; the client is minutes late to see it by itself.
                let Ok(count) = self.partitions(outgoing.topic).await else {
                    return Err(Unwritten::Failed(error));
                };
                let partition = outgoing.partition.map(|partition| partition % count);
                self.send_by(&self.inner, &Outgoing { partition, ..*outgoing }).await
            }
            failed => Err(failed),
        }
    }

    async fn send_by(&self, client: &Client, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        let Outgoing { operation, topic, .. } = *outgoing;
        let mut until = None;
        let headers = (outgoing.headers)().map_err(Unwritten::Failed)?;
        let (waiting, told) = oneshot::channel();
        let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(topic, Box::new(waiting));
        record.headers = Some(headers);
        record.partition = outgoing.partition;
        record.key = outgoing.key.map(|key| &key[..]);
        record.payload = outgoing.value.map(|value| &value[..]);
        while let Err((error, unsent)) = client.producer.send(record) {
            let is_full = error.rdkafka_error_code() == Some(Code::QueueFull);
            if !is_full || Instant::now() >= *until.get_or_insert_with(|| Instant::now() + FULL) {
                return Err(unwritten(operation, topic, error));
            }
            record = unsent;
            sleep(LOOK).await;
        }
        match told.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(unwritten(operation, topic, error)),
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
            let metadata = inner.producer.client().fetch_metadata(Some(&name), ASKING)?;
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

fn client(
    brokers: &Brokers,
    defaults: &[(&str, &str)],
    fixed: &[(&str, &str)],
) -> Result<Client, SetupError> {
    let ours = [
        ("enable.idempotence", "true"),
        ("acks", "all"),
        // What is too large is for the topic to say.
        ("message.max.bytes", "1000000000"),
        ("allow.auto.create.topics", "false"),
    ];
    let defaults = [&[("delivery.timeout.ms", DELIVERY)], defaults].concat();
    let config = brokers.client(&defaults, &[&ours, fixed].concat())?;
    let reports = Arc::new(Reports::default());
    let made = config.create_with_context(Context(Arc::clone(&reports)));
    let producer = made.map_err(|error| SetupError::answered("make a producer", error))?;
    let mut telling = JoinSet::new();
    telling.spawn(reports.tell());
    Ok(Client { producer: Arc::new(producer), _telling: Arc::new(telling) })
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
