//! Consume, handle and commit: beside the bare loop, which has one record in flight, and beside the client with as many
//! records in flight as ours.

use super::ours::{self, Fate};
use super::{BYTES, Bench, Failed, block_on, held, raw, records, rounds};
use crate::cpu::Run;
use crate::measure::Size;

const SHAPES: [usize; 3] = [256, 1_024, 4_096];

/// A round of what returns how long it took.
macro_rules! round {
    ($bench:expr, $run:expr, $count:expr, $done:expr) => {{
        let before = $bench.computed();
        let time = $done?;
        $run.add(time, $count, before, $bench.computed());
    }};
}

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = records(20_000, 2_000_000, size);
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        bench.fill("work", count).await?;
        println!("{count} records of {BYTES} bytes");
        let mut bare = Run::new("raw: polled in a bare loop, one in flight");
        let mut taken = Run::new("ours, taken in a bare loop, with no stack");
        let mut all = SHAPES.map(|_| {
            [
                Run::new("  raw: polled, ended in any order"),
                Run::new("  raw: streamed to async handlers, borrowed"),
                Run::new("  raw: streamed to async handlers, owned"),
                Run::new("  ours"),
            ]
        });
        for _ in 0..rounds(size) {
            let (config, group) = (bench.config(), bench.next_name());
            let consume = || raw::consume(config, "work", &group, count);
            round!(bench, bare, count, tokio::task::block_in_place(consume));
            let (brokers, group) = (bench.brokers(), bench.next_name());
            let time = ours::take(&brokers, "work", &group, count);
            round!(bench, taken, count, time.await);
            for (in_flight, [polled, borrowed, owned, ours]) in SHAPES.into_iter().zip(&mut all) {
                let (config, group) = (bench.config(), bench.next_name());
                let hold = || held::polled(config, "work", &group, count, in_flight);
                round!(bench, polled, count, tokio::task::block_in_place(hold));
                for (run, owns) in [(borrowed, false), (owned, true)] {
                    let (config, group) = (bench.config(), bench.next_name());
                    let time = held::streamed(config, "work", &group, count, in_flight, owns);
                    round!(bench, run, count, time.await);
                }
                let (brokers, group) = (bench.brokers(), bench.next_name());
                let time = ours::consume(&brokers, "work", &group, count, in_flight, Fate::Success);
                round!(bench, ours, count, time.await);
            }
        }
        bare.show(count);
        taken.show(count);
        println!("  {:.2} of bare", taken.of(&bare));
        for (in_flight, [polled, borrowed, owned, ours]) in SHAPES.into_iter().zip(all) {
            println!("{in_flight} in flight:");
            for run in [&polled, &borrowed, &owned, &ours] {
                run.show(count);
            }
            let streamed = ours.of(&borrowed).min(ours.of(&owned));
            let (polled, bare) = (ours.of(&polled), ours.of(&bare));
            println!("  {streamed:.2} of streamed, {polled:.2} of polled, {bare:.2} of bare");
        }
        Ok(())
    })
}
