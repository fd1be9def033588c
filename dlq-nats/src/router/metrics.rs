//! Metrics of a router, through the `metrics` facade.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ::metrics::counter;
use dlq_core::ErrorClass;

use super::report::Event;

/// Letters written, by topic and class: as for consumers of ours, whose name it shares.
pub const MESSAGES_IN_DLQ_TOTAL: &str = "messages_in_dlq_total";
/// Events of a router, by `event`: the fields of a [`RouterReport`](super::RouterReport).
pub const DLQ_ROUTER_EVENTS_TOTAL: &str = "dlq_router_events_total";

/// Number of topics that have their own label; further ones are counted as [`OTHER`].
const TOPICS: usize = 1000;
const OTHER: &str = "other";

pub(super) fn happened(event: Event) {
    counter!(DLQ_ROUTER_EVENTS_TOTAL, "event" => event.as_str()).increment(1);
}

/// The topics that have a label.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<HashSet<Arc<str>>>);

impl Topics {
    /// A letter of a message on this subject was written.
    pub(super) fn letter_written(&self, subject: &str, class: ErrorClass) {
        let label = self.label(subject);
        counter!(MESSAGES_IN_DLQ_TOTAL, "topic" => label, "class" => class.as_str()).increment(1);
    }

    fn label(&self, subject: &str) -> Arc<str> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = known.get(subject) {
            return Arc::clone(label);
        }
        if known.len() >= TOPICS {
            return Arc::from(OTHER);
        }
        let label: Arc<str> = Arc::from(subject);
        known.insert(Arc::clone(&label));
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let topics = Topics::default();
        for number in 0..TOPICS + 5 {
            let label = topics.label(&format!("orders.{number}"));
            let wanted = if number < TOPICS { format!("orders.{number}") } else { OTHER.into() };
            assert_eq!(*label, *wanted);
        }
        assert_eq!(*topics.label("orders.0"), *"orders.0");
    }

    #[test]
    fn the_name_is_that_of_consumers_of_ours() {
        assert_eq!(MESSAGES_IN_DLQ_TOTAL, dlq_tower::metrics::MESSAGES_IN_DLQ_TOTAL);
    }
}
