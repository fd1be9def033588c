//! Kafka as a transport: consumers that never lose a record, retry topics that never block, and the dead letters of
//! every dialect.

mod brokers;
pub mod dialect;
mod error;
mod feed;
mod ladder;
mod record;
mod wire;

pub use brokers::Brokers;
pub use feed::{IngestMark, KafkaFeed, ingest_marks};
pub use ladder::{Ladder, Stage};
pub use record::Record;

/// The client that this crate works with.
pub use rdkafka;
