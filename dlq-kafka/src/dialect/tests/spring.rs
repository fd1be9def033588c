use dlq_core::{Cause, ErrorClass, Reason};

use super::*;

const OUTER: &str = "org.springframework.kafka.listener.ListenerExecutionFailedException";
const TRACE: &str = "org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed\n\tat a.B.c(B.java:1)\n\
    Caused by: com.acme.PaymentException: card 17 refused\n\tat com.acme.Pay.go(Pay.java:9)\n\t... 3 more\n\
    Caused by: java.net.SocketTimeoutException: read timed out\n\tat x.Y.z(Y.java:2)\n";

trait Spring {
    fn death(self, topic: &str, partition: i32, offset: i64, at: i64, group: &str) -> Self;
    fn exception(self) -> Self;
}

impl Spring for Record {
    fn death(self, topic: &str, partition: i32, offset: i64, at: i64, group: &str) -> Self {
        self.with("kafka_dlt-original-topic", topic)
            .with("kafka_dlt-original-partition", partition.to_be_bytes())
            .with("kafka_dlt-original-offset", offset.to_be_bytes())
            .with("kafka_dlt-original-timestamp", at.to_be_bytes())
            .with("kafka_dlt-original-timestamp-type", "CreateTime")
            .with("kafka_dlt-original-consumer-group", group)
    }

    fn exception(self) -> Self {
        self.with("kafka_dlt-exception-fqcn", OUTER)
            .with("kafka_dlt-exception-cause-fqcn", "com.acme.PaymentException")
            .with("kafka_dlt-exception-message", "Listener failed; card 17 refused")
            .with("kafka_dlt-exception-stacktrace", TRACE)
    }
}

fn once() -> Record {
    record("orders-dlt").death("orders", 3, 41, BORN, "billing").exception()
}

#[test]
fn a_dead_letter_tells_birth_group_and_error() {
    let record = once();
    assert_eq!(of(&record), Some(Dialect::Spring));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
    assert_eq!(letter.origin.to_string(), "kafka://default/orders[3]@41");
    assert_eq!(letter.message.subject(), "orders");
    assert_eq!(letter.message.published_at(), Some(Timestamp::from_millis(BORN)));
    assert_eq!((letter.generation, letter.attempts), (0, 0));
    assert_eq!(letter.consumer, "billing");
    assert_eq!(letter.died_at, DIED);
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Manual));
    assert_eq!(letter.cause, Some(Cause::Error));
    let failure = letter.failure().unwrap();
    assert_eq!(failure.error_type, "com.acme.PaymentException");
    let messages =
        ["Listener failed; card 17 refused", "java.net.SocketTimeoutException: read timed out"];
    assert_eq!(failure.messages, messages);
    assert_eq!(failure.backtrace.as_deref(), Some(TRACE));
    assert_eq!(failure.at, DIED);
    assert_attributes(
        &letter,
        &[
            ("dlq.dialect", "spring"),
            ("dlq.unknown", "class,reason,attempts"),
            ("kafka_dlt-exception-fqcn", OUTER),
            ("kafka_dlt-original-timestamp-type", "CreateTime"),
        ],
    );
    assert!(Gap::Class.is_in(&letter) && !Gap::Origin.is_in(&letter));
}

#[test]
fn who_died_again_keeps_its_id_and_the_last_coordinates_are_the_latest() {
    let again = record("orders-dlt")
        .death("orders", 3, 41, BORN, "billing")
        .death("orders-dlt", 2, 5, BORN + 9, "billing")
        .exception();
    let letter = read(&again);
    assert_eq!(letter.id, read(&once()).id);
    assert_eq!(letter.generation, 1);
    assert_eq!(letter.history.len(), 1, "exceptions of earlier deaths are gone");
    assert_eq!(letter.history.attempts()[0].generation, 1);
    assert_eq!(letter.attributes[PREVIOUS], "orders-dlt/2/5");
    assert_eq!(letter.fingerprint, read(&once()).fingerprint);
}

#[test]
fn copies_of_one_death_are_one_letter_and_other_groups_are_others() {
    let mut copy = once();
    copy.offset += 1;
    copy.timestamp = Some(Timestamp::from_millis(BORN + 99));
    assert_eq!(read(&copy).death(), read(&once()).death());
    let other = record("orders-dlt").death("orders", 3, 41, BORN, "stock").exception();
    assert_ne!(read(&other).id, read(&once()).id);
}

#[test]
fn groups_follow_what_was_thrown() {
    let with = |class: &str, text: &str| {
        let record = record("t")
            .death("orders", 0, 1, BORN, "g")
            .with("kafka_dlt-exception-fqcn", OUTER)
            .with("kafka_dlt-exception-cause-fqcn", class)
            .with("kafka_dlt-exception-message", text);
        read(&record).fingerprint
    };
    assert_eq!(
        with("a.B", "order 1: bad a.Order@1a2b3c"),
        with("a.B", "order 2: bad a.Order@ffab")
    );
    assert_ne!(with("a.B", "bad"), with("a.C", "bad"));
}

#[test]
fn before_2_8_the_trace_tells_what_was_thrown() {
    let record = record("t")
        .with("kafka_dlt-original-topic", "orders")
        .with("kafka_dlt-original-partition", 0_i32.to_be_bytes())
        .with("kafka_dlt-original-offset", 1_i64.to_be_bytes())
        .with("kafka_dlt-exception-fqcn", OUTER)
        .with("kafka_dlt-exception-stacktrace", TRACE);
    let letter = read(&record);
    assert_eq!(letter.failure().unwrap().error_type, "com.acme.PaymentException");
    assert_eq!(letter.consumer, "");
    assert!(Gap::Consumer.is_in(&letter));
    assert_eq!(letter.message.published_at(), None);
}

#[test]
fn a_key_that_cannot_be_decoded_is_a_decode_failure() {
    let record = record("t")
        .death("orders", 0, 1, BORN, "g")
        .with(
            "kafka_dlt-exception-cause-fqcn",
            "org.springframework.kafka.support.serializer.DeserializationException",
        )
        .with(
            "kafka_dlt-key-exception-fqcn",
            "org.springframework.kafka.support.serializer.DeserializationException",
        )
        .with("kafka_dlt-key-exception-message", "failed to deserialize")
        .with("kafka_dlt-key-exception-stacktrace", "x");
    let letter = read(&record);
    assert_eq!(letter.cause, Some(Cause::Decode));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Permanent));
    assert_eq!(letter.error(), "failed to deserialize");
    assert!(!Gap::Class.is_in(&letter));
}

#[test]
fn delivery_attempts_count_and_are_not_sent_back() {
    let record = once().with("kafka_deliveryAttempt", 10_i32.to_be_bytes());
    let letter = read(&record);
    assert_eq!(letter.attempts, 10);
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
    assert_producers(&letter, &record, &[]);
}

fn retried() -> Record {
    record("orders-retry-0")
        .with("kafka_original-topic", "orders")
        .with("kafka_original-partition", 3_i32.to_be_bytes())
        .with("kafka_original-offset", 41_i64.to_be_bytes())
        .with("kafka_original-timestamp", BORN.to_be_bytes())
        .with("kafka_original-timestamp-type", "CreateTime")
        .with("kafka_dlt-original-consumer-group", "billing")
        .with("kafka_exception-fqcn", OUTER)
        .with("kafka_exception-cause-fqcn", "com.acme.PaymentException")
        .with("kafka_exception-message", "refused")
        .with("kafka_exception-stacktrace", TRACE)
}

/// Milliseconds in as few bytes as they need.
fn minimal(number: i64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let needed = (0..7).find(|&at| bytes[at] != 0 || bytes[at + 1] >= 0x80).unwrap_or(7);
    bytes[needed..].to_vec()
}

#[test]
fn retry_topics_count_the_attempt_to_come_and_the_last_count_is_the_latest() {
    let record = retried()
        .with("retry_topic-attempts", 2_i32.to_be_bytes())
        .with("retry_topic-original-timestamp", minimal(BORN))
        .with("retry_topic-backoff-timestamp", minimal(BORN + 1000))
        .with("retry_topic-attempts", 4_i32.to_be_bytes())
        .with("retry_topic-backoff-timestamp", minimal(BORN + 2000));
    assert_eq!(minimal(BORN).len(), 6);
    assert_eq!(of(&record), Some(Dialect::SpringRetry));
    let letter = read(&record);
    assert_eq!(letter.attempts, 3);
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
    assert_eq!(letter.id, read(&once()).id, "the same message, whoever tells of it");
    assert_eq!(letter.generation, 0);
    assert_eq!(letter.consumer, "billing");
    assert_producers(&letter, &record, &[]);
    assert_attributes(
        &letter,
        &[
            ("dlq.dialect", "spring-retry"),
            ("kafka_exception-fqcn", OUTER),
            ("kafka_original-timestamp-type", "CreateTime"),
        ],
    );
}

#[test]
fn the_count_of_2_7_0_is_one_byte_and_its_exceptions_pile_up() {
    let record = retried()
        .with("retry_topic-attempts", [200])
        .with("kafka_exception-fqcn", OUTER)
        .with("kafka_exception-message", "refused again");
    let letter = read(&record);
    assert_eq!(letter.attempts, 199);
    let errors: Vec<_> =
        letter.history.attempts().iter().map(|it| (it.number, it.failure.message())).collect();
    assert_eq!(errors, [(1, "refused"), (2, "refused again")]);
    assert_eq!(letter.failure().unwrap().error_type, OUTER, "the cause is the first attempt's");
}

#[test]
fn what_cannot_be_decoded_is_kept_escaped() {
    let record = once()
        .with("kafka_dlt-exception-message", b"\xff\xfe refused")
        .with("retry_topic-attempts", [1, 2, 3])
        .with_null("kafka_dlt-key-exception-message");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    let message = "Listener failed; card 17 refused\n\\xff\\xfe refused";
    assert_eq!(letter.attributes["kafka_dlt-exception-message"], message);
    let text = "com.acme.PaymentException: card 17 refused";
    assert_eq!(letter.failure().unwrap().message(), text, "an older message is not the latest's");
    assert_eq!(letter.attributes["retry_topic-attempts"], "\\x01\\x02\\x03");
}

#[test]
fn coordinates_of_the_wrong_length_are_no_dialect() {
    let base = || record("t").with("kafka_dlt-original-topic", "orders");
    let partition = |bytes: &[u8]| base().with("kafka_dlt-original-partition", bytes);
    let records = [
        base(),
        partition(&[0, 0, 3]).with("kafka_dlt-original-offset", [0; 8]),
        partition(&[0; 4]).with("kafka_dlt-original-offset", [0; 4]),
        partition(&[0; 4]),
        partition(&[0xff; 4]).with("kafka_dlt-original-offset", [0; 8]),
        partition(&[0; 4]).with("kafka_dlt-original-offset", [0xff; 8]),
        partition(b"0").with("kafka_dlt-original-offset", b"41"),
        partition(&[0; 4]).with_null("kafka_dlt-original-offset"),
    ];
    for record in records {
        assert_eq!(of(&record), None, "{record:?}");
        let letter = read(&record);
        assert_eq!(letter.message.headers(), &record.headers, "nobody's headers are kept");
        assert_eq!(letter.origin, record.origin(&Arc::from("default")));
    }
}

#[test]
fn an_older_hop_that_cannot_be_read_is_passed_over_and_kept() {
    let record = record("t")
        .with("kafka_dlt-original-topic", "orders")
        .with("kafka_dlt-original-partition", [0, 3])
        .with("kafka_dlt-original-offset", 41_i64.to_be_bytes())
        .death("orders-dlt", 1, 9, BORN, "g");
    let letter = read(&record);
    assert_eq!(letter.origin.to_string(), "kafka://default/orders-dlt[1]@9");
    assert_eq!(letter.generation, 1);
    assert_eq!(letter.attributes["kafka_dlt-original-partition"], "\\x00\\x03");
}

#[test]
fn the_wrapper_with_a_time_of_2_7_is_none_that_was_thrown() {
    let trace = "org.springframework.kafka.listener.TimestampedException: x\n\tat a.B\nCaused by: \
                 org.springframework.kafka.listener.ListenerExecutionFailedException: x\n\tat a.B\nCaused by: \
                 com.acme.Bad: no stock\nCaused by: java.sql.SQLException: away\n";
    let record = record("orders-dlt")
        .with("kafka_original-topic", "orders")
        .with("kafka_original-partition", 3_i32.to_be_bytes())
        .with("kafka_original-offset", 41_i64.to_be_bytes())
        .with("kafka_exception-fqcn", "org.springframework.kafka.listener.TimestampedException")
        .with("kafka_exception-message", "x")
        .with("kafka_exception-stacktrace", trace);
    assert_eq!(of(&record), Some(Dialect::SpringRetry));
    assert_eq!(read(&record).failure().unwrap().error_type, "com.acme.Bad");
}
