use std::collections::BTreeMap;

use dlq_core::store::{
    AuditEntry, ItemOutcome, Operation, OperationItem, OperationSpec, OperationState,
};
use dlq_core::{LetterId, Timestamp};

use crate::{Changed, DocumentKey, Row};

/// A letter that a verb has changed.
#[derive(Clone, Copy, Debug)]
pub struct LetterChange<'r> {
    /// The letter.
    pub id: LetterId,
    /// The row that was loaded; `None` if there was none.
    pub before: Option<&'r Row>,
    /// The row to write; `None` if it is to be deleted, together with the aliases that point at it.
    pub after: Option<&'r Row>,
    /// The columns that differ. [`Changed::All`] for a new row.
    pub changed: Changed,
}

/// A document that a verb has changed.
#[derive(Clone, Copy, Debug)]
pub struct DocumentChange<'r> {
    /// Its place.
    pub key: &'r DocumentKey,
    /// The text that was loaded; `None` if there was none.
    pub before: Option<&'r str>,
    /// The text to write; `None` if the document is to be deleted.
    pub after: Option<&'r str>,
}

/// A change of an item of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemChange {
    /// The item is new.
    Append {
        /// The item.
        item: OperationItem,
        /// The consumer of its letter.
        consumer: String,
    },
    /// The item has a new outcome.
    Outcome {
        /// The outcome.
        outcome: ItemOutcome,
        /// The reason, where there is one.
        why: Option<String>,
        /// The time of the change.
        at: Timestamp,
    },
}

/// A change of an operation, to be applied to what is stored at the time of writing.
///
/// Counts are increments, so that calls that finish letters of one operation do not conflict with each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationChange {
    /// Number of letters frozen in addition.
    pub total: u64,
    /// Changes of the counts by outcome.
    pub counts: BTreeMap<ItemOutcome, i64>,
    /// The state that the verb steered it to. Only set if the operation was in [`Needs::operations`](crate::Needs) or
    /// `active`.
    pub state: Option<OperationState>,
    /// The time of the next release, under the same condition.
    pub next_release: Option<Timestamp>,
    /// The specification that it has from now on, under the same condition.
    pub spec: Option<OperationSpec>,
}

impl OperationChange {
    /// Applies the change, and the state that follows from the counts.
    pub fn apply(&self, operation: &mut Operation, now: Timestamp) {
        operation.progress.total = operation.progress.total.saturating_add(self.total);
        let counts = &mut operation.progress.by_outcome;
        for (outcome, by) in &self.counts {
            let count = counts.entry(*outcome).or_default();
            // It saturates and does not fail: a count that somebody changed by hand must not keep a letter from being
            // finished.
            *count = count.saturating_add_signed(*by);
        }
        counts.retain(|_, count| *count > 0);
        if let Some(state) = self.state {
            operation.state = state;
        }
        if let Some(next) = self.next_release {
            operation.next_release = next;
        }
        if let Some(spec) = &self.spec {
            operation.spec.clone_from(spec);
        }
        // The state follows from the counts as they are when they are written, so that the call which ends the last letter
        // completes the operation without having locked it before.
        operation.state = operation.advance(now, 0).state;
        operation.updated_at = now;
    }

    pub(crate) fn count(&mut self, outcome: ItemOutcome, by: i64) {
        *self.counts.entry(outcome).or_default() += by;
    }
}

/// A note in the record of what operators did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A new entry.
    New(AuditEntry),
    /// Adds to the number of letters of an entry that an earlier step of the same call made.
    Grow {
        /// The number of the entry, from [`Done::note`](crate::Done).
        entry: i64,
        /// The letters changed in addition.
        by: u64,
    },
}
