//! A death as a dialect tells it, and the letter that it makes.

use std::collections::BTreeMap;

use bytes::Bytes;
use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Fingerprint, History, Message, Origin,
    Position, Reason, Timestamp, bounded,
};

use super::trace::Thrown;
use super::{DIALECT, Dialect, UNKNOWN};

/// Bytes of a value that an attribute has at most.
const SHOWN: usize = 1024;

/// A death as a dialect tells it. Fields that are not set are unknown, and the letter says so.
#[derive(Debug)]
pub(super) struct Story {
    dialect: Dialect,
    /// The queue by the name that its producers use.
    pub(super) queue: String,
    /// The key by which the library knows the queue: the stream of the letter's origin.
    pub(super) stream: String,
    /// Bytes that tell jobs of a queue apart.
    pub(super) identity: Vec<u8>,
    pub(super) id: Option<String>,
    pub(super) event: Option<String>,
    pub(super) payload: Option<Bytes>,
    pub(super) published_at: Option<Timestamp>,
    pub(super) died_at: Option<Timestamp>,
    pub(super) class: Option<ErrorClass>,
    pub(super) reason: Option<Reason>,
    /// Cause of the last failure, if there was one.
    pub(super) cause: Option<Cause>,
    pub(super) attempts: Option<u32>,
    pub(super) deliveries: u32,
    /// Oldest first.
    pub(super) errors: Vec<Thrown>,
    /// The run of the last of these errors, and its end. Defaults to the last run.
    pub(super) failed_run: Option<(u32, Option<Timestamp>)>,
    attributes: BTreeMap<String, String>,
    unknown: Vec<&'static str>,
}

impl Story {
    pub(super) fn new(
        dialect: Dialect,
        queue: impl Into<String>,
        stream: impl Into<String>,
    ) -> Self {
        Self {
            dialect,
            queue: queue.into(),
            stream: stream.into(),
            identity: Vec::new(),
            id: None,
            event: None,
            payload: None,
            published_at: None,
            died_at: None,
            class: None,
            reason: None,
            cause: None,
            attempts: None,
            deliveries: 0,
            errors: Vec::new(),
            failed_run: None,
            attributes: BTreeMap::new(),
            unknown: Vec::new(),
        }
    }

    /// Keeps a value that a letter has no place for, cut to 1 KiB. What is no text is written as hexadecimal digits.
    pub(super) fn keep(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        if value.is_empty() {
            return;
        }
        let text = match std::str::from_utf8(value) {
            Ok(text) => {
                let cut = (0..=SHOWN.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
                text[..cut.unwrap_or(0)].to_owned()
            }
            // Half as many bytes, since each is two digits.
            Err(_) => hex(&value[..value.len().min(SHOWN / 2)]),
        };
        self.attributes.insert(format!("{}.{name}", self.dialect), text);
    }

    /// Notes something that this entry does not say, besides what is seen by the fields.
    pub(super) fn lacks(&mut self, what: &'static str) {
        self.unknown.push(what);
    }

    /// Makes the letter.
    pub(super) fn letter(mut self) -> DeadLetter {
        let gaps = [
            (self.class.is_none(), "class"),
            (self.reason.is_none(), "reason"),
            (self.attempts.is_none(), "attempts"),
            (self.died_at.is_none(), "died-at"),
            (self.cause.is_none(), "cause"),
        ];
        self.unknown.extend(gaps.iter().filter(|(is_gap, _)| *is_gap).map(|(_, name)| *name));
        self.unknown.sort_unstable();
        self.attributes.insert(DIALECT.to_owned(), self.dialect.as_str().to_owned());
        if !self.unknown.is_empty() {
            self.attributes.insert(UNKNOWN.to_owned(), self.unknown.join(","));
        }
        // Ids of these libraries are texts, and an origin has two numbers for a place.
        let position = position(&self.identity);
        let origin = Origin::new(self.dialect.as_str(), self.stream.as_str(), position);
        let died_at = self.died_at.unwrap_or(Timestamp::EPOCH);
        // No schedule sends anything back of which nothing is known.
        let class = self.class.unwrap_or(ErrorClass::Permanent);
        let reason = self.reason.unwrap_or(Reason::Manual);
        let history = self.history(class, died_at);
        let fingerprint = Fingerprint::of(&self.queue, reason, history.last());
        let mut message = Message::tombstone(self.queue.as_str()).with_payload(self.payload);
        if let Some(id) = self.id {
            message = message.with_id(id);
        }
        if let Some(event) = self.event {
            message = message.with_event(event);
        }
        if let Some(at) = self.published_at {
            message = message.with_published_at(at);
        }
        let mut letter = DeadLetter::new(message, origin, self.queue, reason);
        letter.class = class;
        letter.cause = self.cause;
        letter.fingerprint = fingerprint;
        letter.history = history;
        letter.attempts = self.attempts.unwrap_or(0);
        letter.deliveries = self.deliveries;
        letter.died_at = died_at;
        letter.attributes = self.attributes;
        letter.state = born(died_at);
        letter
    }

    /// The errors, each as an attempt; the last one is that of the death.
    fn history(&self, class: ErrorClass, died_at: Timestamp) -> History {
        let mut history = History::new();
        let count = u32::try_from(self.errors.len()).unwrap_or(u32::MAX);
        let (run, ended) = self.failed_run.unwrap_or((self.attempts.unwrap_or(count), None));
        // The runs are counted back from the last error: libraries keep the newest errors only.
        let last = run.max(count);
        for (index, error) in (0_u32..).zip(&self.errors) {
            let is_last = index + 1 == count;
            let cause = self.cause.filter(|_| is_last).unwrap_or(Cause::Error);
            let mut failure = Failure::new(class, cause, &*error.class, &error.message);
            failure.backtrace = error.trace.as_deref().map(bounded);
            if is_last {
                failure.at = ended.unwrap_or(died_at);
            }
            history.push(Attempt { number: last - (count - 1 - index), generation: 0, failure });
        }
        history
    }
}

/// The place of a job in its queue: a hash of what identifies it, in two halves.
pub(super) fn position(identity: &[u8]) -> Position {
    let hash = blake3::hash(identity);
    let mut halves = hash
        .as_bytes()
        .chunks_exact(8)
        .map(|half| half.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)));
    Position::Pair(halves.next().unwrap_or(0), halves.next().unwrap_or(0))
}

/// Writes bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A number of milliseconds since 1970, as text.
pub(super) fn millis(text: &[u8]) -> Option<Timestamp> {
    let millis: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // Later times do not fit into nanoseconds.
    (0..i64::MAX / 1_000_000).contains(&millis).then(|| Timestamp::from_millis(millis))
}
