//! Classify: turns a handler's error into a [`Failure`](dlq_core::Failure) that knows whether another attempt could
//! succeed.
//!
//! # Where it goes
//!
//! Directly around the handler, innermost of all layers. Every other layer of this crate needs it inside.
//!
//! # Example
//!
//! ```
//! use dlq_core::{Delivery, ErrorClass, Message, Origin, Position};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::stage::Setback;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut service = ServiceBuilder::new()
//!     .layer(ClassifyLayer::new(|error: &std::io::Error| match error.kind() {
//!         std::io::ErrorKind::InvalidData => ErrorClass::Permanent,
//!         _ => ErrorClass::Transient,
//!     }))
//!     .service(service_fn(|_: Delivery| async {
//!         Err::<(), _>(std::io::Error::new(std::io::ErrorKind::InvalidData, "not an order"))
//!     }));
//!
//! let origin = Origin::new("memory", "orders", Position::Offset(1));
//! let delivery = Delivery::new(Message::new("orders", "{}"), origin);
//! let setback = service.ready().await.unwrap().call(delivery).await.unwrap_err();
//! let Setback::Failed(attempt) = setback else { panic!("{setback}") };
//! assert_eq!(attempt.failure.class, ErrorClass::Permanent);
//! assert_eq!(attempt.failure.message(), "not an order");
//! # }
//! ```
//!
//! # On failure
//!
//! The error value is judged, then read whole (type name, message, every source, bounded in length and number) and
//! dropped. The failure carries the number of the attempt, when it ended and how long it took.
//!
//! # Cost
//!
//! One reading of the monotonic clock per attempt; nothing is allocated unless the attempt fails.

mod errors;
mod future;
mod layer;
mod service;

pub use errors::{ClassifyErrors, ClassifyErrorsFuture, ClassifyErrorsLayer};
pub use future::ResponseFuture;
pub use layer::{ClassifyLayer, Derived};
pub use service::Classify;
