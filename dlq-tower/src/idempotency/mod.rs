//! Idempotency: a message is handled once per consumer and key, also when it is delivered again.
//!
//! # Where it goes
//!
//! Around the timeout, inside retry and permit: each attempt claims the key, and gives it back.
//!
//! # Example
//!
//! ```
//! use dlq_core::idempotency::memory::MemoryIdempotency;
//! use dlq_core::{Delivery, ErrorClass, Message, Origin, Position};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::idempotency::IdempotencyLayer;
//! use dlq_tower::stage::Done;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let store = MemoryIdempotency::new();
//! let mut service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::new(store, |delivery| delivery.message().key().cloned()))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
//!     .service(service_fn(|_: Delivery| async { Ok(()) }));
//!
//! let message = Message::new("payments", "{}").with_key("payment-7");
//! let delivery = Delivery::new(message, Origin::new("memory", "payments", Position::Offset(1)));
//! let first = service.ready().await.unwrap().call(delivery.clone()).await;
//! let second = service.ready().await.unwrap().call(delivery).await;
//! assert_eq!((first.unwrap(), second.unwrap()), (Done::Succeeded, Done::Duplicate));
//! # }
//! ```
//!
//! # What becomes of a message
//!
//! | its key is | the message |
//! |---|---|
//! | none (the function gives `None`) | is handled without a claim |
//! | new | is handled; the claim is extended while the handler runs |
//! | in flight elsewhere | is deferred for the rest of that lease; nothing is counted |
//! | done | is a duplicate; the handler does not run |
//!
//! The claim remembers failed attempts, and claims that ended without a word. A run continues their count, so that a
//! message whose process died is not started over (G3); past [`max_crashes`](IdempotencyLayer::max_crashes) such ends
//! it is not run any more, and dies. Earlier lives are not held against a message that is replayed: the key's counts,
//! which span them, are not used for it, and its letter counts its attempts and crashes instead.
//!
//! # On failure
//!
//! The key becomes done only when the handler has succeeded, and is free again when it failed, so that a retry or a
//! replay is never taken for a duplicate. A handler that is deferred or dropped midway gives its claim back uncounted;
//! giving back after a drop runs as a task of its own, see [`drained`](IdempotencyLayer::drained), unless the store is
//! immediate.
//!
//! A key function that panics fails its message for good: without its key it is not handled.
//!
//! A store that does not answer when the key is claimed defers the message. One that does not answer when the key is to
//! become done changes nothing about the handler's success: it is logged, and the key stays claimed until its lease
//! ends; the same message delivered again after that would run again.
//!
//! The mark is a second write after the handler's own effects. Between the two the process may die, and then the
//! message runs again: make the effect itself safe to repeat, or write both in one transaction. A handler that was cut
//! off by its timeout counts as failed, though what it had sent may still take effect.
//!
//! # Cost
//!
//! Two calls of the store per message with a key. A store that [is immediate](dlq_core::idempotency::Idempotency::immediate)
//! is called in place, and nothing is allocated while the handler does not wait; any other costs two allocations besides
//! its own, to which a [`BoxIdempotency`](dlq_core::idempotency::BoxIdempotency) adds one for each call. Nothing for
//! messages without a key.

mod claimed;
mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::IdempotencyLayer;
pub use service::Idempotency;
