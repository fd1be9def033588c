//! Counts letters that stores set aside, through the `metrics` facade.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use metrics::counter;

use crate::Reason;

/// Letters set aside, by event and reason.
pub const DLQ_MESSAGES_QUARANTINED_TOTAL: &str = "dlq_messages_quarantined_total";

/// Number of events that have a label of their own; further ones are counted as `other`.
const EVENTS: usize = 1000;

/// A letter that reports `event` was set aside for `reason`. For stores; see [`rules`](super::rules).
///
/// No label is unbounded: past 1000 events further ones are counted as `other`.
pub fn count_quarantined(event: Option<&str>, reason: Reason) {
    let event = bounded(event.unwrap_or("none"));
    counter!(DLQ_MESSAGES_QUARANTINED_TOTAL, "event" => event, "reason" => reason.as_str())
        .increment(1);
}

fn bounded(event: &str) -> String {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.contains(event) {
        // Events come from messages, so whoever publishes could otherwise make labels without end.
        if known.len() >= EVENTS {
            return "other".to_owned();
        }
        known.insert(event.to_owned());
    }
    event.to_owned()
}
