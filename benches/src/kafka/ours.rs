//! A consumer as a user composes it: the attribute's stack, source, retry queue and sink of Kafka.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dlq_core::{Classification, Classify, Delivery, Disposition, Settle as _, Source as _};
use dlq_kafka::{Brokers, KafkaTransport, Ladder};
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;
use dlq_tower::extract::State;
use tokio::sync::Notify;

use super::Failed;

/// Fate of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Success,
    /// It goes to the first retry topic.
    Retry,
    /// It goes to the topic of dead letters.
    Death,
}

/// Error of a handler, by the fate of its record.
#[derive(Debug)]
struct Failing(Fate);

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Failing {}

impl Classify for Failing {
    fn classify(&self) -> Classification {
        match self.0 {
            Fate::Death => Classification::permanent(),
            _ => Classification::transient(),
        }
    }
}

struct Counting {
    fate: Fate,
    left: AtomicUsize,
    /// When the first record came: until then the group was being joined.
    begun: OnceLock<Instant>,
    done: Notify,
}

#[dlq_handler(name = "bench.work", backoff = constant("1h"), max_attempts = 3)]
async fn work(delivery: Delivery, State(counting): State<Arc<Counting>>) -> Result<(), Failing> {
    counting.begun.get_or_init(Instant::now);
    black_box(delivery.message().payload().map(bytes::Bytes::len));
    if counting.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        counting.done.notify_one();
    }
    match counting.fate {
        Fate::Success => Ok(()),
        failing => Err(Failing(failing)),
    }
}

/// Measures consuming so many records, until the last one is settled and the consumer has left its group.
pub(super) async fn consume(
    brokers: &Brokers,
    topic: &str,
    group: &str,
    count: usize,
    in_flight: usize,
    fate: Fate,
) -> Result<Duration, Failed> {
    let records = KafkaTransport::new(topic)
        .name("bench.work")
        .group(group)
        .ladder(Ladder::of([Duration::from_secs(3600)]))
        .create_missing_topics();
    let state = Arc::new(Counting {
        fate,
        left: AtomicUsize::new(count),
        begun: OnceLock::new(),
        done: Notify::new(),
    });
    let consumer = Consumer::on(records, brokers)
        .handler(work::handler().with_state(Arc::clone(&state)).build()?)
        .without_crash_marks()
        .max_in_flight(in_flight)
        .without_outage_protection()
        .open()
        .await?;
    let report = consumer.run(state.done.notified()).await;
    let time = state.begun.get().map(Instant::elapsed).unwrap_or_default();
    let settled = match fate {
        Fate::Success => report.handled,
        Fate::Retry => report.retried,
        Fate::Death => report.dead,
    };
    if usize::try_from(settled)? < count || report.unsettled > 0 {
        return Err(format!("not every record was settled: {report}").into());
    }
    Ok(time)
}

/// Measures taking so many records from the source and settling them, one in flight, without a stack.
pub(super) async fn take(
    brokers: &Brokers,
    topic: &str,
    group: &str,
    count: usize,
) -> Result<Duration, Failed> {
    let records = KafkaTransport::new(topic).name("bench.work").group(group);
    let mut source = records.without_retries().source(brokers).await?;
    let mut start = None;
    for _ in 0..count {
        let (delivery, mut settle) = source.next().await?.ok_or("the source has ended")?;
        start.get_or_insert_with(Instant::now);
        black_box(delivery.message().payload().map(bytes::Bytes::len));
        if settle.settle_now(&Disposition::Succeeded).is_none() {
            settle.settle(Disposition::Succeeded).await?;
        }
    }
    source.close().await;
    Ok(start.map(|start| start.elapsed()).unwrap_or_default())
}

/// A source all of whose retry records wait.
pub(super) struct Waiting(dlq_kafka::KafkaSource);

pub(super) async fn waiting(
    brokers: &Brokers,
    topic: &str,
    group: &str,
) -> Result<Waiting, Failed> {
    let records = KafkaTransport::new(topic)
        .name("bench.work")
        .group(group)
        .ladder(Ladder::of([Duration::from_secs(3600)]));
    Ok(Waiting(records.source(brokers).await?))
}

impl Waiting {
    /// The most that was measured while it waited for so long.
    pub(super) async fn watch(mut self, time: Duration, measure: impl Fn() -> u64) -> u64 {
        let until = Instant::now() + time;
        let mut most = 0;
        while Instant::now() < until {
            let next = self.0.next();
            // Nothing is due.
            drop(tokio::time::timeout(Duration::from_millis(100), next).await);
            most = most.max(measure());
        }
        most
    }
}
