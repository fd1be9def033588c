//! Kafka as a transport: consumers that never lose a record, retry topics that never block, and dead letters of every
//! dialect.
//!
//! | type | what it is |
//! |---|---|
//! | [`Brokers`] | where the cluster is, and how to speak to it |
//! | [`KafkaTransport`] | description of topics; opens source, retry queue, dead letters and crash marks |
//! | [`KafkaSource`] | the records of its topics, and of its retry topics when they are due |
//! | [`KafkaRetryQueue`] | the retry topics, where messages wait for an attempt that is far away |
//! | [`KafkaSink`] | the topic of dead letters |
//! | [`KafkaLetters`] | reads the letters of that topic, whoever wrote them, or follows them into a store |
//! | [`KafkaReplay`] | sends them back, each once |
//! | [`KafkaOutbox`] | sends letters of a store back to topics, each once |
//! | [`KafkaCrashMarks`] | marks by which a record is found that kills its process |
//! | [`KafkaLag`] | how far a consumer is behind, topic by topic |
//! | [`admin`] | creates what is missing, and finds what is set wrongly |
//! | [`dialect`] | how dead letters of Spring, Connect, Streams and others are read |
//!
//! ```no_run
//! use dlq_core::BoxError;
//! use dlq_kafka::{Brokers, KafkaTransport};
//! use dlq_tower::consumer::Consumer;
//! use dlq_tower::handler::Handles;
//!
//! async fn consume(handler: impl Handles) -> Result<(), BoxError> {
//!     let brokers = Brokers::at("localhost:9092");
//!     let orders = KafkaTransport::new("orders").create_missing_topics();
//!     let consumer = Consumer::on(orders, &brokers).handler(handler).open().await?;
//!     consumer.run_until_signal().await;
//!     Ok(())
//! }
//! ```
//!
//! # Offsets
//!
//! Many records of a partition are in flight at the same time, and end in any order. Committed is the lowest offset that is
//! not done; when all are, the highest that is, plus one. The metadata of the commit holds the ranges of offsets that are
//! done above it, and the next process passes over those: a record that waits for long makes nothing run again. Brokers take
//! 4 KiB of metadata, which is some thousand ranges; where there are more, the lowest are kept. What was done since the last
//! commit, and what had no room in it, runs again after a crash: give handlers an idempotency key. How far beyond that
//! record a partition is read is bounded ([`max_span`](KafkaTransport::max_span)).
//!
//! | the process dies after | what the brokers have | what happens next |
//! |---|---|---|
//! | a record was fetched | the commit before it | it comes again |
//! | its handler has succeeded | the same | it runs again |
//! | its retry record or letter was sent | that record, or not | it runs again; the copy of a hop is passed over while the first waits in the same process, the copy of a letter is read as one |
//! | it was settled | the commit of up to 100 ms ago | it runs again |
//! | its commit was confirmed | the commit | it is over |
//!
//! A partition that goes to another process is drained for a while ([`drain`](KafkaTransport::drain)), committed
//! and given up. What ends later changes nothing there: it belongs to an assignment that is over.
//!
//! Offsets at which no record comes, those of the marks that end transactions and of what was taken back, are committed a
//! second or two after everything before them is done, so that the lag of a group that has done everything is 0.
//!
//! A topic that is deleted and made again under a running consumer is one to stop the consumer for first, see [`KafkaSource`].
//!
//! # Retry topics
//!
//! A message that has to wait longer than the process holds it goes to the first stage of the [`Ladder`] that is long
//! enough. One process reads the topic and all its stages. A record that is not due waits in memory with a timer: no poll
//! loop sleeps, no partition blocks another, and it is a millisecond or two late. What is in memory is bounded
//! ([`max_waiting`](KafkaTransport::max_waiting)); beyond that a stage is paused, as flow control only. A record
//! that waits longer than its stage is written into the stage again when that time is over, which counts no attempt: so it
//! makes room for what is due behind it.
//!
//! # Records that kill their process
//!
//! Kafka does not say how often a record was handed out. So each owner of a partition leaves a word in the metadata of its
//! commits, and another when it leaves in good order. Who takes over from an owner that died counts that, and reads few
//! records ahead until it is past the place, each after a commit that says how far it goes; after two deaths in a row there,
//! the records that were handed out and are not done are suspects and run alone, with a mark in the commit before each run
//! ([`KafkaCrashMarks`]). A partition whose owners do not die pays nothing for it.
//!
//! # One letter per death
//!
//! Kafka keeps what it is given, so a process that dies between a write and its commit writes twice. Letters and hops have
//! a deterministic identity; readers take copies for one. Retry records and letters carry the name of their group, so that
//! groups can share topics.
//!
//! # What is not promised
//!
//! - Effects of handlers are repeated after a crash, as said above. Transactions are used by replays only.
//! - Order of a key beyond a retry topic: what waits there comes later than what was produced meanwhile. A handler with an
//!   order key waits in the process instead, however long.
//! - Retention: letters are removed by the brokers when their time has passed, resolved or not.
//! - Records of an aborted transaction are not seen here; Java's consumers see them unless they are `read_committed`.
//! - A header whose name is not UTF-8 cannot be read by the client that this crate rests on. Its record is handled without
//!   it, and a warning says where it stands. The client panics at it, which is caught here; a program that is built with
//!   `panic = "abort"` ends instead, and is told so before the first header is read. A name is read up to its first NUL.

pub mod admin;
mod client;
mod consumer;
mod dead;
pub mod dialect;
mod outbox;

pub use client::brokers::Brokers;
pub use client::ladder::{Ladder, Stage};
pub use client::record::Record;
pub use client::topics::{DlqTopic, RetryTopics};
pub use consumer::gauges::{
    DLQ_KAFKA_ANEW, DLQ_KAFKA_LATENESS_SECONDS, DLQ_KAFKA_LOST, DLQ_KAFKA_NEXT_DUE_SECONDS,
    DLQ_KAFKA_PAUSED, DLQ_KAFKA_RETRIES, DLQ_KAFKA_UNCLAIMED, DLQ_KAFKA_WAITING,
};
pub use consumer::lag::{self, KafkaLag};
pub use consumer::lines::Concurrency;
pub use consumer::marks::KafkaCrashMarks;
pub use consumer::retry_queue::KafkaRetryQueue;
pub use consumer::settle::KafkaSettle;
pub use consumer::source::KafkaSource;
pub use consumer::transport::{KafkaTransport, Start};
pub use dead::sink::KafkaSink;
pub use dead::{
    KafkaEntries, KafkaLetters, KafkaReplay, KafkaTarget, QueueDepth, QueueDepthReader,
    ReplayOutcome, ReplayPlan, ReplayReport, Replayed, ScanRange, Skipped, Subscriber, find_topic,
};
pub use outbox::KafkaOutbox;

/// The letters of a log as an engine has them; with [`KafkaLetters`], those of a topic.
pub use dlq_letters::log::Reading;

/// The client that this crate works with.
pub use rdkafka;
