//! Effect of messages that wait 30 s for a retry on the others: the same feed twice, in which a tenth of the messages
//! succeeds or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlq_core::memory::{MemoryBroker, MemorySink};
use dlq_core::policy::Backoff;
use dlq_core::{Classification, Delivery, Message, RetryPolicy};
use dlq_tower::consumer::Consumer;
use dlq_tower::extract::State;
use dlq_tower::handler::handler;
use tokio::sync::Notify;

use crate::measure::{Size, rate};

#[derive(Debug)]
struct Down;

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider is down")
    }
}

impl std::error::Error for Down {}

#[derive(Clone)]
struct Work {
    a_tenth_fails: Arc<AtomicBool>,
    handled: Arc<AtomicU64>,
    wanted: u64,
    done: Arc<Notify>,
}

async fn work(delivery: Delivery, State(work): State<Work>) -> Result<(), Down> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    if delivery.message().key().is_some_and(|key| key == "tenth") {
        return if work.a_tenth_fails.load(Ordering::Relaxed) { Err(Down) } else { Ok(()) };
    }
    if work.handled.fetch_add(1, Ordering::Relaxed) + 1 == work.wanted {
        work.done.notify_one();
    }
    Ok(())
}

pub(crate) fn run(size: Size) -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = size.pick(1_000, 50_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rates = Vec::new();
    for fails in [false, true, false, true] {
        let time = runtime.block_on(once(count, fails))?;
        let healthy = rate(time, count - count / 10);
        println!(
            "{:<44} {healthy:>10.0} healthy messages/s",
            if fails { "a tenth waits for a retry" } else { "none fails" }
        );
        rates.push(healthy);
    }
    println!("ratio: {:.2}", (rates[1] + rates[3]) / (rates[0] + rates[2]));
    Ok(())
}

/// Returns the time until every healthy message is handled.
async fn once(count: u64, fails: bool) -> Result<Duration, Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("work");
    for n in 0..count {
        let message = Message::new("work", "x");
        broker.publish(if n % 10 == 0 { message.with_key("tenth") } else { message });
    }
    let state = Work {
        a_tenth_fails: Arc::new(AtomicBool::new(fails)),
        handled: Arc::default(),
        wanted: count - count.div_ceil(10),
        done: Arc::new(Notify::new()),
    };
    let policy = RetryPolicy::new().with_backoff(Backoff::constant(Duration::from_secs(30)));
    let stack = handler("bench.work", work)
        .with_state(state.clone())
        .classify(|_: &Down| Classification::transient())
        .policy(policy)
        .concurrency(128)
        .build()?;
    let consumer = Consumer::builder(broker.source("bench"))
        .handler(stack)
        .sink(MemorySink::new())
        .retry_queue(broker.retry_queue())
        .build()?;
    let done = Arc::clone(&state.done);
    let start = Instant::now();
    let mut time = Duration::ZERO;
    let report = consumer
        .run(async {
            done.notified().await;
            time = start.elapsed();
        })
        .await;
    println!("{report}");
    Ok(time)
}
