use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Archived;
use crate::Filter;
use crate::failure::words;

words! {
    /// Mark that an operator sets on letters.
    Mark("mark") {
        /// Set aside: not replayed until released. Cancels what was arranged.
        Quarantined = "quarantined",
        /// Back to waiting, from quarantine, resolution or an arranged run; its count of replays starts over.
        Pending = "pending",
        /// Nothing more is to be done: resolved as dismissed.
        Resolved = "resolved",
    }
}

/// Number of letters that a call changed, and that it left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Marked {
    /// Changed, or deleted. Letters that were so already are not counted.
    pub changed: u64,
    /// Left alone because somebody holds a live claim on them.
    pub skipped: u64,
}

/// Number of letters that a cleanup deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cleaned {
    /// Letters that were deleted.
    pub deleted: u64,
    /// Letters that had been deleted before, and left the archive now.
    pub archived: u64,
}

impl Cleaned {
    /// A cleanup that deleted so many letters, and emptied the archive of so many.
    #[must_use]
    pub const fn new(deleted: u64, archived: u64) -> Self {
        Self { deleted, archived }
    }
}

/// Selection of a cleanup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Cleanup {
    /// Letters last changed at least this long ago.
    pub older_than: Duration,
    /// Only these.
    pub filter: Filter,
    /// Also letters that are not resolved. They are evidence: say so explicitly.
    pub include_unresolved: bool,
    /// Number of letters that are deleted in one step, so that others can work in between.
    pub batch: u32,
    /// Time for which the archive keeps deleted letters; those deleted before that leave it.
    pub archived_for: Duration,
}

impl Cleanup {
    /// Resolved letters that were last changed at least `older_than` ago.
    pub fn older_than(older_than: Duration) -> Self {
        let archived_for = Archived::KEPT;
        Self {
            older_than,
            filter: Filter::new(),
            include_unresolved: false,
            batch: 1000,
            archived_for,
        }
    }

    /// Narrows it. Defaults to every resolved letter.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Also deletes letters that are not resolved. Defaults to no.
    pub fn unresolved(mut self) -> Self {
        self.include_unresolved = true;
        self
    }

    /// Sets for how long the archive keeps deleted letters. Defaults to [seven days](Archived::KEPT).
    pub fn archived_for(mut self, archived_for: Duration) -> Self {
        self.archived_for = archived_for;
        self
    }

    /// Sets how many are deleted in one step. Defaults to 1000.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }
}
