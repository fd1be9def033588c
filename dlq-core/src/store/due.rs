use crate::Timestamp;

/// Letters of one consumer that could be claimed now: retries whose time has come, letters that were released or
/// scheduled, and letters whose claim has ended unfinished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Consumer that should claim the letters.
    pub consumer: String,
    /// Number of letters.
    pub letters: u64,
    /// Number of letters that have waited too long.
    pub overdue: u64,
    /// Time from which the first letter can be claimed.
    pub since: Timestamp,
}

impl Due {
    /// Maximum number of letters that are counted, over all consumers: those that have waited longest.
    pub const MOST: u32 = 10_000;
}
