//! Reads dead letters, whoever wrote them.
//!
//! A dead letter of another system is read as if it were ours: where it was born, whose death it was, what went wrong.
//! [`letter`] never fails. A record that says nothing of how it died, or says it in an unknown way, is a letter too.
//!
//! | Dialect | Told by | Latest | Not known |
//! |---|---|---|---|
//! | `spring`: `DeadLetterPublishingRecoverer` | `kafka_dlt-original-topic`, `-partition` (4 bytes), `-offset` (8 bytes) | last | attempts, unless delivery attempts are on; the group before 2.8 |
//! | `spring-retry`: `@RetryableTopic` | `kafka_original-topic`, `-partition` (4 bytes), `-offset` (8 bytes) | last | deaths before this one; where it stood in between |
//! | `spring-cloud-stream` | `x-original-topic`, `-partition` (4 bytes), `-offset` (8 bytes), `x-exception-fqcn`, as headers or embedded in the payload | last | attempts; the group, unless the topic has its default name |
//! | `connect` | `__connect.errors.topic`, `.partition`, `.offset` | last | attempts; when it died; anything, if context headers are off |
//! | `streams` | `__streams.errors.partition`, `.offset` | last | group, attempts, when it died; the birth, if it failed in a punctuator or behind a repartition topic |
//! | `share-group` | `__dlq.errors.topic`, `.partition`, `.offset`, `.group` | last | attempts (the deliveries are); the producer's headers; the bytes, unless copying is on |
//! | `smallrye` | `dead-letter-topic`, `-partition`, `-offset`, `-reason` | **first** | group, attempts |
//! | `smallrye-retry` | `delayed-retry-topic`, `-partition`, `-offset` | **first**, but the last count | group, deaths before this one |
//! | `karafka` | `source_topic`, `_partition`, `_offset`, `_consumer_group`, `_attempts` | last | the error, deaths before this one |
//! | `wolverine` | `original-destination`, `-partition`, `-offset`, `exception-type` | last | group, deaths before this one |
//! | `silverback` | `x-source-topic`, `-partition`, `-offset`, and `x-failed-attempts` or `x-failure-reason` | last | type of the error, deaths before this one |
//! | `watermill` | the four `…_poisoned` headers | last | partition, offset and key; when it was published; type of the error; attempts |
//! | `masstransit` | `MT-Fault-InputAddress`, `MT-Fault-ExceptionType` | last | partition and offset; when it was published |
//! | `protocol`: our headers without an identity | `original.topic`, `.partition`, `.offset`, and `error.class` or `error.message` | last | what is not said |
//! | `dlq`: ours | `dlq.id` and a binding that fits | last | nothing |
//!
//! Numbers are decimal text but for Spring's. One name alone tells nothing, because producers use such names too: the
//! coordinates must be complete, and of the right form.
//!
//! # What the letter says
//!
//! - **Message**: key and payload byte for byte and the producer's headers, so that a replay sends what the producer
//!   sent. The dialect's own headers tell of the death and are taken out, also those embedded in front of a payload; retry state (`retry_topic-*`,
//!   `delayed-retry-*`, `kafka_deliveryAttempt`) is never left in, since a consumer would go on counting. Spring
//!   decodes a value and encodes it again when only the key could not be decoded, so that its bytes may differ.
//! - **Origin** is the birth: the oldest coordinates. Where it stood last, if elsewhere, is the attribute [`PREVIOUS`].
//! - **Identity** follows from birth and consumer, so that copies of one death are one letter, and a letter that died
//!   again keeps its id; the **generation** counts the coordinates, where a dialect adds some at each death. A letter that we
//!   sent back and that died there again is the same letter too: the replay's headers tell, if they fit its bytes.
//! - **Error**: its type is what the application threw, neither the wrapper around it nor its cause; the causes that a
//!   Java stack trace names follow the message. Its group leaves out object hashes, short ids and dumps of headers. The trace is kept up to [`dlq_core::MAX_TEXT`] bytes.
//! - **Class and reason**: permanent where the bytes could not be decoded, or the system does not retry such an error;
//!   transient and exhausted where it was tried more than once. Else they are not known, and then the letter is
//!   permanent, so that no schedule sends it back by itself.
//! - **Death**: the record's timestamp. Connect and Streams keep that of the record that died, which is older.
//! - What is not known is listed in the attribute [`UNKNOWN`]; see [`Gap`]. Headers of the dialect that have no place
//!   in a letter, and those that cannot be decoded, are attributes under their own names: text as it is, other bytes
//!   escaped, 1 KiB of each.
//!
//! # Several dialects in one record
//!
//! A dead letter of one system can die in another. The dialect that was written last is read. Where one other tells of a
//! death in another topic, that was the death before: the letter was born there, and its generation counts both. Other
//! headers stay with the message. Last is what stands last, except that SmallRye writes in front: what stands at the
//! very front is the latest, unless offsets of one partition say otherwise. Beside a letter of ours SmallRye is taken
//! for the earlier one.

mod attributes;
mod connect;
mod embedded;
mod errors;
mod fields;
mod gap;
mod karafka;
mod masstransit;
mod protocol;
mod replayed;
mod share_group;
mod silverback;
mod smallrye;
mod spring;
mod spring_cloud_stream;
mod story;
mod streams;
#[cfg(test)]
mod tests;
mod values;
mod watermill;
mod wolverine;

pub use gap::{DIALECT, Gap, POINTER, PREVIOUS, UNKNOWN, UNREADABLE_HEADERS};

use std::fmt;
use std::sync::Arc;

use dlq_core::DeadLetter;
use dlq_core::protocol::{is_ours, names};

use crate::client::record::Record;
use crate::client::wire;
use fields::{Fields, Newest};
use story::Story;

/// Library whose headers describe a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// A letter that this crate wrote.
    Dlq,
    /// The header protocol of this crate without an identity.
    Protocol,
    /// Spring Kafka's `DeadLetterPublishingRecoverer`, as behind a `DefaultErrorHandler`.
    Spring,
    /// Spring Kafka's `@RetryableTopic`: its dead letters and its retry records.
    SpringRetry,
    /// The Kafka binder of Spring Cloud Stream.
    SpringCloudStream,
    /// Sinks of Kafka Connect.
    Connect,
    /// Kafka Streams.
    Streams,
    /// Share groups, for which the broker writes.
    ShareGroup,
    /// The dead-letter queue of SmallRye, and with it of Quarkus.
    SmallRye,
    /// Delayed retry of SmallRye: its dead letters and its retry records.
    SmallRyeRetry,
    /// Karafka Pro.
    Karafka,
    /// Wolverine.
    Wolverine,
    /// Silverback.
    Silverback,
    /// Watermill's poison queue.
    Watermill,
    /// MassTransit's faults.
    MassTransit,
}

impl Dialect {
    /// The word for it, as the attribute [`DIALECT`] has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dlq => "dlq",
            Self::Protocol => "protocol",
            Self::Spring => "spring",
            Self::SpringRetry => "spring-retry",
            Self::SpringCloudStream => "spring-cloud-stream",
            Self::Connect => "connect",
            Self::Streams => "streams",
            Self::ShareGroup => "share-group",
            Self::SmallRye => "smallrye",
            Self::SmallRyeRetry => "smallrye-retry",
            Self::Karafka => "karafka",
            Self::Wolverine => "wolverine",
            Self::Silverback => "silverback",
            Self::Watermill => "watermill",
            Self::MassTransit => "masstransit",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The dialect that `record` is read in; `None` if it says nothing of how it died.
#[must_use]
pub fn of(record: &Record) -> Option<Dialect> {
    let opened = embedded::opened(record);
    match read(opened.as_ref().unwrap_or(record), &Arc::from("default")) {
        Told::Ours(_) => Some(Dialect::Dlq),
        Told::Foreign(story) => story.dialect,
    }
}

/// The letter in a record of a dead-letter topic of the cluster called `cluster`. Never fails: of what cannot be
/// understood the bytes are kept, and what is not known stays unknown.
pub fn letter(record: &Record, cluster: &Arc<str>) -> DeadLetter {
    let opened = embedded::opened(record);
    match read(opened.as_ref().unwrap_or(record), cluster) {
        Told::Ours(letter) => *letter,
        Told::Foreign(story) => story.letter(cluster),
    }
}

enum Told<'a> {
    Ours(Box<DeadLetter>),
    Foreign(Box<Story<'a>>),
}

type Reader = (Newest, fn(&[u8]) -> bool, for<'a> fn(Fields<'a>) -> Option<Story<'a>>);

const READERS: [Reader; 14] = [
    (Newest::Last, spring::owns_retried, spring::retried),
    (Newest::Last, spring::owns_recovered, spring::recovered),
    (Newest::Last, connect::owns, connect::read),
    (Newest::Last, streams::owns, streams::read),
    (Newest::Last, share_group::owns, share_group::read),
    (Newest::Last, spring_cloud_stream::owns, spring_cloud_stream::read),
    (Newest::First, smallrye::owns_dead, smallrye::dead),
    (Newest::First, smallrye::owns_retried, smallrye::retried),
    (Newest::Last, karafka::owns, karafka::read),
    (Newest::Last, wolverine::owns, wolverine::read),
    (Newest::Last, silverback::owns, silverback::read),
    (Newest::Last, watermill::owns, watermill::read),
    (Newest::Last, masstransit::owns, masstransit::read),
    (Newest::Last, protocol::owns, protocol::read),
];

fn read<'a>(record: &'a Record, cluster: &Arc<str>) -> Told<'a> {
    let mut latest: Option<Story<'a>> = None;
    let mut earlier: Vec<Story<'a>> = Vec::new();
    for (newest, owns, read) in READERS {
        let Some(story) = read(Fields::new(record, newest, owns)) else { continue };
        if latest.as_ref().is_none_or(|latest| is_later(&story, latest)) {
            earlier.extend(latest.replace(story));
        } else {
            earlier.push(story);
        }
    }
    // A letter of ours that died once more in another system is that system's: its headers stand behind ours, see below.
    if record.headers.get(names::DLQ_ID).is_some()
        && let Some(letter) = wire::letter(record, cluster)
        && latest.as_ref().is_none_or(|latest| !is_later_than_ours(latest))
    {
        return Told::Ours(Box::new(letter));
    }
    let unknown = || Story::new(None, Fields::new(record, Newest::Last, |_| false));
    let latest = latest.unwrap_or_else(unknown);
    // Their order among themselves is not known where there are more, so they stay with the message.
    let before = earlier.pop().filter(|before| earlier.is_empty() && has_followed(&latest, before));
    Told::Foreign(Box::new(match before {
        Some(before) => latest.behind(before),
        None => latest,
    }))
}

/// Returns true if `latest` tells of the death of a dead letter that `earlier` tells of: it had stood elsewhere before.
fn has_followed(latest: &Story<'_>, earlier: &Story<'_>) -> bool {
    let is_own = |story: &Story<'_>| story.dialect == Some(Dialect::Protocol);
    let (Some(birth), Some(died)) = (latest.birth, earlier.newest) else { return false };
    // Our own protocol counts its deaths itself, and the same coordinates in two dialects are one death told twice.
    !is_own(latest) && !is_own(earlier) && birth != died && birth.topic != died.topic
}

/// Returns true if `story` was written after `other`.
fn is_later(story: &Story<'_>, other: &Story<'_>) -> bool {
    // Offsets of one partition are an order in themselves, whatever the places of the headers say.
    if let (Some(a), Some(b)) = (story.newest, other.newest)
        && (a.topic, a.partition) == (b.topic, b.partition)
        && a.offset != b.offset
    {
        return a.offset > b.offset;
    }
    let (a, b) = (story.fields.written(), other.fields.written());
    match (story.fields.newest, other.fields.newest) {
        (Newest::Last, Newest::Last) => a > b,
        (Newest::First, Newest::First) => a < b,
        // What writes in front stands at the very front if it was last. Elsewhere it was pushed back by headers that came
        // later.
        (Newest::First, Newest::Last) => a == Some(0) || a > b,
        (Newest::Last, Newest::First) => b != Some(0) && a > b,
    }
}

/// Returns true if `story` was written after the letter of ours that its record holds.
fn is_later_than_ours(story: &Story<'_>) -> bool {
    let headers = story.fields.record.headers.iter().enumerate();
    let ours = headers.filter(|(_, header)| is_ours(&header.name)).map(|(index, _)| index).last();
    story.fields.newest == Newest::Last && story.fields.written() > ours
}
