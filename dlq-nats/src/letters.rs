use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, header};
use dlq_core::protocol::{Replay, on_replay};
use dlq_core::store::rules::{Arrival, Standing, death_arrives, same_bytes};
use dlq_core::{
    DeadLetter, Delivery, Escalation, Filter, LetterId, OperationId, Reason, RetryLane, StoreError,
    StoreErrorKind, Timestamp,
};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::lane::NatsRetryLane;
use crate::names::is_subject;
use crate::place::Place;
use crate::publish::{Whole, receive, unwritable};
use crate::streams::{DlqStream, find};
use crate::wire;

const READING: &str = "read dead letters";
const REPLAYING: &str = "send a dead letter back";

/// How many letters are fetched at once.
const BATCH: usize = 200;
/// How long the server may take for the next of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the stream of dead letters, and sends letters back.
///
/// A stream only grows: it knows how letters died and not what became of them since, so that every letter is `pending`.
/// Several copies of a death are one letter, of several deaths of a message the latest counts, and the same death with
/// other bytes is a second letter, as in a store. The whole stream is read each time; for work on many letters there are
/// stores.
#[derive(Clone, Debug)]
pub struct NatsLetters {
    context: Context,
    stream: DlqStream,
    key_header: Option<String>,
}

/// A letter and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct StoredLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// Its sequence in the stream.
    pub sequence: u64,
}

impl NatsLetters {
    /// The letters of this stream, which is looked for when it is read.
    #[must_use]
    pub fn new(client: &Client, stream: DlqStream) -> Self {
        Self { context: jetstream::new(client.clone()), stream, key_header: None }
    }

    /// Sets the header that carries the key of a message that is sent to its origin; the same as the
    /// [consumer's](crate::NatsConsumer::with_key_header). Defaults to none.
    #[must_use]
    pub fn with_key_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = Some(name.into());
        self
    }

    /// Every letter that matches, in the order in which they died. What is in the stream and was not written by a
    /// [`NatsSink`](crate::NatsSink) is passed over, with a warning.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream, `Unavailable` when the server does not answer or a part of a letter has
    /// gone.
    pub async fn read(&self, filter: &Filter) -> Result<Vec<StoredLetter>, StoreError> {
        let name = &self.stream.name;
        let info = find(&self.context, name).await.map_err(|error| error.for_store(READING))?;
        let Some(info) = info else {
            let text = format!("there is no stream `{name}`");
            return Err(StoreError::new(StoreErrorKind::NotFound, READING).with_detail(text));
        };
        let last = info.state.last_sequence;
        let mut found: BTreeMap<LetterId, StoredLetter> = BTreeMap::new();
        if info.state.messages > 0 {
            self.scan(last, &mut found).await?;
        }
        let mut letters: Vec<_> =
            found.into_values().filter(|stored| filter.matches(&stored.letter)).collect();
        letters.sort_by_key(|stored| stored.sequence);
        Ok(letters)
    }

    /// Reads up to the sequence `last`.
    async fn scan(
        &self,
        last: u64,
        found: &mut BTreeMap<LetterId, StoredLetter>,
    ) -> Result<(), StoreError> {
        // It is gone soon after the last of them was read.
        let config = pull::Config {
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::None,
            filter_subject: format!("{}.>", self.stream.prefix),
            inactive_threshold: Duration::from_secs(60),
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = self.context.create_consumer_on_stream(config, &self.stream.name).await;
        let consumer = consumer.map_err(|error| unwritable(READING, error))?;
        let mut left = consumer.cached_info().num_pending;
        while left > 0 {
            let batch = consumer.fetch().max_messages(BATCH).messages();
            let mut batch = batch.await.map_err(|error| unwritable(READING, error))?;
            let before = left;
            while let Some(next) =
                timeout(PATIENCE, batch.next()).await.map_err(|error| unwritable(READING, error))?
            {
                let message = next.map_err(|error| unwritable(READING, error))?;
                left = left.saturating_sub(1);
                let place = message.reply.as_ref().and_then(|reply| Place::read(reply));
                let Some(place) = place.filter(|place| place.sequence <= last) else { continue };
                let headers = message.headers.clone().unwrap_or_default();
                let payload = message.payload.clone();
                let read = receive(&self.context, &self.stream.name, &headers, payload).await?;
                match read.and_then(|whole| letter_of(whole, &place)) {
                    Some(letter) => collapse(found, letter, place.sequence),
                    None => tracing::warn!(
                        sequence = place.sequence,
                        subject = %message.subject,
                        "something else than a letter is among the dead letters; it is passed over"
                    ),
                }
            }
            if left == before {
                let text = "the server had more letters and sent none";
                return Err(StoreError::new(StoreErrorKind::Unavailable, READING).with_detail(text));
            }
        }
        Ok(())
    }

    /// Sends a letter back to the subject where it was born, where every consumer hears it. Within the duplicate window
    /// of that stream, sending it for the same operation again changes nothing; `false` says that it was so.
    ///
    /// # Errors
    ///
    /// `Refused` when the letter was not born on NATS, its subject is none, or it has a key and no header is known
    /// [that carries it](Self::with_key_header); `Unavailable` when the server has not confirmed.
    pub async fn send_to_origin(
        &self,
        stored: &StoredLetter,
        operation: OperationId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let letter = &stored.letter;
        let subject = letter.message.subject();
        if letter.origin.transport() != "nats" || !is_subject(subject) {
            let text =
                format!("it was born at {}, on `{subject}`, which is not here", letter.origin);
            return Err(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text));
        }
        let replay = Replay {
            operation,
            count: letter.state.replays.saturating_add(1),
            from: format!("{}@{}", self.stream.name, stored.sequence),
            at: now,
        };
        let mut all = on_replay(letter, &replay);
        if let Some(key) = letter.message.key() {
            let name = self.key_header.as_ref().filter(|_| wire::is_text(key));
            let name = name.ok_or_else(|| {
                let text =
                    "it has a key, and no header is known that carries it; use `with_key_header`";
                StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text)
            })?;
            all.append(name.clone(), key.clone());
        }
        let mut headers = wire::carry(&all);
        headers.insert(header::NATS_EXPECTED_STREAM, letter.origin.stream());
        let message = PublishMessage::build()
            .headers(headers)
            .payload(letter.message.payload().cloned().unwrap_or_default())
            .message_id(format!("replay.{}.{operation}", letter.death()));
        let sent = self.context.send_publish(subject.to_owned(), message).await;
        let ack = sent.map_err(|error| unwritable(REPLAYING, error))?.await;
        let ack = ack.map_err(|error| unwritable(REPLAYING, error))?;
        Ok(!ack.duplicate)
    }

    /// Sends a letter back to the consumer that failed, and to nobody else, by its retry lane. Within the duplicate
    /// window of the lane, sending the same death back again changes nothing.
    ///
    /// # Errors
    ///
    /// When it is not known to be durable.
    pub async fn send_to_handler(
        &self,
        stored: &StoredLetter,
        lane: &NatsRetryLane,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let letter = &stored.letter;
        let mut death = letter.death();
        death.generation = death.generation.saturating_add(1);
        let delivery = Delivery::new(letter.message.clone(), letter.origin.clone())
            .with_consumer(letter.consumer.as_str())
            .with_death(death)
            .with_replays(letter.state.replays.saturating_add(1));
        lane.escalate(Escalation {
            delivery,
            consumer: letter.consumer.as_str().into(),
            due: now,
            history: letter.history.clone(),
            // None yet in this generation.
            attempts: 0,
        })
        .await
    }
}

/// What was written, as a letter.
pub(crate) fn letter_of(whole: Whole, place: &Place) -> Option<DeadLetter> {
    let wire::Unpacked { message, decoded, rest } = whole.read;
    let facts = rest.facts?;
    let mut state = facts.state;
    state.created_at = place.published;
    state.updated_at = place.published;
    if let Some(replays) = decoded.replays {
        state.replays = replays;
    }
    let history = decoded.history.unwrap_or_default();
    let consumer = decoded.consumer?;
    let reason = decoded.reason.unwrap_or(Reason::Manual);
    Some(DeadLetter {
        id: rest.death.letter,
        generation: rest.death.generation,
        message,
        origin: rest.origin,
        consumer,
        service: decoded.service,
        reason,
        class: decoded.class?,
        cause: decoded.cause,
        attempts: decoded.attempts.unwrap_or(0),
        deliveries: facts.deliveries,
        crashes: facts.crashes,
        escalations: decoded.escalations.unwrap_or(0),
        fingerprint: decoded.fingerprint?,
        history,
        died_at: facts.died_at,
        confirmed: facts.confirmed,
        attributes: facts.attributes,
        state,
    })
}

/// Several copies are one letter, the latest death counts, and no bytes are lost.
fn collapse(found: &mut BTreeMap<LetterId, StoredLetter>, mut letter: DeadLetter, sequence: u64) {
    let standing = found.get(&letter.id).map(|there| Standing {
        generation: there.letter.generation,
        is_record: false,
        is_claimed: false,
        attempts: there.letter.attempts,
        has_same_bytes: same_bytes(&there.letter.message, &letter.message),
    });
    match death_arrives(standing, letter.generation) {
        Arrival::Known | Arrival::OutOfDate => {}
        Arrival::New | Arrival::News => {
            found.insert(letter.id, StoredLetter { letter, sequence });
        }
        Arrival::Conflict => {
            letter.id = letter.id.conflicting(&letter.message);
            collapse(found, letter, sequence);
        }
    }
}
