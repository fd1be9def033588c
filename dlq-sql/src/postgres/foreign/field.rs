//! Meanings of columns for a letter, and the tables whose columns are known.

use std::fmt;
use std::str::FromStr;

/// A name that is not one of [`Field`]s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not something of a letter; expected one of: {}", names())]
pub struct UnknownField {
    name: String,
}

fn names() -> String {
    Field::ALL.iter().map(|field| field.as_str()).collect::<Vec<_>>().join(", ")
}

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Something of a letter that a column can say; its text form is its name in mappings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Field { $($(#[$doc])* $variant),+ }

        impl Field {
            /// Every field, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The text form.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

fields! {
    /// The producer's own id of the message.
    Id = "id",
    /// Address of the message. The event stands in for a missing one.
    Subject = "subject",
    /// The type of the event.
    Event = "event",
    /// The message's bytes. NULL is a tombstone.
    Payload = "payload",
    /// The message's key.
    Key = "key",
    /// The headers: an object of JSON.
    Headers = "headers",
    /// The error's message.
    Error = "error",
    /// The error's type.
    ErrorType = "error-type",
    /// The stack trace.
    Stacktrace = "stacktrace",
    /// `transient` or `permanent`.
    Class = "class",
    /// Reason why the message was given up.
    Reason = "reason",
    /// Status of the letter, in a word.
    Status = "status",
    /// Times it was sent back.
    RetryCount = "retry-count",
    /// When it was to be sent back. Nothing is arranged by it.
    RetryAfter = "retry-after",
    /// Consumer that gave the message up.
    Consumer = "consumer",
    /// The program that wrote it.
    Service = "service",
    /// When the message was published.
    PublishedAt = "published-at",
    /// When it died.
    CreatedAt = "created-at",
    /// When the row was last changed.
    UpdatedAt = "updated-at",
    /// When it was last sent back, with whatever result.
    LastRetryAt = "last-retry-at",
    /// When it was sent back for good: it is resolved.
    RetriedAt = "retried-at",
    /// When it was set aside.
    QuarantinedAt = "quarantined-at",
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(name: &str) -> Result<Self, UnknownField> {
        let found = Self::ALL.iter().find(|field| field.as_str() == name);
        found.copied().ok_or_else(|| UnknownField { name: name.chars().take(80).collect() })
    }
}

impl Field {
    pub(super) const fn is_time(self) -> bool {
        matches!(
            self,
            Self::PublishedAt
                | Self::CreatedAt
                | Self::UpdatedAt
                | Self::LastRetryAt
                | Self::RetriedAt
                | Self::QuarantinedAt
        )
    }

    /// Returns true if the letter holds the value exactly as the row does, so that the row's text need not be kept
    /// beside it.
    pub(super) const fn is_exact(self) -> bool {
        !matches!(self, Self::Status | Self::RetryAfter | Self::Class | Self::Reason)
    }
}

/// A table whose columns are known.
pub(super) struct KnownLayout {
    pub(super) name: &'static str,
    /// The columns by which it is told.
    told_by: &'static [&'static str],
    /// Meanings of its columns; the first that exists counts.
    columns: &'static [(&'static str, Field)],
}

const KNOWN_LAYOUTS: &[KnownLayout] = &[
    KnownLayout {
        name: "event_dlq",
        told_by: &["event_name", "original_id", "payload", "error"],
        columns: &[
            ("event_name", Field::Event),
            ("original_id", Field::Id),
            ("payload", Field::Payload),
            ("metadata", Field::Headers),
            ("error", Field::Error),
            ("retry_count", Field::RetryCount),
            ("source", Field::Service),
            ("created_at", Field::CreatedAt),
            ("retried_at", Field::RetriedAt),
            ("quarantined_at", Field::QuarantinedAt),
        ],
    },
    KnownLayout {
        name: "subject_data",
        told_by: &["event_id", "subject", "data", "error"],
        columns: &[
            ("event_id", Field::Id),
            ("subject", Field::Subject),
            ("data", Field::Payload),
            ("error", Field::Error),
            ("retry_count", Field::RetryCount),
            ("created_at", Field::CreatedAt),
            ("last_retry_at", Field::LastRetryAt),
        ],
    },
    KnownLayout {
        name: "event_type",
        told_by: &["event_type", "payload", "error_reason", "status"],
        columns: &[
            ("event_type", Field::Event),
            ("payload", Field::Payload),
            ("error_reason", Field::Error),
            ("error_stacktrace", Field::Stacktrace),
            ("status", Field::Status),
            ("retry_count", Field::RetryCount),
            ("retry_after", Field::RetryAfter),
            ("created_at", Field::CreatedAt),
            ("updated_at", Field::UpdatedAt),
        ],
    },
    KnownLayout {
        name: "messagetype",
        told_by: &["messagetype", "retries", "replay_status"],
        columns: &[
            ("messagetype", Field::Event),
            ("payload", Field::Payload),
            ("message", Field::Payload),
            ("error_reason", Field::Error),
            ("error_message", Field::Error),
            ("error", Field::Error),
            ("error_stacktrace", Field::Stacktrace),
            ("retries", Field::RetryCount),
            ("replay_status", Field::Status),
            ("retry_after", Field::RetryAfter),
            ("created_at", Field::CreatedAt),
            ("updated_at", Field::UpdatedAt),
        ],
    },
];

impl KnownLayout {
    /// The one that has these columns.
    pub(super) fn of(has: impl Fn(&str) -> bool) -> Option<&'static Self> {
        KNOWN_LAYOUTS.iter().find(|layout| layout.told_by.iter().all(|column| has(column)))
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, Field)> {
        self.columns.iter().copied()
    }

    /// Returns the columns by which tables are recognised, in words.
    pub(super) fn known() -> String {
        KNOWN_LAYOUTS
            .iter()
            .map(|layout| layout.told_by.join(", "))
            .collect::<Vec<_>>()
            .join("; or ")
    }
}
