//! Transports and consumers that break a promise on purpose, by which the checks themselves are checked.

mod early_ack;

pub use early_ack::{EarlyAckSettle, EarlyAckSource};
