//! A letter of another system that we sent back, and that died there again.

use std::sync::Arc;

use dlq_core::protocol::{Claimed, names, split};
use dlq_core::{Death, Message, Origin, Timestamp};

use crate::client::record::Record;

/// Headers that our replay wrote onto the record.
pub(super) struct Replayed {
    /// The death that was replayed.
    pub(super) death: Death,
    /// Position where the message was born.
    pub(super) origin: Origin,
    /// When it was published there.
    pub(super) published_at: Option<Timestamp>,
    /// Number of times that the letter was sent back.
    pub(super) replays: u32,
}

impl Replayed {
    /// Reads it, if it was a letter of this consumer. The system copied our headers from the replay to the new dead letter;
    /// they are believed where a consumer of ours would believe them.
    pub(super) fn of(record: &Record, consumer: &str, cluster: &Arc<str>) -> Option<Self> {
        // Looked for first, as the rest hashes the payload, and most foreign letters were never sent back.
        record.headers.get(names::DLQ_ID)?;
        let mut message = Message::tombstone("").with_payload(record.value.clone());
        if let Some(key) = &record.key {
            message = message.with_key(key.clone());
        }
        let said = split(&record.headers).1;
        // The secret of the consumers of a cluster is not needed to read what is at rest.
        let claimed = said.claimed(&message, consumer, &record.origin(cluster), None)?;
        let Claimed { death, origin } = claimed;
        let (published_at, replays) = (said.original.timestamp, said.replays.unwrap_or(0));
        Some(Self { death, origin, published_at, replays })
    }
}
