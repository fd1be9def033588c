//! Every message dies: its letter is written and confirmed, then the message acknowledged and that confirmed. Beside the
//! same consumer when every message succeeds, and beside the client alone, which writes the same headers and bytes.

use super::ours::{self, Fate, WRITERS};
use super::raw;
use super::{Bench, Failed, Shape, run_on};
use crate::cpu::Run;
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
    let ours = [(Fate::Success, WRITERS), (Fate::Death, WRITERS), (Fate::Death, 32)];
    let mut runs = [
        Run::new("every message succeeds"),
        Run::new("every message dies"),
        Run::new("every message dies, 32 writers"),
        Run::new("raw: published, confirmed, acknowledged"),
    ];
    for _ in 0..size.pick(1, 5) {
        let [own @ .., raw] = &mut runs;
        for ((fate, writers), run) in ours.into_iter().zip(own) {
            bench.forget_letters().await;
            let name = bench.next_name();
            let before = bench.computed();
            let client = bench.client(far);
            let time = ours::consume(client, &name, shape, count, fate, writers, true).await?;
            run.add(time, count, before, bench.computed());
        }
        let name = bench.next_name();
        let before = bench.computed();
        let time = raw::bury(bench.client(far), &name, shape, count).await?;
        raw.add(time, count, before, bench.computed());
    }
    for run in &runs {
        run.show(count);
    }
    let [success, dead @ .., raw] = &runs;
    for run in dead {
        println!("{}: {:.2} of success, {:.2} of raw", run.name(), run.of(success), run.of(raw));
    }
    println!("{}: {:.2} of success", raw.name(), raw.of(success));
    if let Some(bound) = raw.of_where_the_server_bounds(success) {
        println!("the most where the server is the bound: {bound:.2} of success");
    }
    Ok(())
}
