//! Message consumers that never lose a message: handlers, transports, stores and the layers between them, in one crate.
//!
//! ```toml
//! [dependencies]
//! tower-dlq = { version = "0.1", features = ["nats", "postgres"] }
//! ```
//!
//! ```
//! use serde::Deserialize;
//! use tower_dlq::memory::{MemoryBroker, MemoryIdempotency, MemoryStore, MemoryTransport};
//! use tower_dlq::prelude::*;
//!
//! #[derive(Deserialize)]
//! struct Payment {
//!     id: String,
//!     cents: i64,
//! }
//!
//! #[derive(Debug, thiserror::Error, Classify)]
//! enum ChargeError {
//!     #[error("provider unavailable")]
//!     #[classify(transient)]
//!     Unavailable,
//!     #[error("amount must be positive")]
//!     #[classify(permanent)]
//!     BadAmount,
//! }
//!
//! #[dlq_handler(
//!     name = "payments.charge",
//!     max_attempts = 5,
//!     backoff = exponential("200ms", max = "30s", jitter = full),
//!     idempotency_key = |payment: &Payment| payment.id.clone(),
//! )]
//! async fn charge(Json(payment): Json<Payment>) -> Result<(), ChargeError> {
//!     if payment.cents <= 0 {
//!         return Err(ChargeError::BadAmount);
//!     }
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (broker, store) = (MemoryBroker::new(), MemoryStore::new());
//! let payments = broker.clone().with_stream("payments");
//! payments.publish(Message::new("payments.requested", r#"{"id":"p1","cents":-5}"#));
//!
//! let charge = charge::handler().idempotency(MemoryIdempotency::new()).build()?;
//! let consumer = Consumer::on(MemoryTransport::new("payments"), &broker)
//!     .handler(charge)
//!     .dead_letters(store)
//!     .open()
//!     .await?;
//! let report = consumer.run(payments.idle("payments.charge")).await;
//! assert_eq!(report.dead, 1);
//! # Ok(()) }
//! ```
//!
//! On a broker only the transport changes: `Consumer::on(NatsTransport::new("PAYMENTS"), &client)`,
//! `Consumer::on(KafkaTransport::new("payments"), &brokers)`, `Consumer::on(RedisTransport::new("payments"), &client)`.
//! Without `.dead_letters(store)` the dead go to a stream of the broker.
//!
//! # Test a handler
//!
//! The function stays a function:
//!
//! ```
//! # use serde::Deserialize;
//! # use tower_dlq::prelude::*;
//! # #[derive(Deserialize)]
//! # struct Payment { cents: i64 }
//! # #[derive(Debug, thiserror::Error, Classify)]
//! # #[error("amount must be positive")]
//! # #[classify(permanent)]
//! # struct BadAmount;
//! #[dlq_handler(max_attempts = 5)]
//! async fn charge(Json(payment): Json<Payment>) -> Result<(), BadAmount> {
//!     if payment.cents > 0 { Ok(()) } else { Err(BadAmount) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! assert!(charge(Json(Payment { cents: 5 })).await.is_ok());
//! assert!(charge(Json(Payment { cents: -5 })).await.is_err());
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `json` | yes | [`extract::Json`] |
//! | `protobuf`, `msgpack` | no | `extract::Protobuf`, `extract::MsgPack` |
//! | `nats` | no | `nats`: NATS JetStream |
//! | `kafka` | no | `kafka`: Kafka; builds librdkafka, which needs a C++ compiler |
//! | `redis` | no | `redis`: Redis Streams, and Redis as a store |
//! | `sqlite`, `postgres` | no | `sql`: stores on SQLite and PostgreSQL |
//! | `mongo` | no | `mongo`: a store on MongoDB |
//! | `testkit` | no | `testkit`: conformance suites for a transport or a store of one's own |
//!
//! Everything else is [`dlq_tower`], whose modules stand here under their own names.

pub use dlq_macros::{ClassifyOfTowerDlq as Classify, dlq_handler_of_tower_dlq as dlq_handler};
pub use dlq_tower::{
    InvalidConfig, audit, catch_panic, classify, concurrency, consumer, core, dead_letter, extract,
    handler, idempotency, metrics, retry, router, stage, store_lane, timeout, trace,
};

#[doc(hidden)]
pub use dlq_tower::__private;

/// Brokers and stores that last as long as the process, for tests and examples.
pub mod memory {
    pub use dlq_letters::memory::MemoryStore;
    pub use dlq_tower::core::idempotency::memory::MemoryIdempotency;
    pub use dlq_tower::core::memory::{
        MemoryBroker, MemoryOutbox, MemoryRetryLane, MemorySink, MemorySource, MemoryTransport,
    };
}

#[cfg(feature = "kafka")]
pub use dlq_kafka as kafka;
#[cfg(feature = "mongo")]
pub use dlq_mongo as mongo;
#[cfg(feature = "nats")]
pub use dlq_nats as nats;
#[cfg(feature = "redis")]
pub use dlq_redis as redis;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use dlq_sql as sql;
#[cfg(feature = "testkit")]
pub use dlq_testkit as testkit;

/// The names that most consumers need.
pub mod prelude {
    pub use crate::consumer::Consumer;
    pub use crate::core::{DeadLetters, ErrorClass, Filter, Message, RetryPolicy};
    #[cfg(feature = "json")]
    pub use crate::extract::Json;
    pub use crate::extract::{Attempt, State};
    pub use crate::handler::handler;
    pub use crate::router::Router;
    pub use crate::{Classify, dlq_handler};

    #[cfg(feature = "kafka")]
    pub use crate::kafka::{Brokers, KafkaTransport};
    #[cfg(feature = "nats")]
    pub use crate::nats::NatsTransport;
    #[cfg(feature = "redis")]
    pub use crate::redis::{RedisClient, RedisTransport};
}
