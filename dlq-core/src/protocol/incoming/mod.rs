//! Messages and retry records on their way in: the decisions that every transport makes on their headers.

mod belief;

use std::sync::Arc;

pub use belief::Claimed;

use super::{Decoded, names};
use crate::{Addressee, BindingKey, Death, DeliveredFrom, Delivery, Headers, Message, Origin};

/// Turns what one consumer received into deliveries.
///
/// A transport says how headers are spelled on its wire and where a message stands. What is believed of them, and what
/// they make of a delivery, is decided here.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The handlers that the deliveries are for.
    pub addressee: Addressee,
    /// The secret by which letters are sent back to the source, if there is one.
    pub key: Option<BindingKey>,
    /// The header with the producer's id of a message; `None` where the broker itself keeps that.
    pub id_header: Option<Arc<str>>,
    /// The header with the type of the event that a message reports; `None` likewise.
    pub event_header: Option<Arc<str>>,
}

impl Incoming {
    /// Reads for these handlers, without a secret and without headers that name anything.
    #[must_use]
    pub fn new(addressee: Addressee) -> Self {
        Self { addressee, key: None, id_header: None, event_header: None }
    }

    /// Makes the delivery of a message of the main stream, which was read at `stands` with all its headers.
    ///
    /// A message that claims to be a letter is taken for one where the [claim](Decoded::claimed) is believed. It is then as
    /// its producer sent it, and was born where its headers say. `split` parts the producer's headers from ours; it is
    /// called only where there is a claim.
    pub fn message(
        &self,
        message: Message,
        stands: Origin,
        split: impl FnOnce(&Headers) -> (Headers, Decoded),
    ) -> Delivery {
        let message = self.named(message);
        let read = Delivery::to(Arc::clone(self.addressee.name()), message, stands);
        let headers = read.message().headers();
        // Hardly any message claims to be a letter, and to split its headers is to copy them.
        if !headers.iter().any(|header| header.name == names::DLQ_ID) {
            return read;
        }
        let (producers, decoded) = split(headers);
        let Some(Claimed { death, origin }) = self.believed(&decoded, &read) else { return read };
        // From here on the message has the headers and the publish time that its producer gave it, so that its identity still
        // follows from its birth when it is sent back once more.
        let mut message = read.message().clone().with_headers(producers);
        if let Some(at) = decoded.original.timestamp {
            message = message.with_published_at(at);
        }
        // Id and event are read once more, because the headers are the producer's own now.
        Delivery::to(Arc::clone(self.addressee.name()), self.named(message), origin)
            // The claim names the last death, and a failure of this delivery would be the next one.
            .with_death(death.next())
            .with_replays(decoded.replays.unwrap_or(0))
    }

    /// The claim of `read`, if it is believed for the handler that the message is for.
    fn believed(&self, decoded: &Decoded, read: &Delivery) -> Option<Claimed> {
        let consumer = decoded.consumer.as_deref().filter(|_| decoded.letter.is_some())?;
        if !self.addressee.is_own(consumer, read) {
            return None;
        }
        decoded.claimed(read.message(), consumer, read.origin(), self.key.as_ref())
    }

    /// The message with the id and the type of event that its headers say, where they do.
    fn named(&self, message: Message) -> Message {
        message.named_by(self.id_header.as_deref(), self.event_header.as_deref())
    }

    /// Makes the delivery of a retry record.
    ///
    /// Only we write to a retry stage, so that its record is believed without a binding. One that claims more deaths than
    /// any message has was written by somebody else: it is handled as a message of its own, which was born where it
    /// `stands`.
    pub fn record(&self, record: RetryRecord, stands: impl FnOnce() -> Origin) -> Delivery {
        let RetryRecord { message, decoded, mut origin, mut death, stage } = record;
        let is_absurd = |death: Death| death.generation > Death::MAX_GENERATION;
        if decoded.is_absurd() || death.is_some_and(is_absurd) {
            (origin, death) = (stands(), None);
            tracing::warn!(
                %origin, generation = decoded.generation,
                "a retry record claims more deaths than any message has, and is handled as a message of its own"
            );
        }
        // The handler that failed is the one to run it again, so the delivery goes by its name.
        let failed = decoded.consumer.map(Arc::from);
        let consumer = failed.unwrap_or_else(|| Arc::clone(self.addressee.name()));
        let delivery = Delivery::to(consumer, message, origin)
            .with_delivered_from(DeliveredFrom::Retry)
            .with_previous(stage)
            .with_history(decoded.history.unwrap_or_default())
            // Attempts go on where the record left off (G3). It has been delayed at least once, whatever its headers lack.
            .with_attempt(decoded.attempts.unwrap_or(0).saturating_add(1))
            .with_delayed_retries(decoded.delayed_retries.unwrap_or(1))
            .with_replays(decoded.replays.unwrap_or(0));
        match death {
            Some(death) => delivery.with_death(death),
            None => delivery,
        }
    }
}

/// A retry record as its transport has read it.
#[derive(Clone, Debug)]
pub struct RetryRecord {
    /// The message as its producer sent it.
    pub message: Message,
    /// The content of our headers.
    pub decoded: Decoded,
    /// The place where the message was born.
    pub origin: Origin,
    /// The death that a failure of this delivery would be, where the record names one.
    pub death: Option<Death>,
    /// The topic or subject that it was read from.
    pub stage: Arc<str>,
}
