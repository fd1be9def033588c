//! Dead-letter routing: writes what the retry stage gave up or postponed, and only then says what to tell the broker.
//!
//! # Where it goes
//!
//! Directly around [`RetryLayer`](crate::retry::RetryLayer); metrics and trace go around it. It is the only layer that
//! makes a [`Settlement`](crate::stage::Settlement), which a consumer needs: a stack without it does not compile.
//!
//! # Example
//!
//! ```
//! use dlq_letters::memory::MemoryStore;
//! use dlq_core::{Delivery, Disposition, ErrorClass, Message, Origin, Position};
//! use dlq_tower::classify::ClassifyLayer;
//! use dlq_tower::dead_letter::DeadLetterLayer;
//! use dlq_tower::retry::RetryLayer;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let store = MemoryStore::new();
//! let mut service = ServiceBuilder::new()
//!     .layer(DeadLetterLayer::new(store.clone()).service_name("billing"))
//!     .layer(RetryLayer::never().consumer("billing.charge"))
//!     .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Permanent))
//!     .service(service_fn(|_: Delivery| async { Err::<(), _>(std::io::Error::other("refused")) }));
//!
//! let origin = Origin::new("memory", "orders", Position::Offset(1));
//! let delivery = Delivery::new(Message::new("orders", "{}"), origin);
//! let settlement = service.ready().await.unwrap().call(delivery).await.unwrap();
//! let Disposition::Dead(letter) = settlement.disposition() else { panic!("{settlement:?}") };
//! assert_eq!(letter.consumer, "billing.charge");
//! assert_eq!(letter.error(), "refused");
//! # }
//! ```
//!
//! # What is written where
//!
//! | verdict | main and retry queue | [store source](dlq_core::DeliveredFrom::Store) |
//! |---|---|---|
//! | dead | the letter into the sink, then into each feed | into each feed; settling records the letter on the claimed row |
//! | retry | the record into the retry queue; without one the broker keeps the message for the delay | settling records it on the claimed row |
//!
//! The first sink is authoritative. [Feeds](DeadLetterLayer::feed) get a copy of each letter after it.
//!
//! # On failure
//!
//! Order is always: write, confirm, settle (**G1**). If a write fails the result is a
//! [`RouteError`](crate::stage::RouteError) with both causes, what the handler failed of and why it could not be
//! written, and **nothing may be acknowledged**: the message stays with the broker and comes again. A write that failed
//! late, after it was durable, is harmless: a death has one identity (**G2**), and writing it again changes nothing.
//!
//! A letter whose identity is already taken by other bytes is kept beside the other one, logged as an error and counted
//! in `dlq_conflicting_letters_total`.
//!
//! # A message whose routing is not finished
//!
//! A verdict that could not be written everywhere is remembered, with what has confirmed it. When the message comes again
//! to this process it is **routed again, not run again**: its attempts stay those that were made (**G3**), and a handler that
//! would succeed by now leaves no letter behind that a replay would send a second time (**G6**). The memory is bounded; a
//! message that was forgotten runs again.
//!
//! | the message | what is durable | if the process dies now |
//! |---|---|---|
//! | failed, its verdict is known | nothing | it comes again and runs again |
//! | is written to the sink, and the feeds have not confirmed | the letter | it comes again and runs again: should it fail, the same death writes the same letter (**G2**); should it succeed, the [consumer](crate::consumer) resolves the letter where that is in its store |
//! | is written everywhere, and not settled | the letter and its copies | the same |
//! | is settled | the same | nothing: it is over |
//!
//! # Cost
//!
//! On success one clone of the delivery, nothing allocated. The failure path is built for many at once: letters that
//! arrive while others are being written go together in one call of the sink ([batch](DeadLetterLayer::batch)).

mod future;
mod hook;
mod layer;
mod letter;
mod route;
mod service;
mod unfinished;
mod writer;

/// The attribute of a parked letter: the place that refused it, and why. See [`DeadLetterLayer::parking`].
pub const PARKED: &str = "parked.because";

pub use future::ResponseFuture;
pub use hook::OnDeath;
pub use layer::DeadLetterLayer;
pub use service::DeadLetter;
