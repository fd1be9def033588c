//! Consume, handle and commit: beside the bare loop, which has one record in hand, and beside the client with as many
//! records in hand as ours.

use std::time::Duration;

use super::ours::{self, Fate};
use super::{BYTES, Bench, Failed, block_on, held, raw, records, rounds};
use crate::measure::{Size, nanos_each, processor_time, rate};

const SHAPES: [usize; 3] = [256, 1_024, 4_096];

/// The fastest round, and what it took of the processors.
#[derive(Clone, Copy)]
struct Best {
    time: Duration,
    processors: Duration,
}

impl Best {
    const NONE: Self = Self { time: Duration::MAX, processors: Duration::ZERO };

    fn show(&self, name: &str, count: usize) {
        let count = count as u64;
        let (rate, each) = (rate(self.time, count), nanos_each(self.processors, count));
        println!("{name:<44} {rate:>10.0} records/s, {each:>5.0} ns of processors each");
    }
}

/// A round of what returns how long it took.
macro_rules! round {
    ($best:expr, $run:expr) => {{
        let before = processor_time();
        let time = $run?;
        if time < $best.time {
            *$best = Best { time, processors: processor_time() - before };
        }
    }};
}

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count = records(20_000, 2_000_000, size);
    block_on(async {
        let Some(mut bench) = Bench::start(false).await? else { return Ok(()) };
        bench.fill("work", count).await?;
        println!("{count} records of {BYTES} bytes");
        let mut bare = Best::NONE;
        let mut all = [[Best::NONE; 4]; 3];
        for _ in 0..rounds(size) {
            let (config, group) = (bench.config(), bench.next_name());
            let consume = || raw::consume(config, "work", &group, count);
            round!(&mut bare, tokio::task::block_in_place(consume));
            for (in_hand, [polled, borrowed, owned, ours]) in SHAPES.into_iter().zip(&mut all) {
                let (config, group) = (bench.config(), bench.next_name());
                let hold = || held::polled(config, "work", &group, count, in_hand);
                round!(polled, tokio::task::block_in_place(hold));
                for (best, owns) in [(borrowed, false), (owned, true)] {
                    let (config, group) = (bench.config(), bench.next_name());
                    let time = held::streamed(config, "work", &group, count, in_hand, owns);
                    round!(best, time.await);
                }
                let (brokers, group) = (bench.brokers(), bench.next_name());
                let time = ours::consume(&brokers, "work", &group, count, in_hand, Fate::Success);
                round!(ours, time.await);
            }
        }
        bare.show("raw: polled in a bare loop, one in hand", count);
        for (in_hand, [polled, borrowed, owned, ours]) in SHAPES.into_iter().zip(all) {
            println!("{in_hand} in hand:");
            polled.show("  raw: polled, ended in any order", count);
            borrowed.show("  raw: streamed to async handlers, borrowed", count);
            owned.show("  raw: streamed to async handlers, owned", count);
            ours.show("  ours", count);
            let of = |raw: Best| raw.time.as_secs_f64() / ours.time.as_secs_f64();
            let (streamed, bare) = (of(borrowed).min(of(owned)), of(bare));
            println!("  {streamed:.2} of streamed, {:.2} of polled, {bare:.2} of bare", of(polled));
        }
        Ok(())
    })
}
