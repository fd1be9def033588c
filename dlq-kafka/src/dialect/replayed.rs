//! A letter of another system that we sent back, and that died there again.

use std::sync::Arc;

use dlq_core::protocol::{names, split};
use dlq_core::{Death, Message, Origin, Timestamp};

use crate::record::Record;

/// What our replay wrote onto it.
pub(super) struct Replayed {
    /// The death that was replayed.
    pub(super) death: Death,
    /// Where it was born.
    pub(super) origin: Option<Origin>,
    /// When it was published there.
    pub(super) published_at: Option<Timestamp>,
    /// How often it was sent back.
    pub(super) replays: u32,
}

impl Replayed {
    /// Reads it, if it was a letter of this consumer. The system copied our headers from the replay to the new dead letter;
    /// they are believed if they fit its bytes.
    pub(super) fn of(record: &Record, consumer: &str, cluster: &Arc<str>) -> Option<Self> {
        record.headers.get(names::DLQ_ID)?;
        let mut message = Message::tombstone("").with_payload(record.value.clone());
        if let Some(key) = &record.key {
            message = message.with_key(key.clone());
        }
        let said = split(&record.headers).1;
        let death = said.death(&message, consumer, false)?;
        let born = said.original;
        let origin = born.topic.zip(born.offset).zip(born.partition);
        let origin = origin.map(|((topic, offset), partition)| {
            Origin::new("kafka", topic, offset)
                .with_cluster(Arc::clone(cluster))
                .with_partition(partition)
        });
        let replays = said.replays.unwrap_or(0);
        Some(Self { death, origin, published_at: born.timestamp, replays })
    }
}
