//! Successes, deaths and delayed retries of `dlq-redis` beside chasquimq, on the same Redis 8.6 or later, which is emptied.
//!
//! Run with `cargo run --release --manifest-path benches/chasquimq/Cargo.toml -- redis://HOST:PORT`, with an address of digits.

#[path = "../../src/proxy.rs"]
mod proxy;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chasquimq::{ConsumerConfig, HandlerError, Producer, ProducerConfig, RetryConfig};
use dlq_redis::redis;
use dlq_redis::{RedisClient, RedisTransport};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower_dlq::consumer::OutagePolicy;
use tower_dlq::prelude::*;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Messages that are handled at once.
const IN_FLIGHT: usize = 256;
/// Added to each way by the proxy.
const WAY: Duration = Duration::from_micros(3_750);
/// Delay of a retry: longer than `dlq-redis` keeps a message in the process.
const DELAY: Duration = Duration::from_secs(6);
/// Messages that are published at once.
const BULK: usize = 500;

/// Fate of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Success,
    Death,
    /// It fails once, and succeeds after a delay.
    Delay,
}

#[derive(Clone, Serialize, Deserialize)]
struct Work {
    text: String,
}

impl Work {
    fn new() -> Self {
        Self { text: "x".repeat(90) }
    }
}

#[derive(Debug, thiserror::Error, Classify)]
enum WorkError {
    #[error("refused")]
    #[classify(permanent)]
    Refused,
    #[error("later")]
    #[classify(transient)]
    Later,
}

/// Counts messages down whose last run was made.
#[derive(Clone)]
struct Counting {
    fate: Fate,
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

impl Counting {
    fn new(fate: Fate, messages: usize) -> Self {
        Self { fate, left: Arc::new(AtomicUsize::new(messages)), done: Arc::new(Notify::new()) }
    }

    fn run(&self, work: &Work, is_first: bool) -> Result<(), WorkError> {
        black_box(&work.text);
        if self.fate == Fate::Delay && is_first {
            return Err(WorkError::Later);
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
        if self.fate == Fate::Death { Err(WorkError::Refused) } else { Ok(()) }
    }
}

#[dlq_handler(name = "bench.work", max_attempts = 3, backoff = constant("6s"))]
async fn work(
    Json(work): Json<Work>,
    attempt: Attempt,
    State(counting): State<Counting>,
) -> Result<(), WorkError> {
    counting.run(&work, attempt.number() == 1)
}

/// Connects to a server, and empties it.
async fn emptied(url: &str) -> Result<redis::aio::MultiplexedConnection, Failed> {
    let mut raw = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let () = redis::cmd("FLUSHALL").query_async(&mut raw).await?;
    Ok(raw)
}

/// Measures `dlq-redis` on the way `url` to the server at `near`.
async fn ours(near: &str, url: &str, messages: usize, fate: Fate) -> Result<Duration, Failed> {
    let mut raw = emptied(near).await?;
    let body = format!(r#"{{"text":"{}"}}"#, Work::new().text);
    for _ in 0..messages / BULK {
        let mut adds = redis::pipe();
        for _ in 0..BULK {
            adds.cmd("XADD").arg("work").arg("*").arg("d").arg(&body).ignore();
        }
        let () = adds.query_async(&mut raw).await?;
    }
    let client = RedisClient::open(url).await?;
    let counting = Counting::new(fate, messages);
    let done = Arc::clone(&counting.done);
    let consumer = Consumer::on(RedisTransport::new("work").prefetch(2 * IN_FLIGHT), &client)
        .handler(work::handler().with_state(counting).build()?)
        .without_crash_marks()
        // All of them fail, which would be taken for an outage.
        .outage(OutagePolicy::new().minimum(u32::MAX))
        .max_in_flight(IN_FLIGHT)
        .open()
        .await?;
    let start = Instant::now();
    let report = consumer.run(async move { done.notified().await }).await;
    let took = start.elapsed();
    if report.unsettled > 0 { Err(report.to_string().into()) } else { Ok(took) }
}

/// Measures chasquimq in the same way, with or without its stream of events.
async fn theirs(
    near: &str,
    url: &str,
    messages: usize,
    fate: Fate,
    events: bool,
) -> Result<Duration, Failed> {
    let mut raw = emptied(near).await?;
    let queue = "work".to_owned();
    let producer = ProducerConfig { queue_name: queue.clone(), ..Default::default() };
    let producer = Producer::<Work>::connect(near, producer).await?;
    for _ in 0..messages / BULK {
        producer.add_bulk(vec![Work::new(); BULK]).await?;
    }
    let delay = u64::try_from(DELAY.as_millis())?;
    let config = ConsumerConfig {
        queue_name: queue,
        concurrency: IN_FLIGHT,
        batch: IN_FLIGHT,
        events_enabled: events,
        run_scheduler: false,
        retry: RetryConfig {
            initial_backoff_ms: delay,
            max_backoff_ms: delay,
            multiplier: 1.0,
            jitter_ms: 0,
        },
        block_ms: 100,
        ..Default::default()
    };
    let counting = Counting::new(fate, messages);
    let (inner, stop) = (counting.clone(), CancellationToken::new());
    let start = Instant::now();
    let handle = move |job: chasquimq::Job<Work>| {
        let counting = inner.clone();
        async move {
            match counting.run(&job.payload, job.attempt == 0) {
                Ok(()) => Ok(Bytes::new()),
                Err(error @ WorkError::Refused) => Err(HandlerError::unrecoverable(error)),
                Err(error @ WorkError::Later) => Err(HandlerError::new(error)),
            }
        }
    };
    let consumer = chasquimq::Consumer::<Work>::new(url, config);
    let running = tokio::spawn(consumer.run(handle, stop.clone()));
    counting.done.notified().await;
    while fate == Fate::Death {
        let dead: usize = redis::cmd("XLEN").arg(producer.dlq_key()).query_async(&mut raw).await?;
        if dead >= messages {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = start.elapsed();
    stop.cancel();
    running.await??;
    Ok(took)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failed> {
    let near = std::env::args().nth(1).ok_or("give it the URL of a server: it is emptied")?;
    let proxy = proxy::Proxy::start(near.trim_start_matches("redis://").parse()?, WAY)?;
    let far = format!("redis://{}", proxy.address());
    for (name, url, fate, our_messages, their_messages) in [
        ("success", &near, Fate::Success, 50_000, 50_000),
        ("death", &near, Fate::Death, 50_000, 50_000),
        ("retry after 6 s", &near, Fate::Delay, 20_000, 20_000),
        ("death, far", &far, Fate::Death, 20_000, 1_000),
        ("retry after 6 s, far", &far, Fate::Delay, 10_000, 1_000),
    ] {
        let waited = if fate == Fate::Delay { DELAY } else { Duration::ZERO };
        let rate = |messages: usize, took: Duration| {
            messages as f64 / took.saturating_sub(waited).as_secs_f64()
        };
        let ours = rate(our_messages, ours(&near, url, our_messages, fate).await?);
        let theirs = [
            rate(their_messages, theirs(&near, url, their_messages, fate, true).await?),
            rate(their_messages, theirs(&near, url, their_messages, fate, false).await?),
        ];
        println!(
            "{name:<21} dlq-redis {ours:>7.0}/s, chasquimq {:>6.0}/s ({:.1} times), without events {:>6.0}/s ({:.1} times)",
            theirs[0],
            ours / theirs[0],
            theirs[1],
            ours / theirs[1],
        );
    }
    Ok(())
}
