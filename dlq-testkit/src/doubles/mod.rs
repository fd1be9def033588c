//! Transports that break a promise on purpose, by which the checks themselves are checked.

mod early_ack;
mod lane;
mod source;

pub use early_ack::{EarlyAckSettle, EarlyAckSource};
pub use lane::{FaultyLane, LaneFault};
pub use source::{FaultySource, SourceFault};
