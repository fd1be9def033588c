use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::text::unescape;
use super::{KEPT, is_ours, names};
use crate::{
    Addressee, Binding, BindingKey, Cause, Death, Delivery, ErrorClass, Fingerprint, Header,
    Headers, History, LetterId, Message, OperationId, Origin, Position, Reason, Timestamp,
};

/// Where a message was born, as its headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    /// Stream or topic.
    pub topic: Option<String>,
    /// Partition.
    pub partition: Option<u32>,
    /// Position.
    pub offset: Option<Position>,
    /// Publish time.
    pub timestamp: Option<Timestamp>,
}

/// What our headers on a message say. Absent and unreadable headers are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// `dlq.version`.
    pub version: Option<String>,
    /// `error.class`.
    pub class: Option<ErrorClass>,
    /// `error.reason`.
    pub reason: Option<Reason>,
    /// `error.cause`.
    pub cause: Option<Cause>,
    /// `error.type`.
    pub error_type: Option<String>,
    /// `error.message`.
    pub message: Option<String>,
    /// `error.timestamp`.
    pub error_at: Option<Timestamp>,
    /// `error.fingerprint`.
    pub fingerprint: Option<Fingerprint>,
    /// `error.history`.
    pub history: Option<History>,
    /// `retry.count`.
    pub escalations: Option<u32>,
    /// `retry.attempts`.
    pub attempts: Option<u32>,
    /// `retry.due`.
    pub due: Option<Timestamp>,
    /// `previous.topic`.
    pub previous_topic: Option<String>,
    /// `original.*`.
    pub original: Original,
    /// `dlq.id`. A claim; see [`Decoded::claimed`].
    pub letter: Option<LetterId>,
    /// `dlq.generation`.
    pub generation: Option<u32>,
    /// `dlq.binding`.
    pub binding: Option<Binding>,
    /// `dlq.keyed-binding`.
    pub keyed_binding: Option<Binding>,
    /// `dlq.consumer`.
    pub consumer: Option<String>,
    /// `dlq.service`.
    pub service: Option<String>,
    /// `replay.id`.
    pub operation: Option<OperationId>,
    /// `replay.count`.
    pub replays: Option<u32>,
    /// `replay.from-dlq`.
    pub replayed_from: Option<String>,
    /// `replay.timestamp`.
    pub replayed_at: Option<Timestamp>,
    /// `replay.original-error`.
    pub original_error: Option<String>,
    /// Headers with one of our names that could not be read, byte for byte.
    pub invalid: Vec<Header>,
}

/// An identity that headers claim and that is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The death after which the message was sent back.
    pub death: Death,
    /// The place where the message was born.
    pub origin: Origin,
}

impl Decoded {
    /// The identity that these headers claim for a message of the main lane, if the claim is to be believed for `consumer`
    /// (G2). The message was read at `read_at`.
    ///
    /// Handlers copy headers onto new messages, and producers can forge them. A claim is believed where the binding fits
    /// payload and key of `message`, by the secret too where there is one; where the identity follows from the birth that
    /// is told beside it; and where the message can have died so often. Another consumer's letter is never taken over. Of
    /// a claim that fits the bytes and is not believed the log tells.
    #[must_use]
    pub fn claimed(
        &self,
        message: &Message,
        consumer: &str,
        read_at: &Origin,
        key: Option<&BindingKey>,
    ) -> Option<Claimed> {
        let letter = self.letter.filter(|_| self.consumer.as_deref() == Some(consumer))?;
        if !self.is_bound(message) {
            return None;
        }
        let believed = self.judged(letter, message, consumer, read_at, key);
        believed.map_err(|why| doubted(letter, consumer, read_at, why)).ok()
    }

    fn judged(
        &self,
        letter: LetterId,
        message: &Message,
        consumer: &str,
        read_at: &Origin,
        key: Option<&BindingKey>,
    ) -> Result<Claimed, &'static str> {
        let generation = self.generation.ok_or("it has no generation that can be read")?;
        if self.is_absurd() {
            return Err("no message dies so often");
        }
        let death = Death { letter, generation };
        if let Some(key) = key {
            let is_bound = |binding| key.fits(&binding, &death, message);
            if !self.keyed_binding.is_some_and(is_bound) {
                return Err(
                    "it is not bound by the secret of this consumer; give who sends letters \
                            back the same one",
                );
            }
        }
        let born = &self.original;
        let place = born.topic.as_deref().zip(born.offset);
        let (stream, position) = place.ok_or("it does not say where it was born")?;
        let mut origin = Origin::new(read_at.transport(), stream, position);
        origin = origin.with_cluster(read_at.cluster());
        if let Some(partition) = born.partition {
            origin = origin.with_partition(partition);
        }
        if !letter.follows_from(&origin, born.timestamp, consumer, message) {
            return Err("its identity does not follow from where it says that it was born");
        }
        Ok(Claimed { death, origin })
    }

    /// The same for whoever of `addressee` a message of the main lane is for.
    #[must_use]
    pub fn claimed_of(
        &self,
        delivery: &Delivery,
        addressee: &Addressee,
        key: Option<&BindingKey>,
    ) -> Option<Claimed> {
        let name = self.consumer.as_deref().filter(|_| self.letter.is_some())?;
        if !addressee.is_own(name, delivery) {
            return None;
        }
        self.claimed(delivery.message(), name, delivery.origin(), key)
    }

    /// True if the identity that they claim was written for payload and key of this message, or by whoever forged it.
    #[must_use]
    pub fn is_bound(&self, message: &Message) -> bool {
        self.letter.is_some_and(|letter| self.binding == Some(Binding::of(&letter, message)))
    }

    /// True if they claim more deaths than any message has, so that their identity is believed on no lane.
    #[must_use]
    pub fn is_absurd(&self) -> bool {
        self.generation.is_some_and(|generation| generation >= Death::MAX_GENERATION)
    }
}

/// Tells of a claim that is not believed, once a minute: somebody may send them by the thousand.
fn doubted(letter: LetterId, consumer: &str, read_at: &Origin, why: &str) {
    const PAUSE: Duration = Duration::from_secs(60);
    static TOLD: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let untold = match &mut *told {
        Some((at, untold)) if at.elapsed() < PAUSE => {
            *untold += 1;
            return;
        }
        told => told.replace((Instant::now(), 0)).map_or(0, |(_, untold)| untold),
    };
    tracing::warn!(
        %letter, consumer, origin = %read_at, untold,
        "a message claims the identity of a letter and is not believed, so that it is handled as a new one: {why}"
    );
}

/// Separates the producer's headers from ours, and reads ours. Never fails.
///
/// Where one of our names occurs more than once the last one counts: it was written last.
#[must_use]
pub fn split(headers: &Headers) -> (Headers, Decoded) {
    let each = headers.iter().map(|header| (&*header.name, header.value.as_deref(), header));
    separate(each, Header::clone)
}

/// The same of headers that somebody else holds: of those that are not ours copies are made.
#[must_use]
pub fn split_text<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> (Headers, Decoded) {
    let each = headers.into_iter().map(|(name, value)| {
        (name.as_bytes(), Some(value.as_bytes()), (name.as_bytes(), value.as_bytes()))
    });
    separate(each, |(name, value)| Header {
        name: Bytes::copy_from_slice(name),
        value: Some(Bytes::copy_from_slice(value)),
    })
}

fn separate<'a, T: Copy>(
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>, T)>,
    own: impl Fn(T) -> Header,
) -> (Headers, Decoded) {
    let mut producers = Headers::new();
    let mut decoded = Decoded::default();
    for (name, value, header) in headers {
        if let Some(name) = name.strip_prefix(KEPT.as_bytes()) {
            let name = Bytes::copy_from_slice(name);
            producers.push(Header { name, ..own(header) });
        } else if !is_ours(name) {
            producers.push(own(header));
        } else if read(&mut decoded, name, value).is_none() {
            decoded.invalid.push(own(header));
        }
    }
    (producers, decoded)
}

/// Reads one header; `None` when it cannot be understood.
fn read(into: &mut Decoded, name: &[u8], value: Option<&[u8]>) -> Option<()> {
    fn word<T: std::str::FromStr>(text: &str, slot: &mut Option<T>) -> Option<()> {
        *slot = Some(text.trim().parse().ok()?);
        Some(())
    }
    fn free(text: &str, slot: &mut Option<String>) -> Option<()> {
        *slot = Some(unescape(text));
        Some(())
    }
    let text = std::str::from_utf8(value?).ok()?;
    match std::str::from_utf8(name).ok()? {
        names::VERSION => free(text, &mut into.version),
        names::ERROR_CLASS => word(text, &mut into.class),
        names::ERROR_REASON => word(text, &mut into.reason),
        names::ERROR_CAUSE => word(text, &mut into.cause),
        names::ERROR_TYPE => free(text, &mut into.error_type),
        names::ERROR_MESSAGE => free(text, &mut into.message),
        names::ERROR_TIMESTAMP => word(text, &mut into.error_at),
        names::ERROR_FINGERPRINT => word(text, &mut into.fingerprint),
        names::ERROR_HISTORY => {
            into.history = Some(serde_json::from_str(text).ok()?);
            Some(())
        }
        names::RETRY_COUNT => word(text, &mut into.escalations),
        names::RETRY_ATTEMPTS => word(text, &mut into.attempts),
        names::RETRY_DUE => word(text, &mut into.due),
        names::PREVIOUS_TOPIC => free(text, &mut into.previous_topic),
        names::ORIGINAL_TOPIC => free(text, &mut into.original.topic),
        names::ORIGINAL_PARTITION => word(text, &mut into.original.partition),
        names::ORIGINAL_OFFSET => word(text, &mut into.original.offset),
        names::ORIGINAL_TIMESTAMP => word(text, &mut into.original.timestamp),
        names::DLQ_ID => word(text, &mut into.letter),
        names::DLQ_GENERATION => word(text, &mut into.generation),
        names::DLQ_BINDING => word(text, &mut into.binding),
        names::DLQ_KEYED_BINDING => word(text, &mut into.keyed_binding),
        names::DLQ_CONSUMER => free(text, &mut into.consumer),
        names::DLQ_SERVICE => free(text, &mut into.service),
        names::REPLAY_ID => word(text, &mut into.operation),
        names::REPLAY_COUNT => word(text, &mut into.replays),
        names::REPLAY_FROM_DLQ => free(text, &mut into.replayed_from),
        names::REPLAY_TIMESTAMP => word(text, &mut into.replayed_at),
        names::REPLAY_ORIGINAL_ERROR => free(text, &mut into.original_error),
        _ => None,
    }
}
