//! Transports that break a promise on purpose, by which the checks themselves are checked, and others to be talked to.

mod called;
mod early_ack;
mod lane;
mod outbox;
mod source;

pub use called::Called;
pub use early_ack::{EarlyAckSettle, EarlyAckSource};
pub use lane::{FaultyLane, LaneFault};
pub use outbox::{FaultyOutbox, OutboxFault};
pub use source::{FaultySource, SourceFault};
