//! Transports that break a promise on purpose, by which the checks themselves are checked, and others to be talked to.

mod called;
mod early_ack;
mod outbox;
mod retry_queue;
mod source;

pub use called::Called;
pub use early_ack::{EarlyAckSettle, EarlyAckSource};
pub use outbox::{FaultyOutbox, OutboxFault};
pub use retry_queue::{FaultyRetryQueue, RetryQueueFault};
pub use source::{FaultySource, SourceFault};
