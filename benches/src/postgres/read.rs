//! Reading from a store of a million letters.

use std::time::{Duration, Instant};

use dlq_core::store::{HealthThresholds, Letters as _};
use dlq_core::{DeadLetters, Filter, Order, PageRequest, Sink as _, Status};

use super::{Bench, Failed, show, timed, with_server};
use crate::letters::letter;
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    let count: u64 = size.pick(2_000, 1_000_000);
    with_server(|bench| measure(bench, count, size.pick(1, 11)))
}

async fn measure(mut bench: Bench, count: u64, rounds: usize) -> Result<(), Failed> {
    let store = bench.store.clone();
    let filled = timed(async {
        for start in (0..count).step_by(1_000) {
            store
                .put((start..(start + 1_000).min(count)).map(|n| letter(n, 256)).collect())
                .await?;
        }
        Ok(())
    });
    show("filled", filled.await?, count);
    bench.sql("ANALYZE dlq_events").await?;
    let first = PageRequest::new().order(Order::OldestFirst);
    // The last page of one order begins where the other order's first page ends.
    let newest = store.list(Filter::new(), PageRequest::new()).await?;
    let last = first.after(newest.next);
    let filter = || {
        Filter::new()
            .with_subject("payments.3".parse().expect("a subject"))
            .with_status(Status::Pending)
    };
    let letters = DeadLetters::new(store.clone());
    let mut times = Vec::new();
    macro_rules! show {
        ($name:literal, $call:expr) => {{
            let mut runs = Vec::new();
            for _ in 0..rounds {
                let start = Instant::now();
                $call.await?;
                runs.push(start.elapsed());
            }
            runs.sort();
            let median: Duration = runs[runs.len() / 2];
            println!("{:<28} {:>9.3} ms", $name, median.as_secs_f64() * 1e3);
            times.push(median);
        }};
    }
    show!("first page", store.list(Filter::new(), first));
    show!("last page", store.list(Filter::new(), last));
    show!("filtered page", store.list(filter(), PageRequest::new()));
    show!("count", store.count(Filter::new()));
    show!("count of one status", store.count(Filter::new().with_status(Status::Pending)));
    show!("stats", store.stats(Filter::new()));
    show!("groups", store.groups(Filter::new(), 20));
    show!("groups, filtered", store.groups(filter(), 20));
    show!("health", async {
        let health = letters.health(HealthThresholds::default()).await;
        Ok::<_, Failed>(health)
    });
    println!("last page / first page: {:.2}", times[1].as_secs_f64() / times[0].as_secs_f64());
    Ok(())
}
