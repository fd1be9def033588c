//! Kafka as a transport: consumers that never lose a record, retry topics that never block, and the dead letters of
//! every dialect.

pub mod admin;
mod blocked;
mod brokers;
mod consumer;
pub mod dialect;
mod error;
mod feed;
mod handover;
mod ladder;
pub mod lag;
mod lane;
mod letters;
mod lines;
mod marks;
mod partition;
mod poll;
mod produce;
mod reading;
mod rebalance;
mod record;
mod settle;
mod shared;
mod sink;
mod source;
mod topics;
mod tracker;
mod waiting;
mod wire;

pub use brokers::Brokers;
pub use consumer::{KafkaConsumer, Start};
pub use feed::{IngestMark, KafkaFeed, find_topic, ingest_marks};
pub use ladder::{Ladder, Stage};
pub use lag::KafkaLag;
pub use lane::KafkaRetryLane;
pub use letters::{
    Hearer, KafkaLetters, KafkaReplay, KafkaTarget, LetterScan, ReplayOutcome, ReplayPlan,
    ReplayReport, Replayed, ScanProgress, ScanRange, Skipped, StoredLetter,
};
pub use lines::Concurrency;
pub use marks::KafkaCrashMarks;
pub use record::Record;
pub use settle::KafkaSettle;
pub use sink::KafkaSink;
pub use source::KafkaSource;
pub use topics::{DlqTopic, RetryTopics};

/// The client that this crate works with.
pub use rdkafka;
