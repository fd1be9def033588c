use std::sync::Arc;

use bytes::Bytes;

use super::text::unescape;
use super::{KEPT, is_ours, names};
use crate::{
    Binding, Cause, Death, ErrorClass, Fingerprint, Header, Headers, History, LetterId,
    OperationId, Origin, Position, Reason, Timestamp,
};

/// Origin of a message according to its headers.
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

impl Original {
    /// Returns the birth as a place at a broker; `None` where stream or position is not told.
    #[must_use]
    pub fn origin(
        &self,
        transport: impl Into<Arc<str>>,
        cluster: impl Into<Arc<str>>,
    ) -> Option<Origin> {
        let origin = Origin::new(transport, self.topic.as_deref()?, self.offset.clone()?);
        let origin = origin.with_cluster(cluster);
        Some(match self.partition {
            Some(partition) => origin.with_partition(partition),
            None => origin,
        })
    }
}

/// Content of our headers on a message. Absent and unreadable headers are `None`.
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
    pub delayed_retries: Option<u32>,
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

impl Decoded {
    /// The death that they name, whether or not it is to be believed.
    #[must_use]
    pub fn death(&self) -> Option<Death> {
        let generation = self.generation.unwrap_or(0);
        self.letter.map(|letter| Death { letter, generation })
    }
}

/// Separates the producer's headers from ours, and reads ours. Never fails.
///
/// Where one of our names occurs more than once the last one counts: it was written last.
#[must_use]
pub fn split(headers: &Headers) -> (Headers, Decoded) {
    split_without(headers, |_| false)
}

/// The same without the headers that a transport writes for itself: they are neither the producer's nor of the protocol.
#[must_use]
pub fn split_without(
    headers: &Headers,
    is_transports: impl Fn(&[u8]) -> bool,
) -> (Headers, Decoded) {
    let others = headers.iter().filter(|header| !is_transports(&header.name));
    separate(others.map(|header| (&*header.name, header.value.as_deref(), header)), Header::clone)
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
        // The prefix is looked for first, since `is_ours` is true for it as well.
        if let Some(name) = name.strip_prefix(KEPT.as_bytes()) {
            // The header gets back the name under which the producer wrote it.
            let name = Bytes::copy_from_slice(name);
            producers.push(Header { name, ..own(header) });
        } else if !is_ours(name) {
            producers.push(own(header));
        } else if read(&mut decoded, name, value).is_none() {
            // A header that cannot be read does not spoil the others, and keeps its bytes (G8).
            decoded.invalid.push(own(header));
        }
    }
    (producers, decoded)
}

/// Reads one header; `None` when it cannot be understood.
fn read(into: &mut Decoded, name: &[u8], value: Option<&[u8]>) -> Option<()> {
    fn word<T: std::str::FromStr>(text: &str, slot: &mut Option<T>) -> Option<()> {
        // The slot is only written by a value that can be read, so an unreadable copy does not hide a readable one.
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
        names::RETRY_COUNT => word(text, &mut into.delayed_retries),
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
