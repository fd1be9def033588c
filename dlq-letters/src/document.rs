use std::fmt;

use dlq_core::store::{GroupKey, Heartbeat};
use dlq_core::{Cursor, LetterId, Order, Timestamp};

/// Kind of a small text that a store keeps beside its letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DocumentKind {
    /// [Record](dlq_core::store::GroupRecord) of a group of errors.
    Group,
    /// [Presence](dlq_core::store::Presence) of a consumer in a process.
    Presence,
    /// A letter that was deleted and may be restored. There may be as many as there are letters: they are read in
    /// [pages](DocumentRange) of their names, which are in the order of the deletions.
    Archived,
    /// A part of a letter in the archive that is too large for one document.
    ArchivedPart,
}

impl DocumentKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Group, Self::Presence, Self::Archived, Self::ArchivedPart];

    /// Returns its name in the stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Presence => "presence",
            Self::Archived => "archived",
            Self::ArchivedPart => "archived-part",
        }
    }

    /// Returns true if there may be as many as there are letters. All others are few and small.
    #[must_use]
    pub const fn is_bulky(self) -> bool {
        matches!(self, Self::Archived | Self::ArchivedPart)
    }
}

/// Place of a document: its kind, and a name that is unique among those of the kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentKey {
    /// The kind.
    pub kind: DocumentKind,
    /// The name: at most 64 characters of printable ASCII, so that every store can index it as it is.
    pub name: String,
}

impl DocumentKey {
    /// Returns the place of a consumer's presence.
    #[must_use]
    pub fn presence(heartbeat: &Heartbeat) -> Self {
        Self { kind: DocumentKind::Presence, name: heartbeat.digest() }
    }

    /// Returns the place of a letter that was deleted at this time.
    #[must_use]
    pub(crate) fn archived(at: Timestamp, id: LetterId) -> Self {
        // A cursor's text is in the order of its time, then of its id.
        Self { kind: DocumentKind::Archived, name: Cursor::after(at, id).to_string() }
    }

    /// Returns the place of a part of a letter in the archive.
    #[must_use]
    pub(crate) fn archived_part(&self, number: usize) -> Self {
        Self { kind: DocumentKind::ArchivedPart, name: format!("{}.{number:x}", self.name) }
    }

    /// Returns the place of a group's record.
    #[must_use]
    pub fn group(key: &GroupKey) -> Self {
        Self { kind: DocumentKind::Group, name: key.digest() }
    }
}

impl fmt::Display for DocumentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// A page of the documents of a kind, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentRange {
    /// The kind.
    pub kind: DocumentKind,
    /// The name after which the page begins.
    pub after: Option<String>,
    /// `OldestFirst` for the least name first, `NewestFirst` for the greatest.
    pub order: Order,
    /// The most names.
    pub limit: u32,
}
