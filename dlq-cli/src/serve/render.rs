//! From what was found to the text that Prometheus reads. Made anew for each look, so that what is gone is gone.

use std::collections::BTreeMap;

use dlq_core::store::{ItemOutcome, OperationState, Stats};
use dlq_core::{Reason, Status, Timestamp};
use metrics::{Label, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::label::largest;
use super::look::{Found, Memory};
use super::names::{self, Family};

pub(super) fn render(found: Option<&Found>, memory: &Memory, now: Timestamp) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        set(&names::STORE_UP, f64::from(u8::from(found.is_some())));
        set(&names::LOOK_SECONDS, memory.took.as_secs_f64());
        set(&names::MAX_AGE, memory.thresholds.age.as_secs_f64());
        for (outcome, count) in ["answered", "failed"].into_iter().zip(memory.looks) {
            names::LOOKS.counter(vec![Label::new("outcome", outcome)]).absolute(count);
        }
        if let Some(answered) = memory.answered {
            set(&names::ANSWERED, answered.since(Timestamp::EPOCH).as_secs_f64());
        }
        for (topic, class, count) in memory.written.counts() {
            let labels =
                vec![Label::new("topic", topic.to_owned()), Label::new("class", class.as_str())];
            names::WRITTEN.counter(labels).absolute(count);
        }
        // What is not known is left out, rather than shown as it was.
        if let Some(found) = found {
            letters(&found.stats, now);
            consumers(found);
            operations(found, now);
        }
    });
    recorder.handle().render()
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

fn consumers(found: &Found) {
    for (family, stats) in
        [(&names::WAITING, &found.waiting), (&names::QUARANTINED, &found.quarantined)]
    {
        // Consumers of whose letters none is such have a zero, as long as they have any unresolved ones.
        let mut counts: BTreeMap<String, u64> = stats.by_consumer.clone();
        for consumer in found.stats.by_consumer.keys() {
            counts.entry(consumer.clone()).or_default();
        }
        each(family, "consumer", &counts);
    }
}

fn operations(found: &Found, now: Timestamp) {
    let overdue = found.next_due.map(|due| now.since(due)).unwrap_or_default();
    set(&names::OVERDUE, overdue.as_secs_f64());
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
