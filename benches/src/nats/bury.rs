//! Every message dies: its letter is written and confirmed, then the message acknowledged and that confirmed. Beside the
//! same consumer when every message succeeds, and beside the client alone, which writes the same headers and bytes.

use std::time::Duration;

use super::ours::{self, Fate, WRITERS};
use super::raw;
use super::{Bench, Failed, Shape, run_on, show};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    run_on(size, async |bench, count| {
        let count = count / 2;
        for shape in [Shape::DEFAULT, Shape::MORE, Shape::MOST] {
            once(bench, size, false, shape, count).await?;
        }
        for (shape, count) in
            [(Shape::DEFAULT, count / 10), (Shape::MORE, count / 2), (Shape::MOST, count)]
        {
            once(bench, size, true, shape, count).await?;
        }
        Ok(())
    })
}

async fn once(
    bench: &mut Bench,
    size: Size,
    far: bool,
    shape: Shape,
    count: usize,
) -> Result<(), Failed> {
    bench.headline(far, shape, count);
    let runs = [
        ("every message succeeds", Fate::Success, WRITERS),
        ("every message dies", Fate::Death, WRITERS),
        ("every message dies, 32 writers", Fate::Death, 32),
    ];
    let mut best = [Duration::MAX; 3];
    let mut raw = Duration::MAX;
    for _ in 0..size.pick(1, 5) {
        for ((_, fate, writers), best) in runs.iter().zip(&mut best) {
            bench.forget_letters().await;
            let name = bench.next_name();
            let client = bench.client(far);
            let time = ours::consume(client, &name, shape, count, *fate, *writers).await?;
            *best = time.min(*best);
        }
        let name = bench.next_name();
        raw = raw::bury(bench.client(far), &name, shape, count).await?.min(raw);
    }
    for ((name, ..), time) in runs.iter().zip(best) {
        show(name, time, count);
    }
    show("raw: published, confirmed, acknowledged", raw, count);
    for ((name, ..), time) in runs.iter().zip(best).skip(1) {
        let time = time.as_secs_f64();
        let (success, raw) = (best[0].as_secs_f64() / time, raw.as_secs_f64() / time);
        println!("{name}: {success:.2} of success, {raw:.2} of raw");
    }
    Ok(())
}
