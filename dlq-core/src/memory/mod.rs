//! [`MemoryBroker`]: a broker that lasts as long as the process, and the reference for every transport.
//!
//! For tests, examples and simulations. It has what a broker has: streams in order of publication, consumer groups with
//! a place of their own in a stream, leases on what was handed out, redelivery when a lease ends, a count of
//! deliveries, release after a delay, and a [retry queue](MemoryRetryQueue) that only the consumer hears that failed.
//!
//! ```
//! use dlq_core::memory::MemoryBroker;
//! use dlq_core::{Disposition, Message, Settle, Source};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), dlq_core::TransportError> {
//! let broker = MemoryBroker::new().stream("orders");
//! broker.publish(Message::new("orders.created", r#"{"id":1}"#));
//!
//! let mut source = broker.source("billing");
//! let (delivery, settle) = source.next().await?.expect("a stream in memory does not end");
//! assert_eq!(delivery.message().subject(), "orders.created");
//! settle.settle(Disposition::Succeeded).await?;
//! assert!(broker.is_idle("billing"));
//! # Ok(()) }
//! ```
//!
//! # When a process dies
//!
//! Dropping a source and its settle handles is what a crash looks like to the broker: nothing is given back, and what
//! was handed out comes again when its lease ends, in the order in which the leases end. [`MemoryBroker::crash`] ends
//! the leases of a group at once. [`Source::close`](crate::Source::close) is the orderly way.
//!
//! # Time
//!
//! Leases and delays follow the broker's [clock](MemoryBroker::clock); waiting is done by tokio's timers. Under
//! paused time give it a [`TokioClock`](crate::TokioClock): whole days then pass in no time, and every run is the same.
//! With a clock that does not follow tokio's, a waiting source notices only on the next change that time has passed.
//!
//! # Cost
//!
//! Everything under one lock that is never held across an `await`. Handing out and settling cost the logarithm of what
//! is in flight or waits. A stream keeps every message, and a group the identity of every retry record.

mod broker;
mod outbox;
mod retry_queue;
mod settle;
mod sink;
mod source;
mod transport;
mod world;

pub use broker::{MemoryBroker, Start};
pub use outbox::MemoryOutbox;
pub use retry_queue::MemoryRetryQueue;
pub use settle::MemorySettle;
pub use sink::MemorySink;
pub use source::MemorySource;
pub use transport::MemoryTransport;
