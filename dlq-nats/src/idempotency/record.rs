use std::time::Duration;

use dlq_core::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// In flight until the lease ends.
    Held,
    Done,
    Free,
}

/// The value of an entry. When it was written is said by the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) phase: Phase,
    /// Length of the lease, or time for which a finished key is kept.
    #[serde(with = "nanos")]
    pub(super) span: Duration,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// The revision of the claim; absent when that is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
}

/// An entry as it was read.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// `None` when the entry was removed by hand.
    pub(super) record: Option<Record>,
    pub(super) fence: u64,
    pub(super) revision: u64,
    /// When it was written.
    pub(super) at: Timestamp,
}

mod nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}
