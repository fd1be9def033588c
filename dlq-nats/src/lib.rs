//! NATS JetStream as a transport: consumers that never lose a message, their retry queue, and the stream of the dead.
//!
//! | type | what it is |
//! |---|---|
//! | [`NatsTransport`] | description of a stream; opens source, retry queue, dead letters and crash marks |
//! | [`NatsSource`] | the messages of a stream, and the consumer's retry records when they are due |
//! | [`NatsRetryQueue`] | where messages wait for an attempt that is far away |
//! | [`NatsSink`] | the stream of dead letters |
//! | [`NatsLetters`] | the letters of that stream as a log: read into an engine, or followed into a store |
//! | [`NatsReplay`] | sends them back, each once |
//! | [`NatsOutbox`] | sends letters of a store back to streams, each once |
//! | [`EventRouter`] | writes the letters of consumers that are not ours |
//! | [`NatsCrashMarks`] | marks by which a message is found that kills its process |
//! | [`NatsIdempotency`] | which keys were handled, on a key-value bucket |
//! | [`admin`] | creates what is missing, and finds what is set wrongly |
//!
//! ```no_run
//! use async_nats::Client;
//! use dlq_core::BoxError;
//! use dlq_nats::NatsTransport;
//! use dlq_tower::consumer::Consumer;
//! use dlq_tower::handler::Handles;
//!
//! async fn consume(client: Client, handler: impl Handles) -> Result<(), BoxError> {
//!     let orders = NatsTransport::new("ORDERS").subject("orders.>");
//!     let consumer = Consumer::on(orders, &client).handler(handler).open().await?;
//!     consumer.run_until_signal().await;
//!     Ok(())
//! }
//! ```
//!
//! # At the server
//!
//! The user's stream is read by a durable pull consumer with explicit acknowledgement. It has no limit of deliveries:
//! how often a message was handed out says nothing about its handler (G3), and the server would drop what reached the
//! limit in silence. It has no backoff either, which would replace its lease. Two streams are ours, [`DlqStream`] and
//! [`RetryStream`]; both are created when they are missing. What exists with other settings is reported and never
//! changed.
//!
//! # Write, confirm, settle
//!
//! A letter or a retry record is published with a deterministic id and confirmed by the server; only then is the
//! original acknowledged, and the acknowledgement is confirmed too (G1). A process that dies in between writes the same
//! letter again, which the server refuses within the stream's duplicate window and readers collapse beyond it (G2).
//!
//! # What kills its process
//!
//! A message that was handed out more often than can be explained runs alone, and each of its runs is marked in a key-value
//! bucket before it begins ([`NatsCrashMarks`]): what killed the process too often gets its letter without another run
//! (G3). Without marks it comes again as often as its lease ends, for ever, and takes along whatever else is in flight.
//!
//! # Waiting
//!
//! A short delay is spent in the process, which extends the lease. A longer one is spent in the retry stream, as a
//! message that the server itself publishes when it is due (2.12 and later); it is never published to its original
//! subject, where every consumer would hear it.
//!
//! # What is not promised
//!
//! - Order: what comes again after a crash comes after what was published meanwhile. A handler with an order key is
//!   refused on this transport.
//! - Against the loss of power: unless `sync_interval` is `always`, a server confirms before its disk has it. Three
//!   replicas, or that setting, are the answer; both are the operator's.
//! - One letter in domains that are connected, as those of a hub and its leaf nodes, where each has a stream of the same
//!   subjects: both keep it. Only the domain that was asked for confirms; give the streams other names and prefixes.
//! - Retention: dead letters are removed by the server when the stream's `max_age` has passed, resolved or not.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `router` | no | [`EventRouter`], which `dlq route` runs |

pub mod admin;
mod client;
mod consumer;
mod dead;
pub mod idempotency;
mod outbox;
pub mod router;

pub use client::jetstream::JetStream;
pub use client::streams::{AdvisoryStream, DlqStream, RetryStream};
pub use consumer::marks::NatsCrashMarks;
pub use consumer::retry_queue::NatsRetryQueue;
pub use consumer::settle::NatsSettle;
pub use consumer::source::NatsSource;
pub use consumer::transport::{NatsTransport, Start};
pub use dead::sink::NatsSink;
pub use dead::{
    NatsEntries, NatsLetters, NatsReplay, NatsTarget, Progress, QueueDepth, ReplayOutcome,
    ReplayPlan, ReplayReport, Replayed, Skipped, StoredLetter, Subscriber,
};
pub use idempotency::{IdempotencyBucket, NatsIdempotency};
pub use outbox::NatsOutbox;
#[cfg(feature = "router")]
pub use router::EventRouter;

/// The letters of a log as an engine has them; with [`NatsLetters`], those of a stream.
pub use dlq_letters::log::Reading;

/// The client that this crate works with.
pub use async_nats;
