use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, header};
use bytes::Bytes;
use dlq_core::protocol::on_death;
use dlq_core::store::Receipt;
use dlq_core::{Binding, DeadLetter, Sink, StoreError};
use futures_util::future::join_all;

use crate::names::tail;
use crate::publish::{confirmed, oversize, unwritable};
use crate::streams::{self, DlqStream};
use crate::wire::{self, Facts, Rest};

const OPERATION: &str = "write a dead letter";

/// The stream of dead letters: a letter for `orders.created` is published to `dlq.orders.created`.
///
/// # What is on the stream
///
/// The payload, byte for byte; the producer's headers; and those of the [header protocol](dlq_core::protocol). Headers
/// that a server acts upon (`Nats-*`) are carried as `dlq.kept.Nats-*`. A payload that does not fit beside the headers
/// of its letter is written as a message of its own first, to `dlq-body.ID`, and the letter refers to it.
///
/// # One letter per death
///
/// `Nats-Msg-Id` is the death and the binding of its bytes: within the stream's duplicate window the server keeps one
/// copy, and the same death with other bytes is another message. Beyond the window a second copy can be stored; readers
/// take both for one letter. A stream cannot say whether a letter is reopened or out of date, so the receipt is
/// `Stored`, or `Unchanged` for a copy that the server refused.
///
/// # On failure
///
/// [`put`](Sink::put) returns once the server has confirmed every letter. When it does not, nothing may be
/// acknowledged; the letters can be put again. A stream that was deleted is created again.
#[derive(Clone, Debug)]
pub struct NatsSink {
    context: Context,
    stream: DlqStream,
}

impl NatsSink {
    /// Makes sure of the stream.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it exists with other settings, or its subjects belong to another stream; `Unavailable` when
    /// the server does not answer.
    pub async fn open(client: &Client, stream: DlqStream) -> Result<Self, StoreError> {
        let context = jetstream::new(client.clone());
        streams::ensure(&context, &stream.config())
            .await
            .map_err(|error| error.for_store("open the stream of dead letters"))?;
        Ok(Self { context, stream })
    }

    async fn bury(&self, letter: &DeadLetter) -> Result<Receipt, StoreError> {
        let payload = letter.message.payload().cloned().unwrap_or_default();
        match self.write(letter, None, payload).await {
            Err(Failed::TooLarge(_)) => {}
            outcome => return outcome.map_err(|failed| failed.told(letter)),
        }
        let body = self.body(letter).await?;
        self.write(letter, Some(body), Bytes::new()).await.map_err(|failed| failed.told(letter))
    }

    async fn write(
        &self,
        letter: &DeadLetter,
        body: Option<u64>,
        payload: Bytes,
    ) -> Result<Receipt, Failed> {
        let mut rest = Rest::of(&letter.message, &letter.origin, letter.death());
        rest.body = body;
        rest.facts = Some(Facts {
            deliveries: letter.deliveries,
            crashes: letter.crashes,
            died_at: letter.died_at,
            confirmed: letter.confirmed,
            attributes: letter.attributes.clone(),
            state: letter.state.clone(),
        });
        let headers = wire::pack(&on_death(letter), &rest)
            .map_err(|error| Failed::Other(unwritable(OPERATION, error)))?;
        let binding = Binding::of(&letter.id, &letter.message);
        let message = PublishMessage::build()
            .headers(headers)
            .payload(payload)
            .message_id(format!("{}.{binding}", letter.death()));
        let subject = format!("{}.{}", self.stream.prefix, tail(letter.message.subject()));
        let duplicate = self.publish(&subject, message).await?.1;
        Ok(if duplicate { Receipt::Unchanged } else { Receipt::Stored })
    }

    /// Writes the payload on its own, and returns under which sequence it stands.
    async fn body(&self, letter: &DeadLetter) -> Result<u64, StoreError> {
        let binding = Binding::of(&letter.id, &letter.message);
        let payload = letter.message.payload().cloned().unwrap_or_default();
        let message = PublishMessage::build()
            .payload(payload)
            .message_id(format!("body.{}.{binding}", letter.id));
        let subject = format!("{}-body.{}", self.stream.prefix, letter.id);
        match self.publish(&subject, message).await {
            Ok((sequence, _)) => Ok(sequence),
            Err(failed) => Err(failed.told(letter)),
        }
    }

    /// Publishes to our stream and no other: its sequence there, and whether it was there already.
    async fn publish(
        &self,
        subject: &str,
        message: PublishMessage,
    ) -> Result<(u64, bool), Failed> {
        let message = message.header(header::NATS_EXPECTED_STREAM, self.stream.name.as_str());
        let mut written = confirmed(&self.context, subject, &message).await;
        if written.as_ref().is_err_and(|e| e.kind() == PublishErrorKind::StreamNotFound) {
            // Somebody has deleted it.
            streams::ensure(&self.context, &self.stream.config())
                .await
                .map_err(|error| Failed::Other(error.for_store(OPERATION)))?;
            written = confirmed(&self.context, subject, &message).await;
        }
        match written {
            Ok(ack) => Ok((ack.sequence, ack.duplicate)),
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                Err(Failed::TooLarge(error))
            }
            Err(error) => Err(Failed::Other(unwritable(OPERATION, error))),
        }
    }
}

enum Failed {
    TooLarge(async_nats::jetstream::context::PublishError),
    Other(StoreError),
}

impl Failed {
    fn told(self, letter: &DeadLetter) -> StoreError {
        match self {
            Self::TooLarge(error) => oversize(OPERATION, &letter.message, error),
            Self::Other(error) => error,
        }
    }
}

impl Sink for NatsSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        join_all(letters.iter().map(|letter| self.bury(letter))).await.into_iter().collect()
    }
}
