//! What a dialect says of a death, and the letter that it makes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Fingerprint, History, LetterId, Message,
    Origin, Position, Reason, Timestamp, bounded,
};

use super::Dialect;
use super::errors::{Error, without_identities};
use super::fields::{Fields, Hops, Place};
use crate::wire::REST;

/// Something that a dialect does not say, although a [`DeadLetter`] has a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gap {
    /// The topic it was born in: the subject is the topic of the dead letters.
    Topic,
    /// The partition and offset it was born at: the origin is where the dead letter stands.
    Origin,
    /// Whose death it was: the consumer is empty.
    Consumer,
    /// Whether another attempt could have succeeded: the class is permanent, so that no schedule sends it back.
    Class,
    /// Why it was given up: the reason is manual.
    Reason,
    /// How often the handler ran: the attempts are 0.
    Attempts,
    /// When it died: the time is that of the record, which can be older.
    DiedAt,
    /// The bytes: the letter points to where they are, or were. See [`POINTER`].
    Payload,
}

impl Gap {
    /// The word for it in [`UNKNOWN`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Origin => "origin",
            Self::Consumer => "consumer",
            Self::Class => "class",
            Self::Reason => "reason",
            Self::Attempts => "attempts",
            Self::DiedAt => "died-at",
            Self::Payload => "payload",
        }
    }

    /// Whether `letter` lacks it. Letters that this crate wrote lack nothing.
    #[must_use]
    pub fn is_in(self, letter: &DeadLetter) -> bool {
        let unknown = letter.attributes.get(UNKNOWN);
        unknown.is_some_and(|words| words.split(',').any(|word| word == self.as_str()))
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The attribute with the name of the dialect.
pub const DIALECT: &str = "dlq.dialect";
/// The attribute with what is not known of a letter: the words of [`Gap`], joined by commas.
pub const UNKNOWN: &str = "dlq.unknown";
/// The attribute with the place of the record that a letter without a copy stands for: `topic/partition/offset`.
pub const POINTER: &str = "kafka.pointer";
/// The attribute with the place where it stood before its latest death, if it was born elsewhere:
/// `topic/partition/offset`.
pub const PREVIOUS: &str = "kafka.previous";
/// The attribute with the number of headers whose names are not UTF-8, which the client does not give out.
pub const UNREADABLE_HEADERS: &str = "kafka.unreadable-headers";

/// How much of a header is kept in an attribute, in bytes.
const MAX_ATTRIBUTE: usize = 1024;

/// What a dialect says of a death.
pub(super) struct Story<'a> {
    pub(super) dialect: Option<Dialect>,
    pub(super) fields: Fields<'a>,
    pub(super) birth: Option<Place<'a>>,
    /// Where it stood before its latest death.
    pub(super) newest: Option<Place<'a>>,
    /// The topic it was born in, where the place in it is not known.
    pub(super) topic: Option<&'a str>,
    pub(super) generation: u32,
    /// When it was published, as a header says that always stands there.
    pub(super) published_at: Option<Timestamp>,
    /// Whether the timestamp of the record is still that of the record that died.
    pub(super) keeps_time: bool,
    pub(super) consumer: Option<&'a str>,
    /// Oldest first: one for each death, or for each attempt.
    pub(super) errors: Vec<Error<'a>>,
    pub(super) failed_at: Option<Timestamp>,
    pub(super) cause: Option<Cause>,
    pub(super) verdict: Option<(ErrorClass, Reason)>,
    pub(super) attempts: Option<u32>,
    pub(super) deliveries: u32,
    pub(super) is_pointer: bool,
    /// What our own protocol says besides.
    pub(super) told: Option<Told>,
}

/// What our own protocol says, and no other dialect.
pub(super) struct Told {
    pub(super) message: Message,
    pub(super) history: Option<History>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) escalations: Option<u32>,
    pub(super) service: Option<String>,
}

impl<'a> Story<'a> {
    /// A story of which nothing is known but the dialect.
    pub(super) fn new(dialect: Option<Dialect>, fields: Fields<'a>) -> Self {
        Self {
            dialect,
            fields,
            birth: None,
            newest: None,
            topic: None,
            generation: 0,
            published_at: None,
            keeps_time: false,
            consumer: None,
            errors: Vec::new(),
            failed_at: None,
            cause: None,
            verdict: None,
            attempts: None,
            deliveries: 0,
            is_pointer: false,
            told: None,
        }
    }

    /// Sets where it was born and last stood.
    pub(super) fn at(mut self, hops: &Hops<'a>) -> Self {
        self.birth = Some(hops.birth());
        self.newest = Some(hops.newest());
        self
    }

    /// The letter.
    pub(super) fn letter(self, cluster: &Arc<str>) -> DeadLetter {
        let record = self.fields.record;
        let died_at = record.timestamp.unwrap_or(Timestamp::EPOCH);
        let (class, reason, is_judged) = self.judgement();
        let origin = self.origin(cluster);
        let consumer = self.consumer.unwrap_or_default();
        // A record that is not known to have moved was published where it stands.
        let identified_by = if self.birth.is_some() { self.published_at } else { record.timestamp };
        let told = self.told.as_ref();
        let history = told.and_then(|told| told.history.clone());
        let history = history.unwrap_or_else(|| self.history(class, died_at));
        let fingerprint = told.and_then(|told| told.fingerprint);
        DeadLetter {
            id: LetterId::of(&origin, identified_by, consumer),
            generation: self.generation,
            message: self.message(),
            origin,
            consumer: consumer.to_owned(),
            service: told.and_then(|told| told.service.clone()),
            reason,
            class,
            cause: (!history.is_empty()).then(|| self.cause()),
            fingerprint: fingerprint.unwrap_or_else(|| group(consumer, reason, &history)),
            history,
            attempts: self.attempts.unwrap_or(0),
            deliveries: self.deliveries,
            crashes: 0,
            escalations: told.and_then(|told| told.escalations).unwrap_or(0),
            died_at,
            confirmed: true,
            attributes: self.attributes(is_judged),
            state: born(died_at),
        }
    }

    fn cause(&self) -> Cause {
        let is_decode = self.errors.last().is_some_and(Error::is_decode);
        self.cause.unwrap_or(if is_decode { Cause::Decode } else { Cause::Error })
    }

    /// Class and reason, and whether anything speaks for them.
    fn judgement(&self) -> (ErrorClass, Reason, bool) {
        if let Some((class, reason)) = self.verdict {
            return (class, reason, true);
        }
        if self.cause() == Cause::Decode {
            return (ErrorClass::Permanent, Reason::Permanent, true);
        }
        // It was worth another attempt at least once.
        if self.attempts.is_some_and(|attempts| attempts > 1) {
            return (ErrorClass::Transient, Reason::Exhausted, true);
        }
        (ErrorClass::Permanent, Reason::Manual, false)
    }

    fn origin(&self, cluster: &Arc<str>) -> Origin {
        let Some(birth) = self.birth else { return self.fields.record.origin(cluster) };
        Origin::new("kafka", birth.topic, Position::Offset(birth.offset))
            .with_cluster(Arc::clone(cluster))
            .with_partition(birth.partition)
    }

    fn message(&self) -> Message {
        if let Some(told) = &self.told {
            return told.message.clone();
        }
        let record = self.fields.record;
        let topic = self.birth.map(|birth| birth.topic).or(self.topic);
        let subject = topic.map_or_else(|| Arc::clone(&record.topic), Arc::from);
        let mut message = Message::tombstone(subject)
            .with_payload(record.value.clone())
            .with_headers(self.fields.producers(is_state));
        if let Some(key) = &record.key {
            message = message.with_key(key.clone());
        }
        let has_moved = self.birth.is_some() && !(self.keeps_time && self.generation == 0);
        let record_time = record.timestamp.filter(|_| !has_moved);
        if let Some(at) = self.published_at.or(record_time) {
            message = message.with_published_at(at);
        }
        message
    }

    fn history(&self, class: ErrorClass, died_at: Timestamp) -> History {
        let mut history = History::new();
        let count = self.errors.len();
        let by_death = count == self.generation as usize + 1;
        let skipped = if by_death || self.generation == 0 { 0 } else { count.saturating_sub(1) };
        for (index, error) in self.errors.iter().enumerate().skip(skipped) {
            let is_last = index + 1 == count;
            let cause = if error.is_decode() { Cause::Decode } else { Cause::Error };
            let mut failure = Failure::new(class, cause, error.error_type, "");
            failure.messages = error.messages.clone();
            if failure.messages.is_empty() {
                failure.messages.push(bounded(error.error_type));
            }
            if is_last {
                failure.cause = self.cause();
                failure.at = self.failed_at.unwrap_or(died_at);
                failure.backtrace = error.trace.map(bounded);
            }
            let place = u32::try_from(index).unwrap_or(u32::MAX);
            let (generation, number) = match (by_death, is_last) {
                (true, false) => (place, 1),
                (true, true) => (self.generation, self.attempts.unwrap_or(1).max(1)),
                (false, _) => (self.generation, place.saturating_add(1)),
            };
            history.push(Attempt { number, generation, failure });
        }
        history
    }

    fn attributes(&self, is_judged: bool) -> BTreeMap<String, String> {
        let mut attributes = BTreeMap::new();
        for (name, value) in self.fields.unread(is_state) {
            let kept: &mut String = attributes.entry(shown(name)).or_default();
            if !kept.is_empty() {
                kept.push('\n');
            }
            kept.push_str(&shown(value));
        }
        attributes.values_mut().for_each(cut);
        let mut set = |name: &str, value: String| attributes.insert(name.to_owned(), value);
        if let Some(dialect) = self.dialect {
            set(DIALECT, dialect.to_string());
        }
        if let Some(newest) = self.newest.filter(|newest| Some(*newest) != self.birth) {
            set(PREVIOUS, newest.to_string());
        }
        if let Some(newest) = self.newest.filter(|_| self.is_pointer) {
            set(POINTER, newest.to_string());
        }
        if self.fields.record.unreadable_headers > 0 {
            set(UNREADABLE_HEADERS, self.fields.record.unreadable_headers.to_string());
        }
        let unknown = self.gaps(is_judged).map(Gap::as_str).collect::<Vec<_>>().join(",");
        if !unknown.is_empty() {
            set(UNKNOWN, unknown);
        }
        attributes
    }

    fn gaps(&self, is_judged: bool) -> impl Iterator<Item = Gap> {
        let is_dated = self.fields.record.timestamp.is_some() && !self.keeps_time;
        let gaps = [
            (Gap::Topic, self.birth.is_none() && self.topic.is_none()),
            (Gap::Origin, self.birth.is_none()),
            (Gap::Consumer, self.consumer.is_none()),
            (Gap::Class, !is_judged),
            (Gap::Reason, !is_judged),
            (Gap::Attempts, self.attempts.is_none()),
            (Gap::DiedAt, !is_dated),
            (Gap::Payload, self.is_pointer),
        ];
        gaps.into_iter().filter_map(|(gap, is_there)| is_there.then_some(gap))
    }
}

/// Headers that say how far a retry has come. Sent back, they would make a consumer go on counting; so they never are.
fn is_state(name: &[u8]) -> bool {
    name.starts_with(b"retry_topic-")
        || name.starts_with(b"delayed-retry-")
        || name == b"kafka_deliveryAttempt"
        || name == REST.as_bytes()
}

/// The group of errors: by what was thrown last, whatever object it was thrown for.
fn group(consumer: &str, reason: Reason, history: &History) -> Fingerprint {
    let failure = history.last().map(|failure| {
        let mut failure = failure.clone();
        for text in &mut failure.messages {
            *text = without_identities(text);
        }
        failure
    });
    Fingerprint::of(consumer, reason, failure.as_ref())
}

/// Bytes as text where they are text, else escaped.
fn shown(bytes: &[u8]) -> String {
    let is_plain = |char: char| !char.is_control() || matches!(char, '\n' | '\r' | '\t');
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_plain) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_ATTRIBUTE {
        text.truncate(text.floor_char_boundary(MAX_ATTRIBUTE));
        text.push('…');
    }
}
