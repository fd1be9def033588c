use std::sync::{Arc, PoisonError, RwLock};

use dlq_core::store::Receipt;
use dlq_core::{DeadLetter, Headers, Message, Sink, StoreError, StoreErrorKind};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::produce::{Outgoing, Producer, Unwritten};
use crate::client::topics::{self, DlqTopic, FoundTopic, WantedTopic, partition_for};
use crate::client::wire::pack_letter;
use crate::consumer::retry_queue::{shortest, too_large, unwritable};
use crate::dead::{GROUP, POINTER};

const OPERATION: &str = "write a dead letter";
const OPENING: &str = "open the topic of dead letters";

/// The topic of dead letters: `<topic>.dlq` unless told otherwise.
///
/// It writes to the topics that it was opened for and to no others, whatever the headers of a message say of where that was
/// born.
///
/// # What is on the topic
///
/// Key and value of the message, byte for byte; the producer's headers; then those of the
/// [header protocol](dlq_core::protocol). The record's timestamp is the time of writing, so that retention counts from the
/// death; the message's own is in `original.timestamp`.
///
/// The sink of a [`KafkaTransport`](crate::KafkaTransport) writes the name of its group into the attribute `kafka.group`, by
/// which a replay finds the handler that failed.
///
/// # One letter per death
///
/// Kafka keeps what it is given. The same death that was written twice, because a process died between writing and
/// settling, is one letter to [`KafkaLetters`](crate::KafkaLetters), by its `dlq.id` and generation.
///
/// # What is too large
///
/// A letter has more headers than its message had. One that its topic does not take is written with its last attempt only;
/// and where that is too large, too, without payload and headers of the message, and at last without its key, which are read
/// from where it was born for as long as they are there.
///
/// # On failure
///
/// [`put`](Sink::put) returns once every replica in sync has every letter. When that is not known, nothing may be
/// acknowledged; the letters can be put again. [`put_each`](Sink::put_each) says of which it is known: a partition that
/// cannot be written to concerns its own letters only, and so does a topic that may not be written, or that has gone: its
/// error is none that passes by itself. A topic that was deleted is created again where missing ones were to be created
/// ([`KafkaTransport::create_missing_topics`](crate::KafkaTransport::create_missing_topics)).
///
/// The commit of a partition waits for a message whose letter is refused. Give the consumer a second place for such letters,
/// a topic of their own or a store: `DeadLetterLayer::parking` of `dlq-tower`.
#[derive(Clone, Debug)]
pub struct KafkaSink {
    producer: Producer,
    topic: DlqTopic,
    /// The topics that it was opened for, with how many partitions they have.
    topics: Arc<RwLock<Vec<FoundTopic>>>,
    /// Settings by which topics that have gone are created again.
    again: Option<Arc<Again>>,
    /// The group of the consumer whose letters it keeps, if it is known.
    group: Option<Arc<str>>,
}

/// Topics that are created again when they have gone.
#[derive(Debug)]
struct Again {
    brokers: Brokers,
    wanted: Vec<WantedTopic>,
    /// Many letters find at once that their topic has gone.
    turn: Mutex<()>,
}

impl KafkaSink {
    /// Makes sure of the topics in which the letters of these topics are kept; creates none. What was born elsewhere is kept
    /// with those of the topic where it was read, or else of the first.
    ///
    /// # Errors
    ///
    /// `NotFound` when one is missing, `InvalidConfig` when one has settings that will not do, `Unavailable` when the
    /// brokers do not answer.
    pub async fn open(
        brokers: &Brokers,
        topic: DlqTopic,
        of: &[String],
    ) -> Result<Self, StoreError> {
        Self::make(brokers, topic, of, false, None).await
    }

    pub(crate) async fn make(
        brokers: &Brokers,
        topic: DlqTopic,
        of: &[String],
        creates: bool,
        group: Option<&str>,
    ) -> Result<Self, StoreError> {
        let wanted: Vec<_> = of.iter().map(|of| topic.wanted(of)).collect();
        let opened = async {
            let found = topics::ensure(brokers, &wanted, creates).await?;
            // Made at once and not with the first letter: a wrong setting is to show when the consumer starts.
            let producer = Producer::new(brokers)?;
            let again = creates.then(|| {
                let (brokers, wanted) = (brokers.clone(), wanted.clone());
                Arc::new(Again { brokers, wanted, turn: Mutex::new(()) })
            });
            Ok(Self {
                producer,
                topic,
                topics: Arc::new(RwLock::new(found)),
                again,
                group: group.map(Arc::from),
            })
        };
        opened.await.map_err(|error: SetupError| error.for_store(OPENING))
    }

    /// The topic in which a letter is kept: that of the topic where it was born, else that of the one where its message
    /// was read, else the first. Where it was born headers can say, which others write.
    fn topic_of(&self, letter: &DeadLetter) -> Result<FoundTopic, StoreError> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let opened = |of: &str| {
            let name = self.topic.name_for(of);
            topics.iter().find(|topic| topic.name == name)
        };
        let found = opened(letter.origin.stream()).or_else(|| opened(letter.message.subject()));
        found.or(topics.first()).cloned().ok_or_else(|| {
            let text = "the sink was opened for no topic; name those whose letters it keeps";
            StoreError::new(StoreErrorKind::InvalidConfig, OPERATION).with_detail(text)
        })
    }

    /// Creates a topic again that has gone, if it is one that is to be created. Returns how many partitions it has.
    async fn create_again(&self, topic: &str) -> Option<i32> {
        let again = self.again.as_ref()?;
        let wanted = again.wanted.iter().find(|wanted| wanted.name == topic)?;
        // Those that had to wait find the topic there: `ensure` looks before it creates.
        let _turn = again.turn.lock().await;
        match topics::ensure(&again.brokers, std::slice::from_ref(wanted), true).await {
            Ok(found) => {
                let partitions = found.first()?.partitions;
                let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
                // It may come back with another number of partitions, by which those of further letters are chosen.
                for known in topics.iter_mut().filter(|known| known.name == topic) {
                    known.partitions = partitions;
                }
                tracing::warn!(topic, "a topic of dead letters had gone; it is created again");
                Some(partitions)
            }
            Err(error) => {
                tracing::error!(topic, %error, "a topic of dead letters has gone, and cannot be created again");
                None
            }
        }
    }

    async fn bury(&self, letter: &DeadLetter) -> Result<Receipt, StoreError> {
        let FoundTopic { name: topic, partitions } = self.topic_of(letter)?;
        match self.bury_in(letter, &topic, partitions).await {
            Err(error) if error.kind() == StoreErrorKind::NotFound => {
                // Boxed: this path is rare, and boxing keeps the future small.
                let Some(partitions) = Box::pin(self.create_again(&topic)).await else {
                    return Err(error);
                };
                Box::pin(self.bury_in(letter, &topic, partitions)).await
            }
            written => written,
        }
    }

    async fn bury_in(
        &self,
        letter: &DeadLetter,
        topic: &str,
        partitions: i32,
    ) -> Result<Receipt, StoreError> {
        let key = letter.message.key();
        // The id of the letter decides where there is no key, so copies of one letter stand in one partition.
        let partition = partition_for(key.map(|key| &key[..]), letter.id.as_bytes(), partitions);
        match self.write(letter, topic, partition).await {
            Err(Unwritten::TooLarge) => {}
            written => return received(written, topic),
        }
        // What tells most about the message goes last: first the older attempts, then what can be read from where it was born.
        let mut short = letter.clone();
        short.history = shortest(&letter.history);
        let written = self.write(&short, topic, partition).await;
        // A letter that was not born in a partition of Kafka has nothing to point to, and is refused as it is.
        let Some(mut pointer) = pointer(short).filter(|_| is_too_large(&written)) else {
            return received(written, topic);
        };
        tracing::warn!(
            death = %letter.death(), topic,
            "a dead letter is too large for its topic; it says where its message stands instead"
        );
        let mut written = self.write(&pointer, topic, partition).await;
        if is_too_large(&written) && pointer.message.key().is_some() {
            // It stands with the message, too.
            pointer.message = without_key(&pointer.message);
            written = self.write(&pointer, topic, partition).await;
        }
        received(written, topic)
    }

    async fn write(
        &self,
        letter: &DeadLetter,
        topic: &str,
        partition: i32,
    ) -> Result<(), Unwritten> {
        let outgoing = Outgoing {
            operation: OPERATION,
            topic,
            partition: Some(partition),
            key: letter.message.key(),
            value: letter.message.payload(),
            headers: &|| {
                let group = self.group.as_deref().map(|group| (GROUP, group));
                pack_letter(letter, group).map_err(|error| unwritable(OPERATION, error))
            },
        };
        self.producer.send(&outgoing).await
    }
}

fn is_too_large(written: &Result<(), Unwritten>) -> bool {
    matches!(written, Err(Unwritten::TooLarge))
}

fn received(written: Result<(), Unwritten>, topic: &str) -> Result<Receipt, StoreError> {
    match written {
        Ok(()) => Ok(Receipt::Stored),
        Err(Unwritten::Failed(error)) => Err(error),
        Err(Unwritten::TooLarge) => Err(too_large(OPERATION, topic, StoreErrorKind::Refused)),
    }
}

/// The letter without payload and headers of its message, where they can be read from a topic of this cluster.
fn pointer(mut letter: DeadLetter) -> Option<DeadLetter> {
    let origin = &letter.origin;
    let partition = origin.partition().filter(|_| origin.transport() == "kafka")?;
    let place = format!("{}/{partition}/{}", origin.stream(), origin.position());
    letter.attributes.insert(POINTER.to_owned(), place);
    letter.message = letter.message.with_payload(None).with_headers(Headers::new());
    Some(letter)
}

/// Returns a message without key, payload and headers.
fn without_key(message: &Message) -> Message {
    let mut rest = Message::tombstone(Arc::clone(message.subject_shared()));
    if let Some(id) = message.id() {
        rest = rest.with_id(id);
    }
    if let Some(event) = message.event() {
        rest = rest.with_event(event);
    }
    match message.published_at() {
        Some(at) => rest.with_published_at(at),
        None => rest,
    }
}

impl Sink for KafkaSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.put_each(letters).await?.into_iter().collect()
    }

    async fn put_each(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<Vec<Result<Receipt, StoreError>>, StoreError> {
        // Each has its own confirmation: a partition that is away fails its own letters only (G1).
        Ok(join_all(letters.iter().map(|letter| self.bury(letter))).await)
    }

    /// 8: a letter waits for its own answer and not for those of a batch, which counts where the broker is far away. More of them
    /// would make batches so small that they cost more than they save.
    fn writers(&self) -> usize {
        8
    }
}
