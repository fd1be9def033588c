//! Memory of records that wait for their next attempt.

use std::time::Duration;

use super::ours::{self, Fate};
use super::{Bench, Failed, block_on, records};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = records(2_000, 100_000, size);
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        bench.fill("work", count).await?;
        let group = bench.next_name();
        let before = resident();
        ours::consume(&bench.brokers(), "work", &group, count, 256, Fate::Retry).await?;
        let written = resident();
        // The next process of the group finds them all waiting.
        let source = ours::waiting(&bench.brokers(), "work", &group).await?;
        let most = source.watch(Duration::from_secs(size.pick(2, 10)), resident).await;
        println!("{count} records wait; 10,000 of them and 64 MiB at most in memory");
        println!(
            "resident: {before} MiB at first, {written} MiB when written, {most} MiB while they wait"
        );
        Ok(())
    })
}

/// Returns the memory of this process in MiB; 0 if the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
