//! Consume, handle and commit.

use std::time::Duration;

use super::ours::{self, Fate};
use super::{BYTES, Bench, Failed, block_on, raw, records, rounds, show};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = records(20_000, 2_000_000, size);
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        bench.fill("work", count).await?;
        println!("{count} records of {BYTES} bytes");
        let shapes = [256, 1_024, 4_096];
        let mut best = [Duration::MAX; 3];
        let mut alone = Duration::MAX;
        for _ in 0..rounds(size) {
            let group = bench.next_name();
            let config = bench.config();
            let raw = tokio::task::block_in_place(|| raw::consume(config, "work", &group, count))?;
            alone = alone.min(raw);
            for (in_hand, best) in shapes.into_iter().zip(&mut best) {
                let group = bench.next_name();
                let brokers = bench.brokers();
                let time = ours::consume(&brokers, "work", &group, count, in_hand, Fate::Success);
                *best = time.await?.min(*best);
            }
        }
        show("raw: polled and committed", alone, count);
        for (in_hand, time) in shapes.into_iter().zip(best) {
            show(&format!("ours, {in_hand} in hand"), time, count);
            println!("  {:.2} of raw", alone.as_secs_f64() / time.as_secs_f64());
        }
        Ok(())
    })
}
