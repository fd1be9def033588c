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

/// A way to run, and the fastest of its rounds.
struct Run {
    name: &'static str,
    time: Duration,
    /// What the server and this process have computed in all rounds, and for how many messages.
    computed: [Duration; 2],
    messages: usize,
}

impl Run {
    fn new(name: &'static str) -> Self {
        Self { name, time: Duration::MAX, computed: [Duration::ZERO; 2], messages: 0 }
    }

    fn add(&mut self, time: Duration, messages: usize, bench: &Bench, before: Before) {
        self.time = time.min(self.time);
        if let (Some(before), Some(now)) = (before, bench.computed()) {
            for ((sum, before), now) in self.computed.iter_mut().zip(before).zip(now) {
                *sum += now.saturating_sub(before);
            }
            self.messages += messages;
        }
    }
}

type Before = Option<[Duration; 2]>;

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
            let time = ours::consume(client, &name, shape, count, fate, writers).await?;
            run.add(time, count, bench, before);
        }
        let name = bench.next_name();
        let before = bench.computed();
        let time = raw::bury(bench.client(far), &name, shape, count).await?;
        raw.add(time, count, bench, before);
    }
    for run in &runs {
        show(run.name, run.time, count);
        if run.messages > 0 {
            let [server, client] =
                run.computed.map(|time| time.as_secs_f64() * 1e6 / run.messages as f64);
            println!("  computed for each: server {server:.1} µs, client {client:.1} µs");
        }
    }
    let [success, dead @ .., raw] = &runs;
    let ratio = |of: &Run, run: &Run| of.time.as_secs_f64() / run.time.as_secs_f64();
    for run in dead {
        let (success, raw) = (ratio(success, run), ratio(raw, run));
        println!("{}: {success:.2} of success, {raw:.2} of raw", run.name);
    }
    println!("{}: {:.2} of success", raw.name, ratio(success, raw));
    if success.messages > 0 {
        // Whatever the client costs, if it has processors of its own.
        let bound = success.computed[0].as_secs_f64() / raw.computed[0].as_secs_f64();
        println!("the most where the server is the bound: {bound:.2} of success");
    }
    Ok(())
}
