//! Retry: decides what comes after each attempt, and waits in the process where the wait is short.
//!
//! # Where it goes
//!
//! Directly inside [`DeadLetterLayer`](crate::dead_letter::DeadLetterLayer) and outside permit, idempotency and
//! timeout. What is inside must be `Clone`, and classified.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use dlq_core::policy::{Backoff, RetryPolicy};
//! use dlq_core::{Delivery, ErrorClass, Message, Origin, Position, Reason};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::retry::RetryLayer;
//! use dlq_tower::stage::Verdict;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let policy = RetryPolicy::new()
//!     .with_max_attempts(2)
//!     .with_backoff(Backoff::constant(Duration::from_millis(1)));
//! let mut service = ServiceBuilder::new()
//!     .layer(RetryLayer::new(policy))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
//!     .service(service_fn(|_: Delivery| async { Err::<(), _>(std::io::Error::other("down")) }));
//!
//! let origin = Origin::new("memory", "orders", Position::Offset(1));
//! let delivery = Delivery::new(Message::new("orders", "{}"), origin);
//! let Ok(verdict) = service.ready().await.unwrap().call(delivery).await;
//! let Verdict::Dead(dead) = verdict else { panic!("{verdict:?}") };
//! assert_eq!((dead.reason, dead.attempts), (Reason::Exhausted, 2));
//! assert_eq!(dead.history.len(), 2);
//! # }
//! ```
//!
//! # On failure
//!
//! | the attempt | what comes next |
//! |---|---|
//! | failed, transient | the next one after the policy's delay; `exhausted` when there is none left |
//! | failed, permanent | dead, `permanent` |
//! | was rejected (cause `decode`, `malformed`, `oversize`) | dead, `permanent`, whatever the class says |
//! | was deferred | deferred; no attempt is counted |
//! | not made: the source [refused](dlq_core::Delivery::with_refusal) the message | dead, `permanent`, with the failure that the source names |
//! | not made: the process died too often in earlier ones | dead, `max_crashes` (a policy with `max_crashes = 0` never does so) |
//!
//! A delay is decided once, by policy, attempt and the identity of the message; the same value is slept, logged and
//! handed on. Up to the policy's limit of in-process delays, and while a [place for an in-process delay](InProcessDelays) is free, the message waits here, in
//! memory, **without a permit**, so that the healthy ones behind it go on (G4). A longer wait is handed to dead-letter
//! routing, which puts it into the retry queue.
//!
//! The attempts are counted from the delivery's own number on, so that a delayed retry or a claim that remembers earlier
//! ones is continued (G3). A crash of the process forgets those made in it since then.
//!
//! A foreign layer inside may fail with an error that carries no classified failure, such as `tower`'s own timeout: it
//! counts as a transient failure of this attempt. A service that cannot become ready has not run: its message is
//! deferred.
//!
//! A message that waits here when its consumer stops does not hold up the stop: see [`RunLoop`].
//!
//! # Cost
//!
//! One clone of the service inside per message. Nothing is allocated unless an attempt fails.

mod decide;
mod future;
mod in_process;
mod layer;
mod service;

pub(crate) use decide::is_permanent;
pub use future::ResponseFuture;
pub(crate) use in_process::stopped;
pub use in_process::{InProcessDelays, RunLoop};
pub use layer::RetryLayer;
pub use service::Retry;
pub(crate) use service::unready;
