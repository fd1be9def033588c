//! Every record fails: it goes to a retry topic, or it dies.

use super::ours::{self, Fate};
use super::{BYTES, Bench, Failed, block_on, far_or_near, raw, records, rounds};
use crate::cpu::Run;
use crate::measure::Size;

/// With a broker next door.
pub(crate) fn near(size: Size) -> Result<(), Failed> {
    run(size, false)
}

/// With one that is 5 ms away.
pub(crate) fn far(size: Size) -> Result<(), Failed> {
    run(size, true)
}

fn run(size: Size, far: bool) -> Result<(), Failed> {
    let count = records(5_000, if far { 100_000 } else { 300_000 }, size);
    block_on(async {
        let Some(mut bench) = Bench::start(far).await? else { return Ok(()) };
        bench.fill("work", count).await?;
        println!("{count} records of {BYTES} bytes, {}", far_or_near(far));
        for in_flight in [256, 1_024, 4_096] {
            once(&mut bench, size, count, in_flight).await?;
        }
        Ok(())
    })
}

async fn once(bench: &mut Bench, size: Size, count: usize, in_flight: usize) -> Result<(), Failed> {
    let mut raw = Run::new(format!("raw: forwarded, {in_flight} in flight"));
    let mut ours = [
        (Fate::Retry, Run::new(format!("ours: to the retry topic, {in_flight} in flight"))),
        (Fate::Death, Run::new(format!("ours: to the dead letters, {in_flight} in flight"))),
    ];
    for _ in 0..rounds(size) {
        let group = bench.next_name();
        let to = format!("work.{group}");
        bench.create(&to).await?;
        let before = bench.computed();
        let time = raw::forward(bench.config(), "work", &to, &group, count, in_flight).await?;
        raw.add(time, count, before, bench.computed());
        for (fate, run) in &mut ours {
            let (brokers, group) = (bench.brokers(), bench.next_name());
            let before = bench.computed();
            let time = ours::consume(&brokers, "work", &group, count, in_flight, *fate).await?;
            run.add(time, count, before, bench.computed());
        }
    }
    raw.show(count);
    for (_, run) in &ours {
        run.show(count);
        println!("  {:.2} of raw", run.of(&raw));
    }
    Ok(())
}
