use dlq_core::{ErrorClass, Reason};

use super::*;

#[test]
fn karafka() {
    let piped = record("dlq")
        .with("source_topic", "orders")
        .with("source_partition", "3")
        .with("source_offset", "41")
        .with("source_consumer_group", "billing");
    assert_eq!(of(&piped), None);
    let record = piped.with("source_attempts", "3").with("source_trace_id", "9f");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, "billing"));
    assert_eq!((letter.attempts, letter.reason), (3, Reason::Exhausted));
    assert_eq!((letter.cause, letter.history.len()), (None, 0));
    assert_attributes(&letter, &[("dlq.dialect", "karafka"), ("source_trace_id", "9f")]);
}

#[test]
fn wolverine() {
    let record = record("dlq")
        .with("exception-type", "Acme.PaymentException")
        .with("exception-message", "refused")
        .with("exception-stack", "at Acme.Pay()")
        .with("failed-at", "1800000000005")
        .with("original-destination", "kafka://topic/orders")
        .with("original-partition", "3")
        .with("original-offset", "41")
        .with("attempts", "3");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, ""));
    let failure = letter.failure().unwrap();
    assert_eq!(failure.at, Timestamp::from_millis(1_800_000_000_005));
    assert_eq!(failure.backtrace.as_deref(), Some("at Acme.Pay()"));
    assert_eq!(letter.class, ErrorClass::Transient);
    let expected = [("dlq.dialect", "wolverine"), ("dlq.unknown", "consumer")];
    assert_attributes(&letter, &expected);
}

#[test]
fn silverback() {
    let record = record("dlq")
        .with("x-failed-attempts", "2")
        .with("x-failure-reason", "refused")
        .with("x-source-consumer-group-id", "billing")
        .with("x-source-topic", "orders")
        .with("x-source-partition", "3")
        .with("x-source-offset", "41")
        .with("x-source-timestamp", "2027-01-15T08:00:00.0000000Z");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
    assert_eq!((letter.attempts, letter.error().as_str()), (2, "refused"));
    assert_attributes(&letter, &[("dlq.dialect", "silverback")]);
}

#[test]
fn watermill_tells_the_topic_but_not_the_place() {
    let record = record("poison")
        .with("reason_poisoned", "order 7: refused")
        .with("topic_poisoned", "orders")
        .with("handler_poisoned", "charge")
        .with("subscriber_poisoned", "kafka.Subscriber");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!((letter.message.subject(), letter.origin.stream()), ("orders", "poison"));
    assert_eq!(letter.id, id("poison", 2, 7, None, "charge"), "its time is that of the death");
    assert!(Gap::Origin.is_in(&letter) && !Gap::Topic.is_in(&letter));
    assert_eq!(letter.attributes["subscriber_poisoned"], "kafka.Subscriber");
}

#[test]
fn masstransit_tells_the_topic_but_not_the_place() {
    let record = record("orders_error")
        .with("MT-Reason", "fault")
        .with("MT-Fault-ExceptionType", "Acme.PaymentException")
        .with("MT-Fault-Message", "refused")
        .with("MT-Fault-Timestamp", "2027-01-15T08:00:00Z")
        .with("MT-Fault-InputAddress", "loopback://localhost/kafka/orders?temporary=true")
        .with("MT-Fault-ConsumerType", "Acme.Charge")
        .with("MT-Fault-RetryCount", "2");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!((letter.message.subject(), letter.consumer.as_str()), ("orders", "Acme.Charge"));
    assert_eq!(letter.attempts, 3);
    assert_eq!(letter.failure().unwrap().at, Timestamp::from_millis(BORN));
    assert_eq!(letter.attributes["MT-Reason"], "fault");
}

#[test]
fn names_alone_tell_nothing() {
    for names in [
        &["source_topic", "source_partition", "source_offset"][..],
        &["exception-type", "exception-message", "attempts"],
        &["x-source-topic", "x-failure-reason"],
        &["reason_poisoned", "topic_poisoned"],
        &["MT-Fault-Message", "MT-Reason"],
        &["dead-letter-reason", "dead-letter-topic"],
        &["original.topic", "error.message"],
        &["__dlq.errors.topic", "__dlq.errors.group"],
        &["__streams.errors.topic"],
    ] {
        let record = names.iter().fold(record("dlq"), |record, name| record.with(name, "1"));
        assert_eq!(of(&record), None, "{names:?}");
        assert_eq!(read(&record).message.headers(), &record.headers);
    }
}

#[test]
fn headers_that_the_client_does_not_give_are_counted() {
    let mut record = record("dlq");
    record.unreadable_headers = 2;
    assert_eq!(read(&record).attributes[UNREADABLE_HEADERS], "2");
}

#[test]
fn every_dialect_has_a_word_of_its_own_in_the_manual() {
    let manual = include_str!("../mod.rs");
    let all = [
        Dialect::Dlq,
        Dialect::Protocol,
        Dialect::Spring,
        Dialect::SpringRetry,
        Dialect::SpringCloudStream,
        Dialect::Connect,
        Dialect::Streams,
        Dialect::ShareGroup,
        Dialect::SmallRye,
        Dialect::SmallRyeRetry,
        Dialect::Karafka,
        Dialect::Wolverine,
        Dialect::Silverback,
        Dialect::Watermill,
        Dialect::MassTransit,
    ];
    for dialect in all {
        assert!(manual.contains(&format!("//! | `{dialect}`")), "{dialect}");
    }
}

#[test]
fn watermill_says_what_the_message_is_called_and_not_when_it_was_published() {
    let record = record("poison")
        .with("_watermill_message_uuid", "7f0c")
        .with("reason_poisoned", "refused")
        .with("topic_poisoned", "orders")
        .with("handler_poisoned", "charge")
        .with("subscriber_poisoned", "kafka.Subscriber");
    let letter = read(&record);
    assert_eq!(letter.message.id(), Some("7f0c"));
    assert_eq!(letter.message.published_at(), None, "the time of the record is that of its death");
    assert_eq!(letter.died_at, DIED);
    assert_producers(&letter, &record, &[("_watermill_message_uuid", Some(b"7f0c"))]);
}

#[test]
fn g8_names_that_a_producer_uses_itself_stay_its_own_in_every_dialect() {
    let own: &[(&str, Option<&[u8]>)] = &[
        ("retry.count", Some(b"7")),
        ("error.message", Some(b"mine")),
        ("source_topic", Some(b"mine")),
        ("dead-letter-reason", Some(b"mine")),
    ];
    let with_own = || {
        own.iter().fold(record("dlq"), |record, (name, value)| record.with(name, value.unwrap()))
    };
    let spring = with_own()
        .with("kafka_dlt-original-topic", "orders")
        .with("kafka_dlt-original-partition", 3_i32.to_be_bytes())
        .with("kafka_dlt-original-offset", 41_i64.to_be_bytes())
        .with("kafka_dlt-exception-fqcn", "a.B");
    let karafka = with_own()
        .with("source_topic", "orders")
        .with("source_partition", "3")
        .with("source_offset", "41")
        .with("source_consumer_group", "billing")
        .with("source_attempts", "3");
    let connect = with_own()
        .with("__connect.errors.topic", "orders")
        .with("__connect.errors.partition", "3")
        .with("__connect.errors.offset", "41");
    for record in [with_own(), spring, karafka, connect] {
        let letter = read(&record);
        assert_producers(&letter, &record, own);
    }
}
