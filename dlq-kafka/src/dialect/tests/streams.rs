use dlq_core::Cause;

use super::*;

#[test]
fn a_record_that_failed_tells_where_it_stood() {
    let record = record("dlq")
        .with("__streams.errors.exception", "org.apache.kafka.common.errors.SerializationException")
        .with_null("__streams.errors.message")
        .with("__streams.errors.stacktrace", "a\n\tat b")
        .with("__streams.errors.topic", "orders")
        .with("__streams.errors.partition", "3")
        .with("__streams.errors.offset", "41");
    assert_eq!(of(&record), Some(Dialect::Streams));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, ""));
    assert_eq!(letter.cause, Some(Cause::Decode));
    assert_eq!(letter.message.published_at(), Some(DIED));
    let unknown = "consumer,attempts,died-at";
    assert_attributes(&letter, &[("dlq.dialect", "streams"), ("dlq.unknown", unknown)]);
}

#[test]
fn what_failed_in_a_punctuator_came_from_nowhere() {
    let mut record = record("dlq")
        .with("__streams.errors.exception", "com.acme.Bad")
        .with("__streams.errors.message", "no state")
        .with_null("__streams.errors.topic")
        .with("__streams.errors.partition", "-1")
        .with("__streams.errors.offset", "-1");
    (record.key, record.value) = (None, None);
    assert_eq!(of(&record), Some(Dialect::Streams));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.origin, record.origin(&Arc::from("default")));
    assert_eq!(letter.error(), "no state");
    assert_eq!(letter.failure().unwrap().error_type, "com.acme.Bad");
    assert!(Gap::Origin.is_in(&letter) && Gap::Topic.is_in(&letter));
    assert_eq!(letter.generation, 0);
}

#[test]
fn what_failed_behind_a_repartition_topic_has_no_known_birth() {
    let record = record("dlq")
        .with("__streams.errors.exception", "com.acme.Bad")
        .with("__streams.errors.message", "no state")
        .with("__streams.errors.topic", "app-KSTREAM-AGGREGATE-0000000003-repartition")
        .with("__streams.errors.partition", "3")
        .with("__streams.errors.offset", "41");
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.origin, record.origin(&Arc::from("default")));
    assert!(Gap::Origin.is_in(&letter) && Gap::Topic.is_in(&letter));
    let stood = "app-KSTREAM-AGGREGATE-0000000003-repartition/3/41";
    assert_eq!(letter.attributes[PREVIOUS], stood);
}
