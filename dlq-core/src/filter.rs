//! [`Filter`]: which letters are meant. Listing, counting, marking, deleting and replaying use the same one and mean
//! the same by it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::{
    Cause, DeadLetter, ErrorClass, LetterId, OperationId, Reason, Status, SubjectPattern, Timestamp,
};

/// Selection of letters. Fields are joined by *and*, the values of one field by *or*; an empty field matches any
/// letter.
///
/// `since` and `died_since` include their moment, `until` does not.
///
/// ```
/// use dlq_core::{Cause, Filter};
///
/// let filter = Filter::new().with_subject("orders.*".parse()?).with_cause(Cause::Decode);
/// assert!(!filter.is_empty());
/// # Ok::<(), dlq_core::InvalidSubjectPattern>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
#[must_use]
pub struct Filter {
    /// Letter ids.
    pub ids: Vec<LetterId>,
    /// The producers' own ids.
    pub message_ids: Vec<String>,
    /// Subjects, with wildcards.
    pub subjects: Vec<SubjectPattern>,
    /// Event types, exact.
    pub events: Vec<String>,
    /// Consumers, exact.
    pub consumers: Vec<String>,
    /// Services, exact.
    pub services: Vec<String>,
    /// Statuses.
    pub statuses: Vec<Status>,
    /// Reasons.
    pub reasons: Vec<Reason>,
    /// Causes.
    pub causes: Vec<Cause>,
    /// Classes.
    pub classes: Vec<ErrorClass>,
    /// Fingerprints.
    pub fingerprints: Vec<Fingerprint>,
    /// Text that the latest error contains, upper and lower case alike, every character literal.
    pub error: Option<String>,
    /// Stored at or after this time.
    pub since: Option<Timestamp>,
    /// Stored before this time.
    pub until: Option<Timestamp>,
    /// Died at or after this time, for the first time or anew. Programs of earlier versions do not know it, so it is left out
    /// of the text where it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_since: Option<Timestamp>,
    /// At least this many attempts in the latest generation.
    pub min_attempts: Option<u32>,
    /// At most this many attempts in the latest generation.
    pub max_attempts: Option<u32>,
    /// Sent back at least this often.
    pub min_retries: Option<u32>,
    /// Sent back at most this often.
    pub max_retries: Option<u32>,
    /// Held by this operation.
    pub operation: Option<OperationId>,
    /// Declared attributes with these values, all of them.
    pub attributes: BTreeMap<String, String>,
}

macro_rules! adders {
    ($($(#[$doc:meta])* $name:ident -> $field:ident: $type:ty),+ $(,)?) => {
        impl Filter { $($(#[$doc])* pub fn $name(mut self, value: $type) -> Self { self.$field.push(value); self })+ }
    };
}

adders! {
    /// Adds a letter id.
    with_id -> ids: LetterId,
    /// Adds a producer's id.
    with_message_id -> message_ids: String,
    /// Adds a subject pattern.
    with_subject -> subjects: SubjectPattern,
    /// Adds an event type.
    with_event -> events: String,
    /// Adds a consumer.
    with_consumer -> consumers: String,
    /// Adds a service.
    with_service -> services: String,
    /// Adds a status.
    with_status -> statuses: Status,
    /// Adds a reason.
    with_reason -> reasons: Reason,
    /// Adds a cause.
    with_cause -> causes: Cause,
    /// Adds a class.
    with_class -> classes: ErrorClass,
    /// Adds a fingerprint.
    with_fingerprint -> fingerprints: Fingerprint,
}

impl Filter {
    /// Every letter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the text that the error must contain. Defaults to any.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Sets the earliest time of storing, inclusive. Defaults to none.
    pub fn since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Sets the latest time of storing, exclusive. Defaults to none.
    pub fn until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Sets the earliest time of the latest death, inclusive. Defaults to none.
    pub fn died_since(mut self, since: Timestamp) -> Self {
        self.died_since = Some(since);
        self
    }

    /// Adds an attribute that must have this value.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Returns true if the filter matches every letter: it has no condition, or none that any letter could fail, such
    /// as an empty text in the error.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Destructive calls refuse an empty filter, so a condition that every letter meets must not make it count as a choice.
        let mut telling = self.clone();
        if telling.subjects.iter().any(|subject| subject.as_str() == ">") {
            telling.subjects.clear();
        }
        telling.error = telling.error.filter(|text| !text.is_empty());
        telling.min_attempts = telling.min_attempts.filter(|least| *least > 0);
        telling.max_attempts = telling.max_attempts.filter(|most| *most < u32::MAX);
        telling.min_retries = telling.min_retries.filter(|least| *least > 0);
        telling.max_retries = telling.max_retries.filter(|most| *most < u32::MAX);
        telling == Self::default()
    }

    /// Returns true if `letter` matches. This is the reference that every store agrees with.
    #[must_use]
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        fn any<T: PartialEq>(wanted: &[T], found: &T) -> bool {
            wanted.is_empty() || wanted.contains(found)
        }
        fn any_str(wanted: &[String], found: Option<&str>) -> bool {
            wanted.is_empty() || found.is_some_and(|found| wanted.iter().any(|text| text == found))
        }
        let state = &letter.state;
        any(&self.ids, &letter.id)
            && any_str(&self.message_ids, letter.message.id())
            && (self.subjects.is_empty()
                || self.subjects.iter().any(|subject| subject.matches(letter.message.subject())))
            && any_str(&self.events, letter.message.event())
            && any_str(&self.consumers, Some(&letter.consumer))
            && any_str(&self.services, letter.service.as_deref())
            && any(&self.statuses, &state.status)
            && any(&self.reasons, &letter.reason)
            && (self.causes.is_empty()
                || letter.cause.is_some_and(|cause| self.causes.contains(&cause)))
            && any(&self.classes, &letter.class)
            && any(&self.fingerprints, &letter.fingerprint)
            && self
                .error
                .as_deref()
                .is_none_or(|text| searchable(&letter.error()).contains(&searchable(text)))
            && self.since.is_none_or(|since| state.created_at >= since)
            && self.until.is_none_or(|until| state.created_at < until)
            && self.died_since.is_none_or(|since| letter.died_at >= since)
            && self.min_attempts.is_none_or(|least| letter.attempts >= least)
            && self.max_attempts.is_none_or(|most| letter.attempts <= most)
            && self.min_retries.is_none_or(|least| state.retry_count >= least)
            && self.max_retries.is_none_or(|most| state.retry_count <= most)
            && self.operation.is_none_or(|operation| state.operation == Some(operation))
            && self
                .attributes
                .iter()
                .all(|(name, value)| letter.attributes.get(name) == Some(value))
    }
}

/// The form in which error texts are searched: lower case by Unicode's rules, the same in every store.
#[must_use]
pub fn searchable(text: &str) -> String {
    // Databases have rules of their own for this, so stores keep error texts in this form beside the original.
    text.to_lowercase()
}
