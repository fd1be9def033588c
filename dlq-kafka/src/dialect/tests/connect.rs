use dlq_core::{Cause, ErrorClass, Reason};

use super::*;

trait Connect {
    fn death(self, topic: &str, offset: i64, stage: &str, class: &str) -> Self;
}

impl Connect for Record {
    fn death(self, topic: &str, offset: i64, stage: &str, class: &str) -> Self {
        self.with("__connect.errors.topic", topic)
            .with("__connect.errors.partition", "3")
            .with("__connect.errors.offset", offset.to_string())
            .with("__connect.errors.connector.name", "jdbc-sink")
            .with("__connect.errors.task.id", "0")
            .with("__connect.errors.stage", stage)
            .with("__connect.errors.class.name", "org.apache.kafka.connect.json.JsonConverter")
            .with("__connect.errors.exception.class.name", class)
    }
}

const DATA: &str = "org.apache.kafka.connect.errors.DataException";

#[test]
fn a_converter_that_failed_is_a_decode_failure_without_a_message() {
    let record = record("dlq")
        .death("orders", 41, "VALUE_CONVERTER", DATA)
        .with_null("__connect.errors.exception.message")
        .with(
            "__connect.errors.exception.stacktrace",
            format!(
                "{DATA}\n\tat a.B.c(B.java:1)\nCaused by: com.fasterxml.Bad: Unexpected '}}'\n"
            ),
        );
    assert_eq!(of(&record), Some(Dialect::Connect));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.origin.to_string(), "kafka://default/orders[3]@41");
    assert_eq!(letter.id, id("orders", 3, 41, None, "jdbc-sink"));
    assert_eq!(letter.cause, Some(Cause::Decode));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Permanent));
    let failure = letter.failure().unwrap();
    assert_eq!(failure.error_type, DATA);
    assert_eq!(failure.messages, ["com.fasterxml.Bad: Unexpected '}'"]);
    assert_attributes(
        &letter,
        &[
            ("__connect.errors.class.name", "org.apache.kafka.connect.json.JsonConverter"),
            ("__connect.errors.stage", "VALUE_CONVERTER"),
            ("__connect.errors.task.id", "0"),
            ("dlq.dialect", "connect"),
            ("dlq.unknown", "attempts,died-at"),
        ],
    );
}

#[test]
fn the_timestamp_is_that_of_the_record_that_died() {
    let letter = read(&record("dlq").death("orders", 41, "TASK_PUT", "a.B"));
    assert_eq!(letter.message.published_at(), Some(DIED));
    assert!(Gap::DiedAt.is_in(&letter) && Gap::Class.is_in(&letter));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Manual));
}

#[test]
fn each_death_has_its_error_and_the_last_is_the_latest() {
    let record = record("dlq")
        .death("orders", 41, "VALUE_CONVERTER", DATA)
        .with_null("__connect.errors.exception.message")
        .death("dlq", 5, "TASK_PUT", "org.apache.kafka.connect.errors.RetriableException")
        .with("__connect.errors.exception.message", "database away");
    let letter = read(&record);
    assert_eq!(letter.id, id("orders", 3, 41, None, "jdbc-sink"));
    assert_eq!(letter.generation, 1);
    assert_eq!(letter.message.published_at(), None, "that is the replay's");
    assert_eq!(letter.attributes[PREVIOUS], "dlq/3/5");
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
    let errors: Vec<_> =
        letter.history.attempts().iter().map(|it| (it.generation, it.failure.message())).collect();
    assert_eq!(errors, [(0, DATA), (1, "database away")]);
}

#[test]
fn a_tombstone_stays_one() {
    let mut record = record("dlq").death("orders", 41, "TASK_PUT", "a.B");
    record.value = None;
    let letter = read(&record);
    assert_eq!(letter.message.payload(), None);
    assert!(!Gap::Payload.is_in(&letter));
}

#[test]
fn without_context_headers_nothing_is_known() {
    let record = record("dlq");
    assert_eq!(of(&record), None);
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    let unknown = "topic,origin,consumer,class,reason,attempts";
    assert_attributes(&letter, &[("dlq.unknown", unknown)]);
    assert_eq!(letter.id, id("dlq", 2, 7, Some(DIED.as_millis()), ""));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Manual));
}
