use bytes::Bytes;
use serde::Serialize;

use crate::store::Receipt;
use crate::store::reading::unclear;
use crate::{
    Cause, Clock as _, DeadLetter, ErrorClass, LetterId, Origin, Position, Reason, SystemClock,
    Timestamp,
};

/// Outcome of the ingest of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The store did not have it.
    Stored,
    /// The store had an earlier death of it.
    Reopened,
    /// The store has the same death with other bytes; both are kept.
    Conflicting,
    /// The store has a letter of the same original message, which took over this death.
    Merged,
    /// The store had this death.
    Known,
    /// The store has a later death of it.
    Superseded,
    /// The store does not take it, or it cannot be read. It stays with the broker.
    SetAside,
    /// It is no letter.
    Foreign,
}

impl Outcome {
    /// The word for it, in JSON and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Reopened => "reopened",
            Self::Conflicting => "conflicting",
            Self::Merged => "merged",
            Self::Known => "known",
            Self::Superseded => "superseded",
            Self::SetAside => "set_aside",
            Self::Foreign => "foreign",
        }
    }

    /// Returns true if the outcome is worth reporting although the letter came for the first time.
    #[must_use]
    pub const fn is_news(self) -> bool {
        !matches!(self, Self::Known | Self::Superseded | Self::Foreign)
    }
}

impl From<Receipt> for Outcome {
    fn from(receipt: Receipt) -> Self {
        match receipt {
            Receipt::Stored => Self::Stored,
            Receipt::Unchanged => Self::Known,
            Receipt::Reopened => Self::Reopened,
            Receipt::Superseded => Self::Superseded,
            Receipt::Conflicting(_) => Self::Conflicting,
            Receipt::Merged(_) => Self::Merged,
        }
    }
}

/// Report about a letter that is new to the store, or was set aside: its position, the reason of its death and its
/// origin, but never its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Incident {
    /// When it was told.
    pub at: Timestamp,
    /// Outcome for the letter.
    pub outcome: Outcome,
    /// Reason why the letter was set aside, or is quarantined in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// True if the incident may have been reported before.
    pub again: bool,
    /// The stream or topic of the dead letters.
    pub topic: String,
    /// The partition there, where the broker has them.
    pub partition: Option<u32>,
    /// The place there.
    pub offset: Position,
    /// The letter; nothing of a letter that cannot be read.
    #[serde(flatten)]
    pub letter: Option<IncidentLetter>,
}

/// Part of an incident that describes the letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IncidentLetter {
    /// Its identity.
    pub letter: LetterId,
    /// Deaths before this one.
    pub generation: u32,
    /// Consumer that gave the message up.
    pub consumer: String,
    /// The key of the message.
    #[serde(with = "crate::bytes_text::option")]
    pub key: Option<Bytes>,
    /// Class of the last failure: whether another attempt could have succeeded.
    pub class: ErrorClass,
    /// Reason why the message was given up.
    pub reason: Reason,
    /// Cause of the last failure.
    pub cause: Option<Cause>,
    /// The type of the last error.
    pub error_type: Option<String>,
    /// The last error: message and sources.
    pub error_message: String,
    /// Hops to a slower retry stage.
    pub retry_count: u32,
    /// Subject to which the message was addressed.
    pub subject: String,
    /// The stream or topic in which it was born.
    pub original_topic: String,
    /// The partition in which it was born.
    pub original_partition: Option<u32>,
    /// The place at which it was born.
    pub original_offset: Position,
    /// When it was published.
    pub original_timestamp: Option<Timestamp>,
}

impl Incident {
    pub(super) fn of(
        place: &Origin,
        again: bool,
        letter: Option<&DeadLetter>,
        outcome: Outcome,
        detail: Option<String>,
    ) -> Self {
        Self {
            at: SystemClock.now(),
            outcome,
            // A letter that was set aside is not in the store, which matters more than why it is unclear.
            detail: detail.or_else(|| letter.and_then(unclear).map(str::to_owned)),
            again,
            topic: place.stream().to_owned(),
            partition: place.partition(),
            offset: place.position().clone(),
            letter: letter.map(IncidentLetter::of),
        }
    }
}

impl IncidentLetter {
    fn of(letter: &DeadLetter) -> Self {
        let DeadLetter { message, origin, .. } = letter;
        Self {
            letter: letter.id,
            generation: letter.generation,
            consumer: letter.consumer.clone(),
            key: message.key().cloned(),
            class: letter.class,
            reason: letter.reason,
            cause: letter.cause,
            error_type: letter.failure().map(|failure| failure.error_type.to_string()),
            error_message: letter.error(),
            retry_count: letter.delayed_retries,
            subject: message.subject().to_owned(),
            original_topic: origin.stream().to_owned(),
            original_partition: origin.partition(),
            original_offset: origin.position().clone(),
            original_timestamp: message.published_at(),
        }
    }
}
