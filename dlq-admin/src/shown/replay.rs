use std::collections::BTreeMap;

use dlq_core::replay::{ReplayPlan, Skipped};
use serde_json::{Value, json};

/// Returns the document of a plan of a replay at a broker.
#[must_use]
pub fn replay_plan(plan: &ReplayPlan) -> Value {
    let subscribers = plan.subscribers.iter();
    let subscribers: Vec<_> = subscribers
        .map(|subscriber| json!({ "stream": subscriber.stream, "consumer": subscriber.consumer }))
        .collect();
    json!({
        "count": plan.letters,
        "skipped": skipped(&plan.skipped),
        "sample": plan.sample,
        "subscribers": subscribers,
        "notes": plan.notes,
    })
}

/// Returns the document of letters that are not sent, by reason.
#[must_use]
pub fn skipped(by: &BTreeMap<Skipped, u64>) -> Value {
    by.iter().map(|(why, count)| (why.to_string(), json!(count))).collect()
}
