//! Every message dies: its letter is written and confirmed, then the message acknowledged and that confirmed. Beside the
//! same consumer when every message succeeds, and beside the client alone, which writes the same headers and bytes.

use std::time::Duration;

use super::ours::{self, Fate};
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
    let mut best = [Duration::MAX; 2];
    let mut raw = Duration::MAX;
    for _ in 0..size.pick(1, 5) {
        for (fate, best) in [Fate::Success, Fate::Death].into_iter().zip(&mut best) {
            bench.forget_letters().await;
            let name = bench.next_name();
            let time = ours::consume(bench.client(far), &name, shape, count, fate).await?;
            *best = time.min(*best);
        }
        let name = bench.next_name();
        raw = raw::bury(bench.client(far), &name, shape, count).await?.min(raw);
    }
    show("every message succeeds", best[0], count);
    show("every message dies", best[1], count);
    show("raw: published, confirmed, acknowledged", raw, count);
    println!("ratio to success: {:.2}", best[0].as_secs_f64() / best[1].as_secs_f64());
    println!("ratio to raw: {:.2}", raw.as_secs_f64() / best[1].as_secs_f64());
    Ok(())
}
