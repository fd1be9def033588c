//! Kafka as a transport: consumers that never lose a record, retry topics that never block, and the dead letters of
//! every dialect.

mod brokers;
pub mod dialect;
mod error;
mod ladder;
mod letters;
mod record;
mod wire;

pub use brokers::Brokers;
pub use ladder::{Ladder, Stage};
pub use letters::{
    Hearer, KafkaLetters, KafkaReplay, KafkaTarget, LetterScan, ReplayOutcome, ReplayPlan,
    ReplayReport, Replayed, ScanProgress, ScanRange, Skipped, StoredLetter,
};
pub use record::Record;

/// The client that this crate works with.
pub use rdkafka;
