//! Our own protocol, and records that more than one system wrote to.

use dlq_core::protocol::{Replay, on_replay};
use dlq_core::{Cause, ErrorClass, OperationId, Reason};
use rdkafka::message::Headers as _;

use super::*;

fn told() -> Record {
    record("orders.dlq")
        .with("error.class", "transient")
        .with("error.message", "connection refused")
        .with("error.timestamp", "2027-01-15T08:00:30.123456789Z")
        .with("retry.count", "3")
        .with("previous.topic", "orders.retry.5m")
        .with("original.topic", "orders")
        .with("original.partition", "3")
        .with("original.offset", "41")
}

#[test]
fn the_protocol_without_an_identity_is_read() {
    let record = told();
    assert_eq!(of(&record), Some(Dialect::Protocol));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, ""));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
    assert_eq!((letter.attempts, letter.delayed_retries), (4, 3));
    assert_eq!(letter.cause, Some(Cause::Error));
    assert_eq!(letter.error(), "connection refused");
    let failed = "2027-01-15T08:00:30.123456789Z".parse().unwrap();
    assert_eq!(letter.failure().unwrap().at, failed);
    let expected = [("dlq.dialect", "protocol"), ("dlq.unknown", "consumer")];
    assert_attributes(&letter, &expected);
}

#[test]
fn retry_state_of_others_is_not_sent_back() {
    let record = told().with("retry_topic-attempts", 3_i32.to_be_bytes());
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.attributes["retry_topic-attempts"], "\\x00\\x00\\x00\\x03");
}

#[test]
fn what_the_protocol_says_wrongly_is_kept() {
    let record = told().with("error.class", "dreadful").with("retry.count", [0xff]);
    let letter = read(&record);
    assert_eq!(letter.class, ErrorClass::Transient, "the last one that can be read");
    assert_eq!(letter.attributes["error.class"], "transient\ndreadful");
    assert_eq!(letter.attributes["retry.count"], "3\n\\xff");
}

/// Returns the record that our sink writes for a letter.
fn ours(letter: &DeadLetter) -> Record {
    let packed = wire::pack_letter(letter, None).unwrap();
    let headers = packed.iter().map(|it| header(it.key.to_owned(), it.value)).collect();
    let message = &letter.message;
    let (key, value) = (message.key().cloned(), message.payload().cloned());
    Record { headers, key, value, ..record("orders.dlq") }
}

fn spring(record: Record, topic: &str, offset: i64) -> Record {
    record
        .with("kafka_dlt-original-topic", topic)
        .with("kafka_dlt-original-partition", 3_i32.to_be_bytes())
        .with("kafka_dlt-original-offset", offset.to_be_bytes())
        .with("kafka_dlt-exception-fqcn", "a.B")
}

const SMALLRYE: &[(&str, &str)] = &[
    ("dead-letter-exception-class-name", "a.C"),
    ("dead-letter-reason", "refused"),
    ("dead-letter-topic", "orders"),
    ("dead-letter-partition", "3"),
    ("dead-letter-offset", "41"),
];

#[test]
fn our_letter_is_ours_whatever_headers_its_message_had() {
    let mut letter = read(&spring(record("t"), "orders", 41).after(SMALLRYE));
    letter.message = letter.message.with_header("error.class", "the producer's own");
    let record = ours(&letter);
    assert_eq!(of(&record), Some(Dialect::Dlq));
    let mut again = read(&record);
    again.state = letter.state.clone();
    assert_eq!(again, letter);
}

#[test]
fn our_letter_that_died_elsewhere_is_that_systems() {
    let ours = ours(&read(&spring(record("t"), "orders", 41)));
    assert_eq!(of(&ours), Some(Dialect::Dlq));
    let record = spring(ours.clone(), "orders.dlq", 5)
        .with("kafka_dlt-original-consumer-group", "somebody else");
    assert_eq!(of(&record), Some(Dialect::Spring));
    let letter = read(&record);
    assert_eq!(letter.origin.stream(), "orders.dlq");
    let has = |name| letter.message.headers().iter().any(|it| it.name == name);
    assert!(has("dlq.id") && !has(wire::REST), "history stays, but nothing that would be believed");
    // SmallRye writes in front, so that nothing tells which one was later.
    assert_eq!(of(&ours.after(SMALLRYE)), Some(Dialect::Dlq));
}

/// Returns the record that a replay of `letter` writes: the producer's headers and ours.
fn replayed(letter: &DeadLetter) -> Record {
    let replay = Replay {
        operation: OperationId::of("ana", DIED, 1),
        count: 1,
        from: "orders-dlt/2/7".to_owned(),
        at: DIED,
    };
    Record { headers: on_replay(letter, &replay), ..record("orders-dlt") }
}

#[test]
fn a_letter_that_we_sent_back_and_that_died_there_again_is_the_same_letter() {
    let group = |record: Record| record.with("kafka_dlt-original-consumer-group", "billing");
    let first = read(&group(spring(record("orders-dlt"), "orders", 41)));
    let second = group(spring(replayed(&first), "orders", 99));
    let letter = read(&second);
    assert_producers(&letter, &second, &[]);
    assert_eq!((letter.id, letter.generation), (first.id, 1));
    assert_eq!(letter.origin, first.origin);
    assert_eq!(letter.attributes[PREVIOUS], "orders/3/99");
    assert_eq!(letter.state.replays, 1);
    assert_eq!(letter.history.attempts()[0].generation, 1);
    let third = read(&group(spring(replayed(&letter), "orders", 123)));
    assert_eq!((third.id, third.generation), (first.id, 2));
    // Headers that were copied onto another message say nothing of it.
    let mut copied = second.clone();
    copied.value = Some(Bytes::from_static(b"another message"));
    assert_eq!(read(&copied).origin.to_string(), "kafka://default/orders[3]@99");
    assert_ne!(read(&copied).id, first.id);
}

#[test]
fn a_letter_of_the_protocol_that_we_sent_back_and_that_died_there_again_is_the_same_letter() {
    let first = read(&told());
    let again = replayed(&first)
        .with("error.class", "permanent")
        .with("error.message", "no such account")
        .with("retry.count", "1");
    assert_eq!(of(&again), Some(Dialect::Protocol));
    let letter = read(&again);
    assert_eq!((letter.id, letter.generation, letter.state.replays), (first.id, 1, 1));
    assert_eq!((&letter.origin, &*letter.error()), (&first.origin, "no such account"));
    assert_eq!((letter.class, letter.attempts), (ErrorClass::Permanent, 2));
    assert_producers(&letter, &told(), &[]);
    let mut copied = again;
    copied.value = Some(Bytes::from_static(b"another message"));
    assert_eq!(of(&copied), None, "headers that were copied onto another message");
}

#[test]
fn a_replay_tells_the_birth_where_the_dialect_does_not() {
    let poisoned = |record: Record| {
        record
            .with("reason_poisoned", "refused")
            .with("topic_poisoned", "orders")
            .with("handler_poisoned", "charge")
            .with("subscriber_poisoned", "kafka.Subscriber")
    };
    let first = read(&poisoned(record("poison")));
    let again = read(&poisoned(replayed(&first)));
    assert_eq!((again.id, again.generation), (first.id, 1));
    assert_eq!(again.origin, first.origin);
}

#[test]
fn copied_headers_of_ours_make_no_letter_of_ours() {
    let mut record = ours(&read(&spring(record("t"), "orders", 41)));
    record.value = Some(Bytes::from_static(b"another message"));
    assert_eq!(of(&record), None);
}

#[test]
fn a_dead_letter_that_died_in_another_system_was_born_where_the_first_one_says() {
    let connect = record("connect-dlq")
        .with("__connect.errors.topic", "orders")
        .with("__connect.errors.partition", "3")
        .with("__connect.errors.offset", "41");
    assert_eq!(of(&connect), Some(Dialect::Connect));
    let record = spring(connect, "connect-dlq", 5);
    assert_eq!(of(&record), Some(Dialect::Spring));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.origin.to_string(), "kafka://default/orders[3]@41");
    assert_eq!((letter.generation, &*letter.attributes[PREVIOUS]), (1, "connect-dlq/3/5"));
    assert_eq!(letter.attributes["__connect.errors.topic"], "orders");
    let record = record
        .with("__connect.errors.topic", "orders-dlt")
        .with("__connect.errors.partition", "0")
        .with("__connect.errors.offset", "1");
    assert_eq!(of(&record), Some(Dialect::Connect));
}

#[test]
fn connect_dead_letters_of_spring_dead_letters_are_in_their_second_generation() {
    let first = spring(record("orders-dlt"), "orders", 41)
        .with("kafka_dlt-original-timestamp", BORN.to_be_bytes())
        .with("kafka_dlt-exception-message", "no stock");
    let second = first
        .with("__connect.errors.topic", "orders-dlt")
        .with("__connect.errors.partition", "3")
        .with("__connect.errors.offset", "8")
        .with("__connect.errors.connector.name", "jdbc-sink")
        .with("__connect.errors.exception.class.name", "a.C")
        .with("__connect.errors.exception.message", "database away");
    assert_eq!(of(&second), Some(Dialect::Connect));
    let letter = read(&second);
    assert_producers(&letter, &second, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "jdbc-sink"));
    assert_eq!((letter.generation, letter.message.subject()), (1, "orders"));
    assert_eq!(letter.message.published_at(), Some(Timestamp::from_millis(BORN)));
    assert_eq!(letter.attributes[PREVIOUS], "orders-dlt/3/8");
    let errors: Vec<_> =
        letter.history.attempts().iter().map(|it| (it.generation, it.failure.message())).collect();
    assert_eq!(errors, [(0, "no stock"), (1, "database away")]);
}

#[test]
fn who_writes_in_front_is_the_latest_there_unless_offsets_say_otherwise() {
    let record = |topic, offset| spring(record("dlq"), topic, offset).after(SMALLRYE);
    assert_eq!(of(&record("orders-dlt", 1)), Some(Dialect::SmallRye));
    assert_eq!(of(&record("orders", 40)), Some(Dialect::SmallRye));
    assert_eq!(of(&record("orders", 42)), Some(Dialect::Spring));
    let behind = record("orders-dlt", 1).after(&[("first", "of all")]);
    assert_eq!(of(&behind), Some(Dialect::Spring));
}
