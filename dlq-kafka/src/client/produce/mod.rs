//! Writes records, and returns once every replica in sync has them.

mod batches;
mod reports;

use std::error::Error as _;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{Producer as _, ThreadedProducer};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::batches::{Batches, Entry, give, is_full};
use self::reports::{Context, Reports, Told};
use crate::client::aside::leave;
use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_refusal};

/// Time limit for the confirmation of a record, in milliseconds. After it the write has failed, and nothing is
/// acknowledged.
const DELIVERY: &str = "30000";
/// Time for which the first record of a batch waits for others, in milliseconds.
const LINGER: &str = "1";
/// For how long a queue that is full is waited for, and how often it is looked at.
const FULL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// For how long a client that can do no more is kept for who still waits for a record.
const CLOSING: Duration = Duration::from_secs(40);
/// Time limit for asking the cluster for the partitions of a topic.
const ASKING: Duration = Duration::from_secs(10);

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

/// Reason why a record was not written.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// It is larger than the topic takes.
    TooLarge,
    Failed(StoreError),
}

/// Writes records, many at the same time. Cheap to clone.
///
/// A client that has met with a fatal error writes nothing any more: the first record by which that shows is not written,
/// and the next one makes another client.
#[derive(Clone)]
pub(crate) struct Producer {
    inner: Arc<Slot>,
    /// Writes one record at a time: a batch is refused whole when it is too large for its topic.
    single: Arc<Slot>,
    brokers: Brokers,
}

/// The place of a client, which is made when it is needed.
struct Slot {
    brokers: Brokers,
    has_batches: bool,
    client: RwLock<Option<Arc<Client>>>,
}

impl Slot {
    fn new(brokers: &Brokers, has_batches: bool) -> Arc<Self> {
        Arc::new(Self { brokers: brokers.clone(), has_batches, client: RwLock::default() })
    }

    fn client(&self) -> Result<Arc<Client>, SetupError> {
        if let Some(client) = &*self.client.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(client));
        }
        let mut slot = self.client.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*slot {
            return Ok(Arc::clone(client));
        }
        let made = client(&self.brokers, self.has_batches)?;
        Ok(Arc::clone(slot.insert(Arc::new(made))))
    }

    /// Has the next one make another client in the place of this one.
    fn give_up(&self, client: &Arc<Client>) {
        let mut slot = self.client.write().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have replaced it already, and the new client is well.
        if !slot.as_ref().is_some_and(|open| Arc::ptr_eq(open, client)) {
            return;
        }
        let Some(old) = slot.take() else { return };
        drop(slot);
        // To close it blocks, and so it is done by nobody who waits for a record.
        leave(move || {
            let until = std::time::Instant::now() + CLOSING;
            while Arc::strong_count(&old) > 1 && std::time::Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        });
    }
}

type Native = ThreadedProducer<Context>;

struct Client {
    producer: Arc<Native>,
    /// `None` where every record is a batch of its own.
    batches: Option<Arc<Batches>>,
    _telling: JoinSet<()>,
}

impl Client {
    /// Gives the client a record, and says where its outcome will be told. `None` while its queue is full.
    fn take(&self, outgoing: &Outgoing<'_>) -> Result<Option<Told>, Unwritten> {
        let Outgoing { operation, topic, partition, .. } = *outgoing;
        let headers = (outgoing.headers)().map_err(Unwritten::Failed)?;
        let (waiting, told) = oneshot::channel();
        let (key, value) = (outgoing.key.cloned(), outgoing.value.cloned());
        let since = std::time::Instant::now();
        let entry = Entry { key, value, headers, waiting, since };
        let batch = self.batches.as_ref().and_then(|batches| batches.of(topic, partition));
        let given = match &batch {
            Some(batch) => batch.add(&self.producer, entry),
            None => {
                give(&self.producer, topic, partition, None, entry).map_err(|refused| refused.error)
            }
        };
        match given {
            Ok(()) => Ok(Some(told)),
            Err(error) if is_full(&error) => Ok(None),
            Err(error) => Err(self.unwritten(operation, topic, error)),
        }
    }

    async fn take_when_there_is_room(&self, outgoing: &Outgoing<'_>) -> Result<Told, Unwritten> {
        let until = Instant::now() + FULL;
        while Instant::now() < until {
            sleep(LOOK).await;
            if let Some(told) = self.take(outgoing)? {
                return Ok(told);
            }
        }
        let full = KafkaError::MessageProduction(Code::QueueFull);
        Err(unwritten(outgoing.operation, outgoing.topic, full))
    }

    /// Returns the reason why a record was not written: the fatal error of the client, if there is one.
    fn unwritten(&self, operation: &'static str, topic: &str, error: KafkaError) -> Unwritten {
        let Some((code, why)) = self.producer.client().fatal_error() else {
            return unwritten(operation, topic, error);
        };
        let (kind, text) = if is_refusal(code) {
            let text = format!(
                "topic `{topic}` may not be written by this user, nor any other; allow `Write` on it ({why})"
            );
            (StoreErrorKind::InvalidConfig, text)
        } else {
            let text = format!("topic `{topic}`: the client has ended, and is made anew ({why})");
            (StoreErrorKind::Unavailable, text)
        };
        Unwritten::Failed(StoreError::new(kind, operation).with_detail(text).with_source(error))
    }

    fn has_ended(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }
}

impl Producer {
    pub(crate) fn new(brokers: &Brokers) -> Result<Self, SetupError> {
        let new = Self::unopened(brokers);
        // What is wrong with the settings shows here.
        new.inner.client()?;
        Ok(new)
    }

    /// A producer that makes its client with the first record.
    pub(crate) fn unopened(brokers: &Brokers) -> Self {
        let (inner, single) = (Slot::new(brokers, true), Slot::new(brokers, false));
        Self { inner, single, brokers: brokers.clone() }
    }

    /// Writes a record, and returns once it is confirmed. Of one that is too large nothing is written.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        match self.send_by(&self.inner, outgoing).await {
            Ok(()) => Ok(()),
            // Boxed: this path is cold, and boxing keeps the hot future small.
            Err(unwritten) => Box::pin(self.send_again(outgoing, unwritten)).await,
        }
    }

    async fn send_again(
        &self,
        outgoing: &Outgoing<'_>,
        unwritten: Unwritten,
    ) -> Result<(), Unwritten> {
        match unwritten {
            // The record may only have shared a batch with large ones, so it is too large for sure once it was sent alone.
            Unwritten::TooLarge => self.send_by(&self.single, outgoing).await,
            Unwritten::Failed(error) if is_missing(&error) => {
                // The topic may be there again, and with fewer partitions; the client is minutes late to see it by itself.
                let Ok(count) = self.partitions(outgoing.topic).await else {
                    return Err(Unwritten::Failed(error));
                };
                // Records of one partition stay together in one that is there.
                let partition = outgoing.partition.map(|partition| partition % count);
                self.send_by(&self.inner, &Outgoing { partition, ..*outgoing }).await
            }
            failed => Err(failed),
        }
    }

    async fn send_by(&self, slot: &Slot, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        let client = slot.client();
        let client =
            client.map_err(|error| Unwritten::Failed(error.for_store(outgoing.operation)))?;
        let sent = self.send_with(&client, outgoing).await;
        // A client with a fatal error refuses everything from then on. The next record gets a new one.
        if sent.is_err() && client.has_ended() {
            slot.give_up(&client);
        }
        sent
    }

    /// Many of these wait at the same time, and so what they keep is small.
    async fn send_with(&self, client: &Client, outgoing: &Outgoing<'_>) -> Result<(), Unwritten> {
        let told = match client.take(outgoing)? {
            Some(told) => told,
            // Boxed: this path is cold, and boxing keeps the hot future small.
            None => Box::pin(client.take_when_there_is_room(outgoing)).await?,
        };
        let told = told.await;
        let Outgoing { operation, topic, .. } = *outgoing;
        match told {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(client.unwritten(operation, topic, error)),
            Err(_) => {
                let text = "the producer was closed before the record was confirmed";
                let failed = StoreError::new(StoreErrorKind::Unavailable, operation);
                Err(Unwritten::Failed(failed.with_detail(text)))
            }
        }
    }

    /// Returns the number of partitions of a topic.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<i32, SetupError> {
        let what = format!("look for topic `{topic}` at {}", self.brokers.bootstrap());
        let (client, name) = (self.inner.client()?, topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = client.producer.client().fetch_metadata(Some(&name), ASKING)?;
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

fn client(brokers: &Brokers, has_batches: bool) -> Result<Client, SetupError> {
    let ours = [
        // A retry inside the client could write a second copy otherwise, or change the order of a partition.
        ("enable.idempotence", "true"),
        ("acks", "all"),
        // What is too large is for the topic to say.
        ("message.max.bytes", "1000000000"),
        ("allow.auto.create.topics", "false"),
    ];
    let single = [("linger.ms", "0"), ("batch.num.messages", "1")];
    let fixed = if has_batches { ours.to_vec() } else { [&ours[..], &single].concat() };
    let defaults = [("delivery.timeout.ms", DELIVERY), ("linger.ms", LINGER)];
    let config = brokers.client(&defaults, &fixed)?;
    let joins = config.get("linger.ms").and_then(|millis| millis.parse::<f64>().ok());
    let joins = joins.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
    let joins = joins.unwrap_or_default();
    let reports = Reports::new();
    let made = config.create_with_context(Context(Arc::clone(&reports)));
    let made: Native = made.map_err(|error| SetupError::answered("make a producer", error))?;
    let (producer, batches) = (Arc::new(made), has_batches.then(|| Arc::new(Batches::new(joins))));
    let mut telling = JoinSet::new();
    telling.spawn(reports.tell(batches.clone(), Arc::downgrade(&producer)));
    Ok(Client { producer, batches, _telling: telling })
}

/// Returns true if the record has no destination, as far as the client knows.
fn is_missing(error: &StoreError) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<KafkaError>());
    error.and_then(KafkaError::rdkafka_error_code).is_some_and(is_gone)
}

fn is_gone(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)
}

fn unwritten(operation: &'static str, topic: &str, error: KafkaError) -> Unwritten {
    let code = error.rdkafka_error_code();
    // The second is of what no segment of the topic can hold.
    if matches!(code, Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)) {
        return Unwritten::TooLarge;
    }
    let kind = match code {
        Some(code) if is_refusal(code) => StoreErrorKind::InvalidConfig,
        // Other topics of these brokers are there.
        Some(code) if is_gone(code) => StoreErrorKind::NotFound,
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
