//! Concurrency: at most so many attempts run at once, in all clones of the service together.
//!
//! # Where it goes
//!
//! Inside retry and around idempotency. The permit is **per attempt**: a message that waits for its next attempt holds
//! none, so that those behind it go on (G4). It does not compile outside retry.
//!
//! # Example
//!
//! ```
//! use dlq_core::{Delivery, ErrorClass};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::concurrency::ConcurrencyLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut first = ServiceBuilder::new()
//!     .layer(ConcurrencyLayer::new(1))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
//!     .service(service_fn(|_: Delivery| async { Ok(()) }));
//! let mut second = first.clone();
//!
//! first.ready().await.unwrap();
//! let mut waits = Box::pin(second.ready());
//! assert!(futures_util::poll!(waits.as_mut()).is_pending());
//! drop(first);
//! waits.await.unwrap();
//! # }
//! ```
//!
//! # On failure
//!
//! It never fails. It makes its callers wait in `poll_ready`, in the order in which they came.
//!
//! # Cost
//!
//! Two atomic steps per attempt; nothing is allocated unless the caller has to wait.

mod future;
mod layer;
mod permits;
mod service;

pub use future::ResponseFuture;
pub use layer::ConcurrencyLayer;
pub use service::Concurrency;

pub(crate) use permits::{Permits, Taker};
