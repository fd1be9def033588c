use crate::Timestamp;

/// Letters of one consumer that could be claimed now: retries whose time has come, letters that were released or
/// scheduled, and letters whose claim has ended unfinished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Who should claim them.
    pub consumer: String,
    /// How many there are.
    pub letters: u64,
    /// How many of them have waited too long.
    pub overdue: u64,
    /// Since when the first of them can be claimed.
    pub since: Timestamp,
}

impl Due {
    /// How many letters are counted at most, of all consumers together: those that have waited longest.
    pub const MOST: u32 = 10_000;
}
