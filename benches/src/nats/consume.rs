//! Consuming, handling and acknowledging small messages.

use std::time::Duration;

use super::ours::{self, Fate, WRITERS};
use super::raw::{self, Ack};
use super::{Bench, Failed, Shape, run_on, show};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    run_on(size, async |bench, count| {
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
    let raw = [
        ("raw, acknowledged without confirmation", Ack::Unconfirmed),
        ("raw, `double_ack`", Ack::Confirmed),
        ("raw, acknowledged by `request`", Ack::Requested),
    ];
    let mut best = [Duration::MAX; 3];
    let mut ours = Duration::MAX;
    for _ in 0..size.pick(1, 5) {
        for ((_, ack), best) in raw.iter().zip(&mut best) {
            let name = bench.next_name();
            let time = raw::consume(bench.client(far), &name, shape, count, *ack).await?;
            *best = time.min(*best);
        }
        let name = bench.next_name();
        let time =
            ours::consume(bench.client(far), &name, shape, count, Fate::Success, WRITERS, false)
                .await?;
        ours = time.min(ours);
    }
    for ((name, _), time) in raw.iter().zip(best) {
        show(name, time, count);
    }
    show("dlq-nats", ours, count);
    for ((name, _), time) in raw.iter().zip(best) {
        println!("ratio to {name}: {:.2}", time.as_secs_f64() / ours.as_secs_f64());
    }
    Ok(())
}
