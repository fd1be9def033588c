//! Timeout: an attempt that takes too long is cut off and fails.
//!
//! # Where it goes
//!
//! Around [`CatchPanicLayer`](crate::catch_panic::CatchPanicLayer), inside idempotency, permit and retry: each attempt
//! has its own time, and waiting between attempts costs none of it.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use dlq_core::{Cause, Delivery, ErrorClass, Message, Origin, Position};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::stage::Setback;
//! use dlq_tower::timeout::TimeoutLayer;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut service = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Duration::from_millis(10)))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Permanent))
//!     .service(service_fn(|_: Delivery| std::future::pending::<Result<(), std::io::Error>>()));
//!
//! let origin = Origin::new("memory", "orders", Position::Offset(1));
//! let delivery = Delivery::new(Message::new("orders", "{}"), origin);
//! let setback = service.ready().await.unwrap().call(delivery).await.unwrap_err();
//! let Setback::Failed(attempt) = setback else { panic!("{setback}") };
//! assert_eq!(attempt.failure.cause, Cause::Timeout);
//! assert_eq!(attempt.failure.class, ErrorClass::Transient);
//! # }
//! ```
//!
//! # On failure
//!
//! The handler's future is dropped where it last waited, and the attempt fails with cause `timeout`, transient. What
//! the handler had already asked a remote service to do **may still happen**: a request that was sent is not called
//! back. A panic while it is dropped changes nothing more. Make such an effect idempotent at the remote side, or write effect and idempotency mark in one transaction.
//!
//! A handler that computes without ever waiting cannot be cut off.
//!
//! # Cost
//!
//! Nothing for a handler that is done when it is first polled: the timer is armed only when it waits. Nothing is
//! allocated.

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::TimeoutLayer;
pub use service::Timeout;
