//! x
pub mod duration;
/// x
#[derive(Debug)]
pub struct RetryPolicy;
