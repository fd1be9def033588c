use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlq_core::Timestamp;
use metrics::{Gauge, counter, gauge, histogram};

/// Retry records that wait in memory for their time, by `group`: a gauge.
pub const DLQ_KAFKA_WAITING: &str = "dlq_kafka_waiting";
/// Partitions that are paused, since enough of them is in memory or in flight, by `group`: a gauge.
pub const DLQ_KAFKA_PAUSED: &str = "dlq_kafka_paused";
/// In how many seconds the first of what waits in memory is due, 0 when nothing waits, by `group`: a gauge.
pub const DLQ_KAFKA_NEXT_DUE_SECONDS: &str = "dlq_kafka_next_due_seconds";
/// Delay between the due time of a retry record and its delivery, by `topic`: a histogram.
pub const DLQ_KAFKA_LATENESS_SECONDS: &str = "dlq_kafka_lateness_seconds";
/// Partitions that are read from their beginning, since they end before what the group has committed, by `topic`: a counter.
pub const DLQ_KAFKA_ANEW: &str = "dlq_kafka_anew_total";

/// Records that were deleted before they were handled, at most so many, by `topic`: a counter.
pub const DLQ_KAFKA_LOST: &str = "dlq_kafka_lost_total";

/// Records of shared retry topics that name no group, and a handler that this group does not have, by `group` and `topic`: a
/// counter.
pub const DLQ_KAFKA_UNCLAIMED: &str = "dlq_kafka_unclaimed_total";

/// Records that were written to a retry topic, by `topic`: a counter.
pub const DLQ_KAFKA_RETRIES: &str = "dlq_kafka_retries_total";

/// Gauges of a source. The polling thread updates them in each turn, so that they are current.
#[derive(Clone)]
pub(crate) struct Gauges {
    waiting: Gauge,
    paused: Gauge,
    next_due: Gauge,
    /// When the first of what waits is due, in milliseconds since `began`.
    due: Arc<AtomicU64>,
    began: Instant,
}

/// Nothing waits.
const NEVER: u64 = u64::MAX;

impl Gauges {
    pub(crate) fn new(group: &str) -> Self {
        let of = |name| gauge!(name, "group" => group.to_owned());
        Self {
            waiting: of(DLQ_KAFKA_WAITING),
            paused: of(DLQ_KAFKA_PAUSED),
            next_due: of(DLQ_KAFKA_NEXT_DUE_SECONDS),
            due: Arc::new(AtomicU64::new(NEVER)),
            began: Instant::now(),
        }
    }

    /// The first of what waits is due then. Told by the source.
    pub(crate) fn next_due(&self, due: Option<Instant>) {
        let millis = |due: Instant| due.saturating_duration_since(self.began).as_millis();
        let due = due.map_or(NEVER, |due| u64::try_from(millis(due)).unwrap_or(NEVER));
        // It is shown to people, and nothing is decided by it.
        self.due.store(due, Ordering::Relaxed);
    }

    /// Shows how many records wait, how many partitions are paused, and how long it is until the first record is due.
    pub(crate) fn show(&self, waiting: usize, paused: usize) {
        self.waiting.set(waiting as f64);
        self.paused.set(paused as f64);
        let due_in = match self.due.load(Ordering::Relaxed) {
            NEVER => Duration::ZERO,
            due => Duration::from_millis(due).saturating_sub(self.began.elapsed()),
        };
        self.next_due.set(due_in.as_secs_f64());
    }

    /// Nothing waits any more, and nothing is ours.
    pub(crate) fn end(&self) {
        self.next_due(None);
        self.show(0, 0);
    }
}

pub(crate) fn late(topic: &str, due: Timestamp, now: Timestamp) {
    let late = now.since(due).as_secs_f64();
    histogram!(DLQ_KAFKA_LATENESS_SECONDS, "topic" => topic.to_owned()).record(late);
}

pub(crate) fn anew(topic: &str) {
    counter!(DLQ_KAFKA_ANEW, "topic" => topic.to_owned()).increment(1);
}

pub(crate) fn lost(topic: &str, records: u64) {
    counter!(DLQ_KAFKA_LOST, "topic" => topic.to_owned()).increment(records);
}

pub(crate) fn unclaimed(group: &str, topic: &str) {
    let (group, topic) = (group.to_owned(), topic.to_owned());
    counter!(DLQ_KAFKA_UNCLAIMED, "group" => group, "topic" => topic).increment(1);
}

pub(crate) fn retried(topic: &str) {
    counter!(DLQ_KAFKA_RETRIES, "topic" => topic.to_owned()).increment(1);
}

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauges").finish_non_exhaustive()
    }
}
