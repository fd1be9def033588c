//! The header protocol: what we write onto messages of our retry stages, onto dead letters in a broker, and onto
//! replayed messages. One protocol on every transport, in one [`TABLE`], versioned by `dlq.version`.
//!
//! Writing never touches the producer's part: key, payload and every header of the producer stay as they were. A
//! producer's header that happens to have one of our names is carried under the prefix [`KEPT`] and comes back under
//! its own name when the message is read. Our headers replace those of the stage before, so they do not grow from
//! cycle to cycle.
//!
//! Reading is total: whatever the bytes are, [`split`] returns. What cannot be understood is listed in
//! [`Decoded::invalid`], byte for byte.
//!
//! Values are UTF-8 text without control characters: line breaks and the like in error texts are written as `\n`, so
//! that no error text can break a header of a line-based protocol.

mod decode;
mod encode;
mod facts;
mod incoming;
mod text;

pub use decode::{Decoded, Original, split, split_text, split_without};
pub use encode::{
    Ours, Replay, of_death, of_delayed_retry, of_replay, of_replay_to_handler, on_death,
    on_delayed_retry, on_replay, on_replay_to_handler, producers,
};
pub use facts::Facts;
pub use incoming::{Claimed, Incoming, RetryRecord};

/// The version of the protocol that this crate writes.
pub const VERSION: &str = "1";

/// Prefix under which a producer's header is carried whose name is one of ours.
pub const KEPT: &str = "dlq.kept.";

/// When a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// At every stage: delayed retry and death.
    EachStage,
    /// At a delayed retry only.
    DelayedRetry,
    /// At the first stage; never changed afterwards, replay included.
    First,
    /// On death.
    Death,
    /// On replay.
    Replay,
    /// Whenever any of the others is written.
    Always,
}

/// A header of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// When it is written.
    pub when: When,
    /// Meaning of the header.
    pub meaning: &'static str,
}

macro_rules! table {
    ($($const:ident = $name:literal, $when:ident, $meaning:literal;)+) => {
        /// The names, as constants.
        pub mod names {
            $(#[doc = $meaning] pub const $const: &str = $name;)+
        }

        /// Every header of the protocol.
        pub const TABLE: &[Field] = &[$(Field { name: $name, when: When::$when, meaning: $meaning }),+];

        /// The name of one of these headers, where `name` is one.
        #[must_use]
        pub fn known(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some($name),)+
                _ => None,
            }
        }
    };
}

table! {
    VERSION = "dlq.version", Always, "The version of this protocol.";
    ERROR_CLASS = "error.class", EachStage, "`transient` or `permanent`.";
    ERROR_REASON = "error.reason", EachStage, "Why we gave up; absent while it is being retried.";
    ERROR_CAUSE = "error.cause", EachStage, "What went wrong in the last attempt.";
    ERROR_TYPE = "error.type", EachStage, "The type of the latest error.";
    ERROR_MESSAGE = "error.message", EachStage, "The latest error and its sources in one line, bounded.";
    ERROR_TIMESTAMP = "error.timestamp", EachStage, "When the latest attempt ended: RFC 3339, UTC, nanoseconds.";
    ERROR_FINGERPRINT = "error.fingerprint", EachStage, "The group of errors it belongs to.";
    ERROR_HISTORY = "error.history", EachStage, "Every attempt so far as JSON, bounded; the middle is dropped first.";
    RETRY_COUNT = "retry.count", EachStage, "Delayed retries so far: 0, 1, 2, …";
    RETRY_ATTEMPTS = "retry.attempts", EachStage, "Handler runs so far in this generation.";
    RETRY_DUE = "retry.due", DelayedRetry, "When the next attempt may run: RFC 3339, UTC.";
    PREVIOUS_TOPIC = "previous.topic", EachStage, "The topic or subject it came from: on a letter, the last retry stage it was in.";
    ORIGINAL_TOPIC = "original.topic", First, "The stream or topic where the message was born.";
    ORIGINAL_PARTITION = "original.partition", First, "The partition where it was born.";
    ORIGINAL_OFFSET = "original.offset", First, "The position at which it was born.";
    ORIGINAL_TIMESTAMP = "original.timestamp", First, "When it was published: RFC 3339, UTC, nanoseconds.";
    DLQ_ID = "dlq.id", Death, "The identity of the letter.";
    DLQ_GENERATION = "dlq.generation", Death, "Deaths before this one.";
    DLQ_BINDING = "dlq.binding", Death, "Ties the identity to payload and key.";
    DLQ_KEYED_BINDING = "dlq.keyed-binding", Replay, "The same by a secret, where one is configured.";
    DLQ_CONSUMER = "dlq.consumer", EachStage, "Whose death it was, or whose retry record it is.";
    DLQ_SERVICE = "dlq.service", Death, "The program that wrote the letter.";
    REPLAY_ID = "replay.id", Replay, "The operation that sent it back.";
    REPLAY_COUNT = "replay.count", Replay, "How often it has been sent back.";
    REPLAY_FROM_DLQ = "replay.from-dlq", Replay, "Its coordinates in the dead letters.";
    REPLAY_TIMESTAMP = "replay.timestamp", Replay, "When it was sent back: RFC 3339, UTC.";
    REPLAY_ORIGINAL_ERROR = "replay.original-error", Replay, "Why it had died, bounded.";
}

/// Returns true if a header of this name belongs to the protocol.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    name.starts_with(KEPT.as_bytes())
        || std::str::from_utf8(name).is_ok_and(|name| known(name).is_some())
}
