//! Catch panic: a handler that panics fails its attempt instead of taking the consumer down.
//!
//! # Where it goes
//!
//! Around [`ClassifyLayer`](crate::classify::ClassifyLayer), inside the timeout.
//!
//! # Example
//!
//! ```
//! use dlq_core::{Cause, Delivery, ErrorClass, Message, Origin, Position};
//! use dlq_tower::catch_panic::CatchPanicLayer;
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::stage::Setback;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut service = ServiceBuilder::new()
//!     .layer(CatchPanicLayer::new())
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
//!     .service(service_fn(|delivery: Delivery| async move {
//!         assert!(delivery.message().payload().is_some(), "a tombstone");
//!         Ok(())
//!     }));
//!
//! let origin = Origin::new("memory", "orders", Position::Offset(1));
//! let delivery = Delivery::new(Message::tombstone("orders"), origin);
//! let setback = service.ready().await.unwrap().call(delivery).await.unwrap_err();
//! let Setback::Failed(attempt) = setback else { panic!("{setback}") };
//! assert_eq!(attempt.failure.cause, Cause::Panic);
//! assert_eq!(attempt.failure.message(), "a tombstone");
//! # }
//! ```
//!
//! # On failure
//!
//! A panic becomes a failure with cause `panic`, permanent unless the [policy](CatchPanicLayer::policy) says `retry`.
//! Its message is the panic's text where it has one. *Where* it panicked is not recorded: the place is known only to
//! the program's panic hook, which keeps printing it.
//!
//! A panic aborts the process where the program is compiled with `panic = "abort"`; then only
//! [crash marks](dlq_core::CrashMarks) or an idempotency store find the message that does it.
//!
//! State that the handler shares by reference (behind a lock, say) may be half changed after a panic; a poisoned
//! `std::sync::Mutex` says so.
//!
//! # Cost
//!
//! A few nanoseconds per attempt; nothing is allocated.

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub(crate) use future::{discard, failure_of};
pub use layer::CatchPanicLayer;
pub use service::CatchPanic;
