use std::fmt;

use dlq_core::store::{GroupKey, Heartbeat};

/// Kind of a small text that a store keeps beside its letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DocumentKind {
    /// [Record](dlq_core::store::GroupRecord) of a group of errors.
    Group,
    /// [Presence](dlq_core::store::Presence) of a consumer in a process.
    Presence,
}

impl DocumentKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Group, Self::Presence];

    /// Returns its name in the stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Presence => "presence",
        }
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
