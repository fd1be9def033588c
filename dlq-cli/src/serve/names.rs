//! Exported metrics with their help texts. `docs/metrics.md` explains each one.

/// A family of series.
pub(super) struct Family {
    pub(super) name: &'static str,
    help: &'static str,
}

macro_rules! families {
    ($($(#[$meta:meta])* $id:ident = $name:literal: $help:literal),+ $(,)?) => {
        $($(#[$meta])* pub(super) const $id: Family = Family { name: $name, help: $help };)+
    };
}

families! {
    STORE_UP = "dlq_store_up": "1 when the store answered the latest look, otherwise 0",
    LOOK_SECONDS = "dlq_store_look_seconds": "how long the latest look at the store took",
    LOOKS = "dlq_store_looks_total": "looks at the store since the start, by outcome",
    ANSWERED = "dlq_store_last_answer_seconds": "when the store last answered, in seconds since 1970",
    LETTERS = "dlq_letters": "letters, by status",
    BY_REASON = "dlq_unresolved_letters": "unresolved letters, by reason",
    BY_TOPIC = "dlq_topic_letters": "unresolved letters, by topic",
    WAITING = "dlq_events_count": "letters that are pending, held or quarantined, by consumer",
    QUARANTINED = "dlq_messages_quarantined": "letters set aside, by consumer",
    GROUP_LETTERS = "dlq_group_letters": "letters of the largest groups of errors that are pending, held or quarantined, the rest as other",
    ALERTS_SENT = "dlq_alerts_sent_total": "alerts about groups that a receiver accepted, by format",
    ALERTS_FAILED = "dlq_alerts_failed_total": "alerts about groups that a receiver did not accept, and that are tried again",
    ALERTS_DROPPED = "dlq_alerts_dropped_total": "alerts about groups that no receiver ever had, by format",
    WRITTEN = "messages_in_dlq_total": "letters that came into the store since the start, by topic and class",
    OLDEST = "dlq_oldest_unresolved_age_seconds": "age of the oldest unresolved letter, 0 when there is none",
    MAX_AGE = "dlq_max_age_seconds": "how old the oldest unresolved letter may become, as this process was told",
    OVERDUE = "dlq_overdue_seconds": "how long the first letter that is due has waited to be claimed, 0 when none is",
    DUE = "dlq_due_letters": "letters that wait for a consumer to claim them, by consumer",
    OVERDUE_LETTERS = "dlq_overdue_letters": "those of them that have waited for too long, by consumer",
    OPERATIONS = "dlq_operations": "operations that have not ended, by state",
    OPERATION_LETTERS = "dlq_operation_letters": "letters of operations that have not ended, by outcome",
    OPERATION_IDLE = "dlq_operation_idle_seconds": "how long the running operation that has stood still longest has, 0 when none runs",
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    BROKER_LETTERS = "dlq_broker_letters": "letters at the broker, by original subject (NATS) or partition (Kafka)",
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    BROKER_OLDEST = "dlq_broker_oldest_age_seconds": "age of the oldest letter at the broker, 0 when there is none",
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    BROKER_MAX_AGE = "dlq_broker_max_age_seconds": "for how long the broker keeps letters",
    #[cfg(feature = "nats")]
    NATS_LAST = "dlq_nats_last_sequence": "the last sequence of a stream",
    #[cfg(feature = "nats")]
    NATS_PENDING = "dlq_nats_pending": "messages that a consumer has yet to be handed",
    #[cfg(feature = "nats")]
    NATS_ACK_PENDING = "dlq_nats_ack_pending": "messages that a consumer was handed and has not acknowledged",
    #[cfg(feature = "kafka")]
    KAFKA_END = "dlq_kafka_end_offset": "the end offsets of a topic, summed",
    #[cfg(feature = "kafka")]
    KAFKA_LAG = "dlq_kafka_lag": "records of a topic before which a group has not committed",
}

impl Family {
    pub(super) fn gauge(&self, labels: Vec<metrics::Label>) -> metrics::Gauge {
        metrics::describe_gauge!(self.name, self.help);
        metrics::gauge!(self.name, labels)
    }

    pub(super) fn counter(&self, labels: Vec<metrics::Label>) -> metrics::Counter {
        metrics::describe_counter!(self.name, self.help);
        metrics::counter!(self.name, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::{QUARANTINED, WAITING, WRITTEN};

    #[cfg(feature = "kafka")]
    #[test]
    fn lag_has_the_names_that_consumers_of_kafka_give_it() {
        assert_eq!(super::KAFKA_END.name, dlq_kafka::lag::DLQ_KAFKA_END_OFFSET);
        assert_eq!(super::KAFKA_LAG.name, dlq_kafka::lag::DLQ_KAFKA_LAG);
    }

    #[test]
    fn what_consumers_export_too_has_their_names() {
        assert_eq!(WAITING.name, dlq_tower::consumer::DLQ_EVENTS_COUNT);
        assert_eq!(QUARANTINED.name, dlq_tower::consumer::DLQ_MESSAGES_QUARANTINED);
        assert_eq!(WRITTEN.name, dlq_tower::metrics::MESSAGES_IN_DLQ_TOTAL);
    }
}
