use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{duration_nanos, words};
use crate::{DeadLetter, OperationId, Timestamp};
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

    /// Sets why. Defaults to none.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// Entry of the audit about an action of an operator. Kept for good, also after the letters are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Person or program, and the reason.
    pub by: Actor,
    /// Action: `replay`, `pause`, `resume`, `cancel`, `quarantine`, `release`, `resolve`, `edit`, `delete`, `cleanup`,
    /// `deduplicate`, `restore`.
    pub action: String,
    /// Subject of the action, as JSON: the filter, or the arguments.
    pub subject: String,
    /// Number of letters that were changed.
    pub affected: u64,
    /// The operation it started or steered.
    pub operation: Option<OperationId>,
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
    /// Number of the attempt.
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
            duration: letter.history.last().map_or(Duration::ZERO, |failure| failure.duration),
            at: letter.died_at,
            error: Some(letter.error()),
        }
    }
}
