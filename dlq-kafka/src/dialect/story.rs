//! Description of a death in the terms of a dialect, and the letter that it becomes.

use std::sync::Arc;

use dlq_core::protocol::split;
use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Fingerprint, History, LetterId, Message,
    Origin, Position, Reason, Timestamp, bounded,
};

use super::Dialect;
use super::attributes::is_state;
use super::errors::{Error, without_identities};
use super::fields::{Fields, Hops, RecordPosition};
use super::replayed::Replayed;

/// Description of a death in the terms of a dialect.
pub(super) struct Story<'a> {
    pub(super) dialect: Option<Dialect>,
    pub(super) fields: Fields<'a>,
    pub(super) birth: Option<RecordPosition<'a>>,
    /// Position of the record before its latest death.
    pub(super) newest: Option<RecordPosition<'a>>,
    /// The topic it was born in, where the place in it is not known.
    pub(super) topic: Option<&'a str>,
    pub(super) generation: u32,
    /// The producer's own id of the message.
    pub(super) message_id: Option<&'a str>,
    /// When it was published, as a header says that always stands there.
    pub(super) published_at: Option<Timestamp>,
    /// True if the timestamp of the record is still that of the record that died.
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
    /// Facts from our own protocol, if it is there besides.
    pub(super) told: Option<Told>,
    /// The letter of ours that it was before.
    replayed: Option<Replayed>,
}

/// Facts that our own protocol has and no other dialect.
pub(super) struct Told {
    pub(super) message: Message,
    pub(super) history: Option<History>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) delayed_retries: Option<u32>,
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
            message_id: None,
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
            replayed: None,
        }
    }

    /// Sets where it was born and last stood.
    pub(super) fn at(mut self, hops: &Hops<'a>) -> Self {
        self.birth = Some(hops.birth());
        self.newest = Some(hops.newest());
        self
    }

    /// Puts the deaths before its own that another dialect tells of: it died there first, and that dead letter died here.
    pub(super) fn behind(mut self, earlier: Self) -> Self {
        self.fields.absorb(&earlier.fields);
        self.generation = self.generation.saturating_add(earlier.generation).saturating_add(1);
        self.birth = earlier.birth;
        self.topic = earlier.topic.or(self.topic);
        self.published_at = earlier.published_at;
        self.errors = earlier.errors.into_iter().chain(self.errors).collect();
        self
    }

    /// The letter.
    pub(super) fn letter(mut self, cluster: &Arc<str>) -> DeadLetter {
        let record = self.fields.record;
        let consumer = self.consumer.unwrap_or_default();
        self.replayed = self.dialect.and_then(|_| Replayed::of(record, consumer, cluster));
        let replayed = self.replayed.as_ref();
        let died_at = record.timestamp.unwrap_or(Timestamp::EPOCH);
        let (class, reason, is_judged) = self.judgement();
        let origin = self.origin(cluster);
        // A record that is not known to have moved was published where it stands.
        let identified_by = if self.is_elsewhere() { self.published_at } else { record.timestamp };
        let told = self.told.as_ref();
        let history = told.and_then(|told| told.history.clone());
        let history = history.unwrap_or_else(|| self.history(class, died_at));
        let fingerprint = told.and_then(|told| told.fingerprint);
        let mut state = born(died_at);
        state.replays = replayed.map_or(0, |replayed| replayed.replays);
        state.retry_count = state.replays;
        // A letter that we sent back keeps its identity, or each death of it would be another letter.
        let id = replayed.map_or_else(
            || LetterId::of(&origin, identified_by, consumer),
            |replayed| replayed.death.letter,
        );
        let fingerprint = fingerprint.unwrap_or_else(|| group(consumer, reason, &history));
        let message = self.message();
        let mut letter = DeadLetter::identified(id, fingerprint, message, origin, consumer, reason);
        letter.generation = self.earlier().saturating_add(self.generation);
        letter.service = told.and_then(|told| told.service.clone());
        letter.class = class;
        letter.cause = (!history.is_empty()).then(|| self.cause());
        letter.history = history;
        // Unknown attempts are 0 and listed as a gap, as a guess would look like a fact.
        letter.attempts = self.attempts.unwrap_or(0);
        letter.deliveries = self.deliveries;
        letter.delayed_retries = told.and_then(|told| told.delayed_retries).unwrap_or(0);
        letter.died_at = died_at;
        letter.attributes = self.attributes(is_judged);
        letter.state = state;
        letter
    }

    /// True if the message is known to have been published elsewhere than where the record stands.
    fn is_elsewhere(&self) -> bool {
        self.birth.is_some() || self.topic.is_some()
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
        // Nothing speaks for another attempt, so that no schedule sends it back.
        (ErrorClass::Permanent, Reason::Manual, false)
    }

    /// Returns the number of deaths before those that the dialect describes.
    fn earlier(&self) -> u32 {
        self.replayed.as_ref().map_or(0, |replayed| replayed.death.generation.saturating_add(1))
    }

    fn origin(&self, cluster: &Arc<str>) -> Origin {
        if let Some(origin) = self.replayed_from() {
            return origin.clone();
        }
        let Some(birth) = self.birth else { return self.fields.record.origin(cluster) };
        Origin::new("kafka", birth.topic, Position::Offset(birth.offset))
            .with_cluster(Arc::clone(cluster))
            .with_partition(birth.partition)
    }

    /// Returns the origin that a replay of ours wrote.
    pub(super) fn replayed_from(&self) -> Option<&Origin> {
        self.replayed.as_ref().map(|replayed| &replayed.origin)
    }

    fn message(&self) -> Message {
        if let Some(told) = &self.told {
            let mut headers = told.message.headers().clone();
            headers.retain(|header| !is_state(&header.name));
            return told.message.clone().with_headers(headers);
        }
        let record = self.fields.record;
        let replayed = self.replayed_from().map(Origin::stream);
        let topic = replayed.or(self.birth.map(|birth| birth.topic)).or(self.topic);
        let subject = topic.map_or_else(|| Arc::clone(&record.topic), Arc::from);
        let mut headers = self.fields.producers(is_state);
        if self.replayed.is_some() {
            // The replay has put our headers onto the message. They are not the producer's, and are written anew when it is
            // sent again.
            headers = split(&headers).0;
        }
        let mut message =
            Message::tombstone(subject).with_payload(record.value.clone()).with_headers(headers);
        if let Some(key) = &record.key {
            message = message.with_key(key.clone());
        }
        if let Some(id) = self.message_id {
            message = message.with_id(id);
        }
        // A system that keeps the record's time tells by it when the message was published, until it has died more than once.
        let has_moved = self.is_elsewhere() && !(self.keeps_time && self.generation == 0);
        let record_time = record.timestamp.filter(|_| !has_moved);
        let own = self.published_at.or(record_time);
        let published_at = self.replayed.as_ref().map_or(own, |replayed| replayed.published_at);
        if let Some(at) = published_at {
            message = message.with_published_at(at);
        }
        message
    }

    fn history(&self, class: ErrorClass, died_at: Timestamp) -> History {
        let mut history = History::new();
        let count = self.errors.len();
        // Where the numbers agree there is one error for each death.
        // Else nobody knows which are of the last one, and only the latest is kept behind an earlier death.
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
            let generation = generation.saturating_add(self.earlier());
            history.push(Attempt { number, generation, failure });
        }
        history
    }
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
