use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{DocumentKey, DocumentKind, DocumentRange};
use dlq_core::store::rules::DedupKey;
use dlq_core::store::{OperationSpec, Schedule};
use dlq_core::{Cursor, Filter, LetterId, OperationId, Order, Timestamp};

/// Part of a letter that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Depth {
    /// Everything but payload, key, headers and history, which are empty.
    Head,
    /// Everything.
    Whole,
}

/// Rows that a verb needs before it decides.
///
/// A backend may supply more than is named: the items and the states of operations of letters that it loads, for example,
/// which nearly every verb asks for next.
///
/// Everything that is named here must be supplied to [`Rows`](crate::Rows), and be what is stored; what is absent is
/// supplied as absent. A backend with locks locks the letters, and the operations in `operations` and `active`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Letters by id.
    pub letters: BTreeMap<LetterId, Depth>,
    /// Letters, or items of an operation, that a condition selects, with the depth of the letters.
    pub selects: Vec<(Select, Depth)>,
    /// Items of operations, by index.
    pub items: BTreeSet<(OperationId, u64)>,
    /// Operations, which the verb may steer.
    pub operations: BTreeSet<OperationId>,
    /// States of operations that are only looked at, without a lock.
    pub states: BTreeSet<OperationId>,
    /// True if all operations that may release letters are needed. Those that somebody else has locked may be left out, and
    /// those that can release nothing now need no lock.
    pub active: bool,
    /// Owners of original messages.
    pub owners: BTreeSet<DedupKey>,
    /// Letters that were merged into another, by their former id.
    pub aliases: BTreeSet<LetterId>,
    /// Letters of which the aliases that point at them are needed.
    pub aliases_of: BTreeSet<LetterId>,
    /// True if it is needed whether the store deduplicates.
    pub dedup: bool,
    /// Consumers whose last run of the automatic schedule is needed.
    pub schedules: BTreeSet<String>,
    /// Documents by key, which the verb may change.
    pub documents: BTreeSet<DocumentKey>,
    /// Documents by key, to be looked at only: no lock, and no comparison of versions. Whoever may only read can look.
    pub glimpses: BTreeSet<DocumentKey>,
    /// Kinds of which all documents are needed, to be looked at only: no lock, and no comparison of versions.
    pub listed: BTreeSet<DocumentKind>,
    /// Pages of the names of documents, to be looked at only: no lock, and no comparison.
    pub ranges: BTreeSet<DocumentRange>,
    /// Number of fencing tokens to reserve. A backend may reserve more, or may have reserved them before.
    pub fences: u64,
    /// True if the number of operations ever started is needed, from which the id of the next is made.
    pub operation_number: bool,
}

impl Needs {
    /// Returns true if nothing is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a letter; the greater depth counts if it is added twice.
    pub fn letter(&mut self, id: LetterId, depth: Depth) {
        let known = self.letters.entry(id).or_insert(depth);
        *known = depth.max(*known);
    }

    /// Adds a selection; the greater depth counts if it is added twice.
    pub fn select(&mut self, select: Select, depth: Depth) {
        match self.selects.iter_mut().find(|(known, _)| *known == select) {
            Some((_, known)) => *known = depth.max(*known),
            None => self.selects.push((select, depth)),
        }
    }
}

/// A condition that selects letters, or items of an operation, in a defined order.
///
/// Where locks exist, a selection locks its letters. `passing over` means that letters which somebody else has locked are
/// left out; otherwise the selection waits for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Letters that can be claimed now: due, or with a lease that has ended. Ordered by the time since when, then by time of
    /// storing, then by id; passing over.
    Due {
        /// Selection of letters.
        filter: Arc<Filter>,
        /// The most letters.
        limit: u64,
    },
    /// Queued items of an operation from index `from` on whose letters match, in frozen order; passing over.
    Queued {
        /// The operation.
        operation: OperationId,
        /// Selection of letters.
        filter: Arc<Filter>,
        /// The first index.
        from: u64,
        /// The most items.
        limit: u64,
    },
    /// Queued items of an operation whose letter is not in it any more. Letters that are merely locked are not orphans.
    Orphans {
        /// The operation.
        operation: OperationId,
        /// Only items of letters of these consumers; of all, if empty.
        consumers: Vec<String>,
        /// The most items.
        limit: u64,
    },
    /// Items of an operation that are `sending` with a lease that has ended, in frozen order; passing over.
    Lapsed {
        /// The operation.
        operation: OperationId,
        /// The most items.
        limit: u64,
    },
    /// Letters of an operation that nobody runs: queued, or released and not claimed, or claimed from `pending` with a lease
    /// that has ended. Each kind in the order of the index; which kind comes first is the backend's choice, as a claim that
    /// comes across a released letter of a cancelled operation takes it back.
    Open {
        /// The operation.
        operation: OperationId,
        /// The most letters.
        limit: u64,
    },
    /// Pending letters of no operation that match the specification, in its order.
    Frozen {
        /// Specification of the operation; its limit is not applied.
        spec: Arc<OperationSpec>,
        /// The letter after which the page begins.
        after: Option<Cursor>,
        /// The last letter of the walk, so that letters which arrive later are not part of it.
        upto: Option<Cursor>,
        /// The most letters.
        limit: u64,
    },
    /// Letters of a consumer that may be eligible for its automatic schedule, oldest first. May hold too many: the verb
    /// asks [`Schedule::takes`].
    Eligible {
        /// The consumer.
        consumer: String,
        /// Its settings.
        schedule: Arc<Schedule>,
        /// The most letters.
        limit: u64,
    },
    /// Letters that match.
    Matching {
        /// Selection of letters.
        filter: Arc<Filter>,
        /// Only old letters, if given.
        older: Option<Older>,
        /// The order, in which `after` comes before `upto`.
        order: Order,
        /// The letter after which the page begins.
        after: Option<Cursor>,
        /// The last letter of the walk.
        upto: Option<Cursor>,
        /// The most letters.
        limit: u64,
    },
}

/// An item of what a [`Select`] selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selected {
    /// The letter.
    pub letter: LetterId,
    /// The index of its item, where items are selected; 0 otherwise.
    pub index: u64,
}

/// An age from which letters are cleaned up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Older {
    /// The latest time of the last change.
    pub latest: Timestamp,
    /// True for letters of every status; false for resolved ones only.
    pub include_unresolved: bool,
}
