//! Counters by which statistics read no letters.

use dlq_core::store::Stats;
use dlq_core::{Cause, DeadLetter, ErrorClass, Filter, Reason, Status};
use serde::{Deserialize, Serialize};

use super::codec::json;
use super::fault::{Fault, Result};
use super::names::Bytes;

/// The dimensions by which letters are counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kind(
    pub(super) Status,
    Reason,
    Option<Cause>,
    ErrorClass,
    String,
    pub(super) String,
);

/// The field that counts letters of this kind.
pub(super) fn field(letter: &DeadLetter) -> Bytes {
    json(&Kind(
        letter.state.status,
        letter.reason,
        letter.cause,
        letter.class,
        letter.consumer.clone(),
        letter.message.subject().to_owned(),
    ))
}

impl Kind {
    pub(super) fn read(field: &[u8]) -> Result<Self> {
        serde_json::from_slice(field).map_err(|error| Fault::corrupt("kind of letters", error))
    }

    /// Returns true if a filter that [is counted](is_counted) means letters of this kind.
    pub(super) fn is_in(&self, filter: &Filter) -> bool {
        fn any<T: PartialEq>(wanted: &[T], found: &T) -> bool {
            wanted.is_empty() || wanted.contains(found)
        }
        let Self(status, reason, cause, class, consumer, subject) = self;
        any(&filter.statuses, status)
            && any(&filter.reasons, reason)
            && (filter.causes.is_empty()
                || cause.is_some_and(|cause| filter.causes.contains(&cause)))
            && any(&filter.classes, class)
            && any(&filter.consumers, consumer)
            && (filter.subjects.is_empty()
                || filter.subjects.iter().any(|pattern| pattern.matches(subject)))
    }

    /// Adds `n` letters of this kind, as [`Stats::add`] adds one.
    pub(super) fn add_to(self, stats: &mut Stats, n: u64) {
        let Self(status, reason, cause, class, consumer, subject) = self;
        stats.total += n;
        *stats.by_status.entry(status).or_default() += n;
        // What is resolved counts in the total and by status only, as `Stats::add` has it.
        if status.is_unresolved() {
            *stats.by_subject.entry(subject).or_default() += n;
            *stats.by_reason.entry(reason).or_default() += n;
            *stats.by_class.entry(class).or_default() += n;
            *stats.by_consumer.entry(consumer).or_default() += n;
            if let Some(cause) = cause {
                *stats.by_cause.entry(cause).or_default() += n;
            }
        }
    }
}

/// Returns true if a filter names only what letters are counted by.
pub(super) fn is_counted(filter: &Filter) -> bool {
    // What is left of the filter is asked and not its fields, so that a field that is added later is not overlooked.
    let mut rest = filter.clone();
    rest.statuses.clear();
    rest.reasons.clear();
    rest.causes.clear();
    rest.classes.clear();
    rest.consumers.clear();
    rest.subjects.clear();
    rest.is_empty()
}
