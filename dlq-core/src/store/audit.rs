use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{duration_nanos, words};
use crate::{DeadLetter, LetterId, OperationId, Timestamp};
use std::str::FromStr;

/// Person or program that changes letters, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Actor {
    /// Name, e.g. `ana@ops-host` or `schedule`.
    pub who: String,
    /// Reason, in their own words.
    pub note: Option<String>,
}

impl Actor {
    /// An actor without a note.
    pub fn new(who: impl Into<String>) -> Self {
        Self { who: who.into(), note: None }
    }

    /// Returns true if it has this name, or this one before an `@`.
    #[must_use]
    pub fn is(&self, who: &str) -> bool {
        let rest = self.who.strip_prefix(who);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
    }

    /// Sets why. Defaults to none.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// Entry of the audit about an action of an operator. Kept for good, also after the letters are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Number of the entry in its store, higher than those of the entries before it; 0 until it is written.
    #[serde(default)]
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// Person or program, and the reason.
    pub by: Actor,
    /// Action: `replay`, `pause`, `resume`, `cancel`, `quarantine`, `release`, `resolve`, `edit`, `delete`, `cleanup`,
    /// `deduplicate`, `restore`, `triage`, `undelete`,
    /// `delete-for-good`, `empty-archive`.
    pub action: String,
    /// Subject of the action, as JSON: the filter, or the arguments.
    pub subject: String,
    /// Number of letters that were changed.
    pub affected: u64,
    /// The operation it started or steered.
    pub operation: Option<OperationId>,
}

/// Selection of entries of the audit. Fields are joined by *and*; an empty field matches any entry.
///
/// ```
/// use dlq_core::store::AuditRequest;
///
/// let deleted_by_ana = AuditRequest::latest(50).by("ana").action("delete");
/// assert_eq!(deleted_by_ana.limit, 50);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct AuditRequest {
    /// Number of entries at most.
    pub limit: u32,
    /// Only entries with a lower number.
    pub before: Option<u64>,
    /// The name of the actor, or what stands before its `@`.
    pub by: Option<String>,
    /// The action.
    pub action: Option<String>,
    /// A letter that the entry names, by itself or in a filter.
    pub letter: Option<LetterId>,
    /// An operation that the entry started or steered. Beside a letter, one of both is enough.
    pub operation: Option<OperationId>,
    /// At or after this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

impl AuditRequest {
    /// The newest entries, at most `limit`.
    pub fn latest(limit: u32) -> Self {
        Self {
            limit,
            before: None,
            by: None,
            action: None,
            letter: None,
            operation: None,
            since: None,
            until: None,
        }
    }

    /// Sets the number of the entry before which they stand, for the next page. Defaults to none.
    pub fn before(mut self, number: u64) -> Self {
        self.before = Some(number);
        self
    }

    /// Sets the actor: `ana` also means `ana@ops-host`. Defaults to anybody.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Sets the action. Defaults to any.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = Some(action.into());
        self
    }

    /// Sets the letter. An action on all letters of a filter names none of them. Defaults to any.
    pub fn letter(mut self, letter: LetterId) -> Self {
        self.letter = Some(letter);
        self
    }

    /// Sets the operation. Defaults to any.
    pub fn operation(mut self, operation: OperationId) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Sets the earliest time, inclusive. Defaults to none.
    pub fn since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Sets the latest time, exclusive. Defaults to none.
    pub fn until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Returns true if `entry` is selected, however many are.
    #[must_use]
    pub fn matches(&self, entry: &AuditEntry) -> bool {
        // No text has the 32 digits of an id by chance, so that it need not be read as JSON.
        let named = |letter: LetterId| entry.subject.contains(&letter.to_string());
        let concerns = match (self.letter, self.operation) {
            (None, None) => true,
            (letter, operation) => {
                // One of both is enough: what a letter went through includes the operations that sent it back.
                letter.is_some_and(named) || (operation.is_some() && operation == entry.operation)
            }
        };
        concerns
            && self.by.as_ref().is_none_or(|who| entry.by.is(who))
            && self.action.as_ref().is_none_or(|action| *action == entry.action)
            && self.before.is_none_or(|number| entry.number < number)
            && self.since.is_none_or(|since| entry.at >= since)
            && self.until.is_none_or(|until| entry.at < until)
    }
}

words! {
    /// End of the processing of an event.
    Processed("processing status") {
        /// The handler succeeded.
        Success = "success",
        /// An attempt failed; it will be retried.
        Failed = "failed",
        /// It was dead-lettered.
        Dlq = "dlq",
    }
}

/// Row of the processing audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessedEvent {
    /// The producer's id of the message, where it has one; otherwise where it stood.
    pub event_id: String,
    /// Subject to which the message was addressed.
    pub subject: String,
    /// Consumer that handled the message.
    pub consumer: String,
    /// End of the processing.
    pub status: Processed,
    /// Number of the attempt. Of a success it is the number with which the delivery began: attempts that failed before it in
    /// the same process are not counted in.
    pub attempt: u32,
    /// Duration of the attempt.
    #[serde(with = "duration_nanos", rename = "duration_ns")]
    pub duration: Duration,
    /// When it ended.
    pub at: Timestamp,
    /// The error, where there was one.
    pub error: Option<String>,
}

impl ProcessedEvent {
    /// The row of a message that was dead-lettered: its last attempt, by its letter.
    #[must_use]
    pub fn dead_lettered(letter: &DeadLetter) -> Self {
        let id = letter.message.id();
        Self {
            event_id: id.map_or_else(|| letter.origin.to_string(), str::to_owned),
            subject: letter.message.subject().to_owned(),
            consumer: letter.consumer.clone(),
            status: Processed::Dlq,
            attempt: letter.attempts,
            // A message that died unrun has no duration.
            duration: letter.history.last().map_or(Duration::ZERO, |failure| failure.duration),
            at: letter.died_at,
            error: Some(letter.error()),
        }
    }
}
