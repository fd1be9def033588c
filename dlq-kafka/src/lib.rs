//! Kafka as a transport: consumers that never lose a record, retry topics that never block, and the dead letters of
//! every dialect.

pub mod admin;
mod brokers;
pub mod dialect;
mod error;
mod feed;
mod ladder;
pub mod lag;
mod letters;
mod record;
mod topics;
mod wire;

pub use brokers::Brokers;
pub use feed::{IngestMark, KafkaFeed, find_topic, ingest_marks};
pub use ladder::{Ladder, Stage};
pub use lag::KafkaLag;
pub use letters::{
    Hearer, KafkaLetters, KafkaReplay, KafkaTarget, LetterScan, ReplayOutcome, ReplayPlan,
    ReplayReport, Replayed, ScanProgress, ScanRange, Skipped, StoredLetter,
};
pub use record::Record;
pub use topics::{DlqTopic, RetryTopics};

/// The client that this crate works with.
pub use rdkafka;
