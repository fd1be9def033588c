//! What processes have computed, as Linux counts it. Elsewhere nothing is known, and nothing shown.

use std::time::Duration;

/// How much time of all processors this process has had since it began.
pub(crate) fn of(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before may have spaces and brackets.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis(ticks.sum::<Option<u64>>()? * 10))
}
