//! Cost of a message that fails and goes to a retry queue, without a broker: each step alone, and the whole consumer
//! with a queue that answers later.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::memory::{MemoryBroker, MemorySink};
use dlq_core::protocol::of_delayed_retry;
use dlq_core::{DelayedRetry, Delivery, Fingerprint, Message, Reason, RetryQueue, StoreError};
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;
use dlq_tower::extract::State;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::measure::{Size, fastest, nanos_each};
use crate::stack::Refused;

struct Counting {
    left: AtomicUsize,
    done: Notify,
}

#[dlq_handler(name = "bench.work", backoff = constant("1h"), max_attempts = 3)]
async fn work(_delivery: Delivery, State(counting): State<Arc<Counting>>) -> Result<(), Refused> {
    if counting.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        counting.done.notify_one();
    }
    Err(Refused)
}

/// Encodes records, and confirms them in batches, later.
#[derive(Clone, Debug, Default)]
struct Later(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    told: Vec<oneshot::Sender<()>>,
    last: Option<DelayedRetry>,
}

fn encode(delayed_retry: &DelayedRetry) -> usize {
    of_delayed_retry(delayed_retry).len()
}

impl RetryQueue for Later {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        black_box(encode(&delayed_retry));
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.0.lock().expect("nobody panics");
            waiting.told.push(tell);
            waiting.last = Some(delayed_retry);
        }
        // A process that ends confirms nothing.
        let _ = told.await;
        Ok(())
    }
}

impl Later {
    async fn confirm(self) {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let told = std::mem::take(&mut self.0.lock().expect("nobody panics").told);
            for told in told {
                let _ = told.send(());
            }
        }
    }
}

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let count = size.pick(2_000, 100_000);
    let queue = Later::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut best = Duration::MAX;
    let mut allocations = 0;
    for _ in 0..size.pick(1, 5) {
        let mut time = Duration::ZERO;
        let counted = allocation_counter::measure(|| {
            time = runtime.block_on(once(count, queue.clone())).expect("every message is settled");
        });
        let filled = allocation_counter::measure(|| drop(fill(count)));
        allocations = counted.count_total - filled.count_total;
        best = best.min(time);
    }
    let (each, allocations) = (nanos_each(best, count as u64), allocations as f64 / count as f64);
    println!(
        "{:<44} {each:>8.1} ns {allocations:>6.2} allocations",
        "the consumer, postponing all"
    );
    let last = queue.0.lock().expect("nobody panics").last.take().ok_or("nothing was postponed")?;
    let rounds = size.pick(1, 9);
    let show = |name: &str, step: &dyn Fn()| {
        let time = fastest(rounds, || (), |()| (0..count).for_each(|_| step()));
        let allocated = allocation_counter::measure(step).count_total;
        let each = nanos_each(time, count as u64);
        println!("{name:<44} {each:>8.1} ns {allocated:>6} allocations");
    };
    show("of which: the fingerprint of its error", &|| {
        black_box(Fingerprint::of(&last.consumer, Reason::Exhausted, last.history.last()));
    });
    show("the fingerprint and the headers", &|| {
        black_box(encode(&last));
    });
    show("a copy of the delayed_retry", &|| {
        drop(black_box(last.clone()));
    });
    Ok(())
}

fn fill(count: usize) -> MemoryBroker {
    let broker = MemoryBroker::new().stream("work");
    for _ in 0..count {
        broker.publish(Message::new("work", "x"));
    }
    broker
}

async fn once(count: usize, queue: Later) -> Result<Duration, Box<dyn std::error::Error>> {
    let broker = fill(count);
    let counting = Arc::new(Counting { left: AtomicUsize::new(count), done: Notify::new() });
    let mut confirming = JoinSet::new();
    confirming.spawn(queue.clone().confirm());
    let consumer = Consumer::builder(broker.source("bench").prefetch(256))
        .handler(work::handler().with_state(Arc::clone(&counting)).build()?)
        .retry_queue(queue)
        .sink(MemorySink::new())
        .max_in_flight(1_024)
        .without_outage_protection()
        .build()?;
    let start = Instant::now();
    let report = consumer.run(counting.done.notified()).await;
    let time = start.elapsed();
    if usize::try_from(report.retried)? < count {
        return Err(format!("not every message was postponed: {report}").into());
    }
    Ok(time)
}
