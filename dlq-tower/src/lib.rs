//! Tower layers, handlers, router and run loop for consumers that must not lose a message.

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
pub mod store_lane;
pub mod timeout;
pub mod trace;

#[doc(hidden)]
pub mod __private;

pub use dlq_core as core;
pub use dlq_macros::{Classify, dlq_handler};
