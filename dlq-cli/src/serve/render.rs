//! From what was found to the text that Prometheus reads. Made anew for each look, so that what is gone is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{Due, Group, ItemOutcome, OperationState, Stats};
use dlq_core::{Reason, Status, Timestamp};
use metrics::{Label, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use super::broker::{QueueDepth, Readers};
use super::label::{OTHER, label, largest};
use super::look::Memory;
use super::names::{self, Family};
use super::store::StoreObservation;
use super::written::Written;
use crate::alert::Counts;

/// A page of what every look says, and of what `export` sets.
pub(super) fn page(is_up: bool, memory: &Memory, export: impl FnOnce()) -> String {
    // A recorder that lived on would go on showing series of consumers and topics that are gone.
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        set(&names::STORE_UP, f64::from(u8::from(is_up)));
        set(&names::LOOK_SECONDS, memory.took.as_secs_f64());
        for (outcome, count) in ["answered", "failed"].into_iter().zip(memory.looks) {
            // Counts are kept outside of the recorder, which is new for each look, and set as absolute values.
            names::LOOKS.counter(vec![Label::new("outcome", outcome)]).absolute(count);
        }
        if let Some(answered) = memory.answered {
            set(&names::ANSWERED, answered.since(Timestamp::EPOCH).as_secs_f64());
        }
        export();
    });
    recorder.handle().render()
}

/// Metrics of a store.
pub(super) fn store(
    found: Option<&StoreObservation>,
    written: &Written,
    max_age: Duration,
    now: Timestamp,
) {
    // It is exported so that an alert rule can compare with it, and has no number of its own to keep in step.
    set(&names::MAX_AGE, max_age.as_secs_f64());
    // Counters are shown also while the store is down: one that vanished and came back would look like a restart.
    for (topic, class, count) in written.counts() {
        let labels =
            vec![Label::new("topic", topic.to_owned()), Label::new("class", class.as_str())];
        names::WRITTEN.counter(labels).absolute(count);
    }
    if let Some(found) = found {
        letters(&found.stats, now);
        consumers(found);
        operations(found, now);
        if let Some(of_groups) = &found.groups {
            groups(of_groups, found.waiting.total);
        }
    }
}

/// Metrics of alerts about groups. All of them are there from the start, since they are counters.
pub(super) fn alerts(counts: &Counts) {
    for (name, format, count) in counts.all() {
        for family in [&names::ALERTS_SENT, &names::ALERTS_FAILED, &names::ALERTS_DROPPED] {
            if family.name == name {
                family.counter(vec![Label::new("format", format)]).absolute(count);
            }
        }
    }
}

/// Metrics of a broker.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(super) fn broker(found: &QueueDepth, now: Timestamp) {
    each(&names::BROKER_LETTERS, "part", &found.by_part);
    let age = found.oldest.map(|oldest| now.since(oldest)).unwrap_or_default();
    set(&names::BROKER_OLDEST, age.as_secs_f64());
    if let Some(kept) = found.kept {
        set(&names::BROKER_MAX_AGE, kept.as_secs_f64());
    }
    #[cfg(any(feature = "kafka", feature = "nats"))]
    let two = |one: &'static str, of: &str, other: &'static str, by: &str| {
        vec![Label::new(one, label(of).to_owned()), Label::new(other, label(by).to_owned())]
    };
    match &found.readers {
        #[cfg(feature = "nats")]
        Readers::Nats { ends, progress } => {
            each(&names::NATS_LAST, "stream", ends);
            for (stream, consumer, pending, ack_pending) in progress {
                let labels = two("stream", stream, "consumer", consumer);
                names::NATS_PENDING.gauge(labels.clone()).set(*pending as f64);
                names::NATS_ACK_PENDING.gauge(labels).set(*ack_pending as f64);
            }
        }
        #[cfg(feature = "kafka")]
        Readers::Kafka { ends, lag } => {
            each(&names::KAFKA_END, "topic", ends);
            for (topic, group, behind) in lag {
                let labels = two("topic", topic, "group", group);
                names::KAFKA_LAG.gauge(labels).set(*behind as f64);
            }
        }
        #[cfg(feature = "redis")]
        Readers::Redis => {}
    }
}

fn letters(stats: &Stats, now: Timestamp) {
    for status in Status::ALL {
        one(&names::LETTERS, "status", status.as_str(), stats.with_status(*status));
    }
    for reason in Reason::ALL {
        let count = stats.by_reason.get(reason).copied().unwrap_or(0);
        one(&names::BY_REASON, "reason", reason.as_str(), count);
    }
    each(&names::BY_TOPIC, "topic", &stats.by_subject);
    let age = stats.oldest_unresolved.map(|oldest| now.since(oldest)).unwrap_or_default();
    set(&names::OLDEST, age.as_secs_f64());
}

fn consumers(found: &StoreObservation) {
    let due = |count: fn(&Due) -> u64| {
        found.due.iter().map(|due| (due.consumer.clone(), count(due))).collect()
    };
    for (family, mut counts) in [
        (&names::WAITING, found.waiting.by_consumer.clone()),
        (&names::QUARANTINED, found.quarantined.by_consumer.clone()),
        (&names::DUE, due(|due| due.letters)),
        (&names::OVERDUE_LETTERS, due(|due| due.overdue)),
    ] {
        // Consumers of whose letters none is such have a zero, as long as they have any unresolved ones.
        for consumer in found.stats.by_consumer.keys() {
            counts.entry(consumer.clone()).or_default();
        }
        each(family, "consumer", &counts);
    }
}

/// The letters of these groups, and those of all others together.
fn groups(groups: &[Group], waiting: u64) {
    let series = |group: String, consumer: &str, count: u64| {
        let labels =
            vec![Label::new("group", group), Label::new("consumer", label(consumer).to_owned())];
        names::GROUP_LETTERS.gauge(labels).increment(count as f64);
    };
    // Two consumers whose names are cut alike are added up.
    groups.iter().for_each(|it| series(it.fingerprint.to_string(), &it.consumer, it.count));
    // The groups are counted before the rest, and letters may have gone in between.
    let of_groups = groups.iter().map(|group| group.count).sum();
    series(OTHER.to_owned(), "", waiting.saturating_sub(of_groups));
}

fn operations(found: &StoreObservation, now: Timestamp) {
    let overdue = found.next_due.map(|due| now.since(due)).unwrap_or_default();
    set(&names::OVERDUE, overdue.as_secs_f64());
    // States without an operation have a zero, since an alert on an absent series never fires.
    for state in OperationState::ALL.iter().filter(|state| !state.is_final()) {
        let count = found.operations.iter().filter(|operation| operation.state == *state).count();
        one(&names::OPERATIONS, "state", state.as_str(), count as u64);
    }
    for outcome in ItemOutcome::ALL {
        let letters = found.operations.iter().map(|it| it.progress.with_outcome(*outcome)).sum();
        one(&names::OPERATION_LETTERS, "outcome", outcome.as_str(), letters);
    }
    let running = |state| matches!(state, OperationState::Canary | OperationState::Running);
    let idle = found.operations.iter().filter(|operation| running(operation.state));
    // By its own rate the next letter may not go before this.
    let idle = idle.map(|operation| now.since(operation.updated_at.max(operation.next_release)));
    set(&names::OPERATION_IDLE, idle.max().unwrap_or_default().as_secs_f64());
}

fn set(family: &Family, value: f64) {
    family.gauge(Vec::new()).set(value);
}

fn one(family: &Family, label: &'static str, value: &'static str, count: u64) {
    family.gauge(vec![Label::new(label, value)]).set(count as f64);
}

fn each(family: &Family, label: &'static str, counts: &BTreeMap<String, u64>) {
    for (value, count) in largest(counts) {
        family.gauge(vec![Label::new(label, value.to_owned())]).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::store::{Actor, Operation, OperationSpec, Progress};
    use dlq_core::{Filter, OperationId};

    use super::*;

    fn operation(state: OperationState, changed: u64, next_release: u64) -> Operation {
        let at = |seconds| Timestamp::EPOCH.after(Duration::from_secs(seconds));
        Operation {
            id: OperationId::from_bytes([7; 16]),
            spec: OperationSpec::replay(Filter::new()),
            state,
            by: Actor::new("ana"),
            created_at: Timestamp::EPOCH,
            updated_at: at(changed),
            next_release: at(next_release),
            progress: Progress { total: 3, by_outcome: [(ItemOutcome::Queued, 3)].into() },
        }
    }

    /// The page at second 1000.
    fn page(operations: Vec<Operation>, next_due: Option<u64>) -> String {
        let at = |seconds| Timestamp::EPOCH.after(Duration::from_secs(seconds));
        let stats = Stats { oldest_unresolved: Some(at(400)), ..Stats::default() };
        let found = StoreObservation {
            stats,
            waiting: Stats::default(),
            quarantined: Stats::default(),
            next_due: next_due.map(at),
            due: Vec::new(),
            operations,
            groups: Some(Vec::new()),
        };
        let memory = Memory { looks: [2, 1], answered: None, took: Duration::from_millis(250) };
        let written = Written::default();
        super::page(true, &memory, || store(Some(&found), &written, Duration::ZERO, at(1000)))
    }

    #[track_caller]
    fn has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "{line} is not in {page}");
        }
    }

    #[test]
    fn what_stands_still_and_what_waits_is_shown() {
        use OperationState::{Canary, Paused, Running, Stopped};
        let operations = vec![
            operation(Running, 900, 0),
            operation(Canary, 700, 0),
            // It waits for its rate.
            operation(Running, 100, 990),
            // These stand still because somebody wants it.
            operation(Paused, 5, 0),
            operation(Stopped, 5, 0),
        ];
        has(
            &page(operations, Some(880)),
            &[
                "dlq_operation_idle_seconds 300",
                "dlq_operations{state=\"running\"} 2",
                "dlq_operations{state=\"stopped\"} 1",
                "dlq_operation_letters{outcome=\"queued\"} 15",
                "dlq_operation_letters{outcome=\"sent\"} 0",
                "dlq_overdue_seconds 120",
                "dlq_oldest_unresolved_age_seconds 600",
                "dlq_store_look_seconds 0.25",
                "dlq_store_looks_total{outcome=\"answered\"} 2",
                "dlq_store_looks_total{outcome=\"failed\"} 1",
            ],
        );
        has(
            &page(Vec::new(), Some(2000)),
            &["dlq_overdue_seconds 0", "dlq_operation_idle_seconds 0"],
        );
        has(
            &page(Vec::new(), None),
            &["dlq_overdue_seconds 0", "dlq_operations{state=\"canary\"} 0"],
        );
    }
}
