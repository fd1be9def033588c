use async_nats::header;
use async_nats::jetstream::message::PublishMessage;
use dlq_core::protocol::{Replay, on_replay};
use dlq_core::{
    Delivery, Escalation, OperationId, RetryLane, StoreError, StoreErrorKind, Timestamp,
};

use super::{NatsLetters, StoredLetter};
use crate::lane::NatsRetryLane;
use crate::names::is_subject;
use crate::publish::unwritable;
use crate::wire;

const REPLAYING: &str = "send a dead letter back";

impl NatsLetters {
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
