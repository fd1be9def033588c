//! Letters that were deleted and can be restored.

use std::time::Duration;

use serde::Serialize;

use super::Actor;
use crate::{Cursor, Filter, LetterId, LetterSummary, Timestamp};

/// A letter that was deleted, and is in the archive of its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Archived {
    /// The letter as it was when it was deleted.
    #[serde(flatten)]
    pub letter: LetterSummary,
    /// When it was deleted.
    pub deleted_at: Timestamp,
    /// Person or program that deleted it, and the reason.
    pub deleted_by: Actor,
}

impl Archived {
    /// Time for which a [cleanup](super::Cleanup) leaves letters in the archive unless it is told another.
    pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

    /// A letter that was deleted at this time.
    #[must_use]
    pub fn new(letter: LetterSummary, deleted_at: Timestamp, deleted_by: Actor) -> Self {
        Self { letter, deleted_at, deleted_by }
    }
}

/// Selection of letters in the archive. Fields are joined by *and*; an empty field matches any letter.
///
/// ```
/// use dlq_core::store::ArchiveFilter;
/// use dlq_core::{Filter, Timestamp};
///
/// let mistakes = ArchiveFilter::new()
///     .letters(Filter::new().with_consumer("billing".to_owned()))
///     .deleted_by("ana")
///     .deleted_since(Timestamp::from_millis(1_790_000_000_000));
/// assert!(!mistakes.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct ArchiveFilter {
    /// The letters, as they were when they were deleted.
    pub letters: Filter,
    /// The name of whoever deleted them, or the part of it before the `@`.
    pub deleted_by: Option<String>,
    /// Deleted at or after this time.
    pub deleted_since: Option<Timestamp>,
    /// Deleted before this time.
    pub deleted_until: Option<Timestamp>,
}

impl ArchiveFilter {
    /// Every letter in the archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// The letter of this id.
    pub fn id(id: LetterId) -> Self {
        Self::new().letters(Filter::new().with_id(id))
    }

    /// Sets what the letters were like. Defaults to any.
    pub fn letters(mut self, letters: Filter) -> Self {
        self.letters = letters;
        self
    }

    /// Sets who deleted them: `ana` also means `ana@ops-host`. Defaults to anybody.
    pub fn deleted_by(mut self, who: impl Into<String>) -> Self {
        self.deleted_by = Some(who.into());
        self
    }

    /// Sets the earliest time of the deletion, inclusive. Defaults to none.
    pub fn deleted_since(mut self, since: Timestamp) -> Self {
        self.deleted_since = Some(since);
        self
    }

    /// Sets the latest time of the deletion, exclusive. Defaults to none.
    pub fn deleted_until(mut self, until: Timestamp) -> Self {
        self.deleted_until = Some(until);
        self
    }

    /// Returns true if it selects every letter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { letters, deleted_by, deleted_since, deleted_until } = self;
        letters.is_empty()
            && deleted_by.is_none()
            && deleted_since.is_none()
            && deleted_until.is_none()
    }

    /// Returns true if it may select a letter of this id that was deleted at this time.
    #[must_use]
    pub fn may_have(&self, at: Timestamp, id: LetterId) -> bool {
        // Time and id are in the name of a copy, so most copies are passed over without being read.
        let ids = &self.letters.ids;
        (ids.is_empty() || ids.contains(&id))
            && self.deleted_since.is_none_or(|since| at >= since)
            && self.deleted_until.is_none_or(|until| at < until)
    }

    /// Returns true if it may select what this actor has deleted.
    #[must_use]
    pub fn may_be_by(&self, actor: &Actor) -> bool {
        self.deleted_by.as_ref().is_none_or(|who| actor.is(who))
    }
}

/// Request for a page of the archive, the letter deleted last first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ArchiveRequest {
    /// The letters.
    pub filter: ArchiveFilter,
    /// Number of letters at most; at least one.
    pub limit: u32,
    /// The place at which the page before ended.
    pub after: Option<Cursor>,
}

impl ArchiveRequest {
    /// The letters that were deleted last, at most `limit`.
    pub fn latest(limit: u32) -> Self {
        Self { filter: ArchiveFilter::new(), limit: limit.max(1), after: None }
    }

    /// Sets the letters. Defaults to all.
    pub fn filter(mut self, filter: ArchiveFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets where the page before ended. Defaults to none.
    pub fn after(mut self, after: Option<Cursor>) -> Self {
        self.after = after;
        self
    }
}

/// A page of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArchivePage {
    /// The letters, the one deleted last first.
    pub letters: Vec<Archived>,
    /// The place at which the next page begins, unless this is the last one.
    pub next: Option<Cursor>,
}

impl ArchivePage {
    /// A page that goes on at this place.
    #[must_use]
    pub fn new(letters: Vec<Archived>, next: Option<Cursor>) -> Self {
        Self { letters, next }
    }
}
