//! [`Gap`]: what is not known of a letter, and the attributes that say so.

use std::fmt;

use dlq_core::DeadLetter;

/// Something that a dialect does not say, although a [`DeadLetter`] has a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gap {
    /// The topic it was born in: the subject is the topic of the dead letters.
    Topic,
    /// The partition and offset it was born at: the origin is where the dead letter stands.
    Origin,
    /// The consumer that failed is unknown: `consumer` is empty.
    Consumer,
    /// The class is unknown: it is set to permanent, so that no schedule sends the letter back.
    Class,
    /// The reason of the death is unknown: it is set to manual.
    Reason,
    /// The number of runs is unknown: the attempts are 0.
    Attempts,
    /// When it died: the time is that of the record, which can be older.
    DiedAt,
    /// The bytes: the letter points to where they are, or were. See [`POINTER`].
    Payload,
}

impl Gap {
    /// The word for it in [`UNKNOWN`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Origin => "origin",
            Self::Consumer => "consumer",
            Self::Class => "class",
            Self::Reason => "reason",
            Self::Attempts => "attempts",
            Self::DiedAt => "died-at",
            Self::Payload => "payload",
        }
    }

    /// Returns true if `letter` lacks this fact. Letters that this crate wrote lack nothing.
    #[must_use]
    pub fn is_in(self, letter: &DeadLetter) -> bool {
        let unknown = letter.attributes.get(UNKNOWN);
        unknown.is_some_and(|words| words.split(',').any(|word| word == self.as_str()))
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The attribute with the name of the dialect.
pub const DIALECT: &str = "dlq.dialect";
/// The attribute with what is not known of a letter: the words of [`Gap`], joined by commas.
pub const UNKNOWN: &str = "dlq.unknown";
/// The attribute with the place of the record that a letter without a copy stands for: `topic/partition/offset`.
pub const POINTER: &str = "kafka.pointer";
/// The attribute with the place where it stood before its latest death, if it was born elsewhere:
/// `topic/partition/offset`.
pub const PREVIOUS: &str = "kafka.previous";
/// The attribute with the number of headers whose names are not UTF-8, which the client does not give out.
pub const UNREADABLE_HEADERS: &str = "kafka.unreadable-headers";
