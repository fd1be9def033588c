use std::time::Duration;

use dlq_core::Timestamp;
use metrics::{Gauge, counter, gauge, histogram};

/// Retry records that wait in memory for their time, by `group`: a gauge.
pub const DLQ_KAFKA_WAITING: &str = "dlq_kafka_waiting";
/// Partitions that are paused, since enough of them is in memory or in flight, by `group`: a gauge.
pub const DLQ_KAFKA_PAUSED: &str = "dlq_kafka_paused";
/// In how many seconds the first of what waits in memory is due, 0 when nothing waits, by `group`: a gauge.
pub const DLQ_KAFKA_NEXT_DUE_SECONDS: &str = "dlq_kafka_next_due_seconds";
/// How long after its time a retry record was handed out, by `topic`: a histogram.
pub const DLQ_KAFKA_LATENESS_SECONDS: &str = "dlq_kafka_lateness_seconds";
/// Partitions that are read from their beginning, since their topic was deleted and made anew, by `topic`: a counter.
pub const DLQ_KAFKA_ANEW: &str = "dlq_kafka_anew_total";

/// What a source shows of itself.
#[derive(Clone)]
pub(crate) struct Gauges {
    pub(crate) waiting: Gauge,
    pub(crate) paused: Gauge,
    next_due: Gauge,
}

impl Gauges {
    pub(crate) fn new(group: &str) -> Self {
        let of = |name| gauge!(name, "group" => group.to_owned());
        Self {
            waiting: of(DLQ_KAFKA_WAITING),
            paused: of(DLQ_KAFKA_PAUSED),
            next_due: of(DLQ_KAFKA_NEXT_DUE_SECONDS),
        }
    }

    pub(crate) fn next_due(&self, due_in: Option<Duration>) {
        self.next_due.set(due_in.unwrap_or_default().as_secs_f64());
    }
}

pub(crate) fn late(topic: &str, due: Timestamp, now: Timestamp) {
    let late = now.since(due).as_secs_f64();
    histogram!(DLQ_KAFKA_LATENESS_SECONDS, "topic" => topic.to_owned()).record(late);
}

pub(crate) fn anew(topic: &str) {
    counter!(DLQ_KAFKA_ANEW, "topic" => topic.to_owned()).increment(1);
}

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauges").finish_non_exhaustive()
    }
}
