//! Tower layers, handlers, router and run loop for consumers that must not lose a message.
//!
//! Put [`#[dlq_handler]`](dlq_handler) on an async function, give it to a [`Consumer`](consumer::Consumer), and every
//! message is either handled or has a dead letter with everything that was tried, which can be sent back.
//!
//! ```
//! use dlq_tower::consumer::Consumer;
//! use dlq_tower::core::memory::MemoryBroker;
//! use dlq_letters::memory::MemoryStore;
//! use dlq_tower::core::{DeadLetters, Filter, Message, Reason};
//! use dlq_tower::extract::{Json, State};
//! use dlq_tower::{Classify, dlq_handler};
//!
//! #[derive(Debug, Classify)]
//! enum ChargeError {
//!     #[classify(transient)]
//!     Timeout,
//!     #[classify(permanent)]
//!     BadAmount,
//! }
//! # impl std::fmt::Display for ChargeError {
//! #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") }
//! # }
//! # impl std::error::Error for ChargeError {}
//!
//! #[derive(serde::Deserialize)]
//! struct Payment {
//!     amount: i64,
//! }
//!
//! #[derive(Clone)]
//! struct Gateway;
//!
//! #[dlq_handler(name = "payments.charge", max_attempts = 5, timeout = "10s")]
//! async fn charge(Json(payment): Json<Payment>, State(_): State<Gateway>) -> Result<(), ChargeError> {
//!     if payment.amount > 0 { Ok(()) } else { Err(ChargeError::BadAmount) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = MemoryBroker::new().stream("payments");
//! broker.publish(Message::new("payments", r#"{"amount": 5}"#));
//! broker.publish(Message::new("payments", r#"{"amount": -5}"#));
//! broker.publish(Message::new("payments", "not JSON"));
//!
//! let store = MemoryStore::new();
//! let consumer = Consumer::builder(broker.source("billing"))
//!     .handler(charge::handler().with_state(Gateway).build()?)
//!     .dead_letters(store.clone())
//!     .build()?;
//! let report = consumer.run(broker.idle("billing")).await;
//! assert_eq!((report.handled, report.dead), (1, 2));
//!
//! let letters = DeadLetters::new(store);
//! assert_eq!(letters.count(Filter::new().with_reason(Reason::Permanent)).await?, 2);
//! # Ok(()) }
//! ```
//!
//! # How it is put together
//!
//! Each concern is a layer of its own for any `Service<Delivery>`; the attribute composes the same layers. Outermost
//! first: [trace], [metrics] and [audit], [dead-letter routing](dead_letter), [retry], [permit](concurrency),
//! [idempotency], [timeout], [panic guard](catch_panic), [classify], the [handler] with its [extractors](extract).
//! [`stage`] says what they hand each other; a wrong order does not compile. A [`router`] sends subjects and event
//! types to several handlers. The [`consumer`] runs a stack over a source, and over what is due in a store
//! ([`store_source`]).
//!
//! # Guarantees
//!
//! Delivery is at least once; with an idempotency store a handler's success is recorded once per key. Write, confirm,
//! settle: a message is acknowledged only when its handler has succeeded or its record is durable. What happens when
//! the process dies between any two steps stands in [`consumer`]'s manual.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `json` | yes | [`extract::Json`] |
//! | `protobuf` | no | `extract::Protobuf`, by `prost` |
//! | `msgpack` | no | `extract::MsgPack` |
//! | `backoff` | no | retry policies of the unmaintained `backoff` crate |

pub mod audit;
pub mod catch_panic;
pub mod classify;
pub mod concurrency;
pub mod consumer;
pub mod dead_letter;
pub mod extract;
pub mod handler;
pub mod idempotency;
pub mod metrics;
pub mod retry;
pub mod router;
pub mod stage;
pub mod store_source;
pub mod timeout;
pub mod trace;

mod backoff;
mod invalid;
mod reuse;

#[doc(hidden)]
pub mod __private;

pub use dlq_core as core;
pub use dlq_macros::{Classify, dlq_handler};
pub use invalid::InvalidConfig;
