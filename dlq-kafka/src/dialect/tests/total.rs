//! Whatever a record says, it is a letter.

use proptest::prelude::*;

use super::*;

/// Names that some dialect reads, and prefixes of some.
const NAMES: &[&str] = &[
    "kafka_dlt-original-topic",
    "kafka_dlt-original-partition",
    "kafka_dlt-original-offset",
    "kafka_dlt-original-timestamp",
    "kafka_dlt-original-consumer-group",
    "kafka_dlt-exception-fqcn",
    "kafka_dlt-exception-message",
    "kafka_dlt-exception-stacktrace",
    "kafka_dlt-",
    "kafka_original-topic",
    "kafka_original-partition",
    "kafka_original-offset",
    "kafka_exception-fqcn",
    "retry_topic-attempts",
    "retry_topic-original-timestamp",
    "x-original-topic",
    "x-original-partition",
    "x-original-offset",
    "x-original-",
    "x-exception-fqcn",
    "x-exception-",
    "x-exception-stacktrace",
    "__connect.errors.topic",
    "__connect.errors.partition",
    "__connect.errors.offset",
    "__connect.errors.stage",
    "__connect.errors.exception.class.name",
    "__connect.errors.exception.message",
    "__streams.errors.topic",
    "__streams.errors.partition",
    "__streams.errors.offset",
    "__streams.errors.exception",
    "__dlq.errors.topic",
    "__dlq.errors.partition",
    "__dlq.errors.offset",
    "__dlq.errors.group",
    "__dlq.errors.message",
    "dead-letter-topic",
    "dead-letter-partition",
    "dead-letter-offset",
    "dead-letter-reason",
    "dead-letter-exception-class-name",
    "delayed-retry-topic",
    "delayed-retry-partition",
    "delayed-retry-offset",
    "delayed-retry-count",
    "source_topic",
    "source_partition",
    "source_offset",
    "source_consumer_group",
    "source_attempts",
    "exception-type",
    "original-destination",
    "original-partition",
    "original-offset",
    "x-source-topic",
    "x-source-partition",
    "x-source-offset",
    "x-failure-reason",
    "reason_poisoned",
    "topic_poisoned",
    "handler_poisoned",
    "subscriber_poisoned",
    "MT-Fault-ExceptionType",
    "MT-Fault-InputAddress",
    "original.topic",
    "original.partition",
    "original.offset",
    "error.class",
    "error.message",
    "error.history",
    "dlq.id",
    "dlq.kafka.rest",
];

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    let sensible = prop_oneof![
        any::<i32>().prop_map(|number| number.to_be_bytes().to_vec()),
        any::<i64>().prop_map(|number| number.to_be_bytes().to_vec()),
        (0_i32..9).prop_map(|number| number.to_be_bytes().to_vec()),
        (0_i64..9).prop_map(|number| number.to_be_bytes().to_vec()),
        any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        (0_i64..9).prop_map(|number| number.to_string().into_bytes()),
        "[a-z.]{1,6}".prop_map(String::into_bytes),
        "(Caused by: [a-z.]{1,6}(: é[@a-f]{0,4})?\n){0,3}".prop_map(String::into_bytes),
    ];
    let any = prop::collection::vec(any::<u8>(), 0..12);
    prop_oneof![8 => sensible.prop_map(Some), 2 => any.prop_map(Some), 1 => Just(None)]
}

/// A value as the dialect writes it that has this name, most of the time.
fn fit(name: &'static str) -> impl Strategy<Value = Option<Vec<u8>>> {
    let is_binary = ["kafka_", "x-original-"].iter().any(|prefix| name.starts_with(prefix));
    let fitting = if name.ends_with("partition") && is_binary {
        (0_i32..9).prop_map(|number| number.to_be_bytes().to_vec()).boxed()
    } else if (name.ends_with("offset") || name.ends_with("timestamp")) && is_binary {
        (0_i64..9).prop_map(|number| number.to_be_bytes().to_vec()).boxed()
    } else if name.ends_with("partition") || name.ends_with("offset") || name.contains("count") {
        (-1_i64..9).prop_map(|number| number.to_string().into_bytes()).boxed()
    } else {
        "[a-z.]{1,6}".prop_map(String::into_bytes).boxed()
    };
    prop_oneof![30 => fitting.prop_map(Some), 1 => value()]
}

/// Headers as a dialect could have them: a run of names, sometimes cut short, with an odd value here and there.
fn run() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    let is_start = |name: &&str| name.ends_with("topic") || *name == "exception-type";
    let starts = NAMES.iter().enumerate().filter(|(_, name)| is_start(name));
    let starts: Vec<_> = starts.map(|(index, _)| index).collect();
    (prop::sample::select(starts), 3..9_usize).prop_flat_map(|(start, length)| {
        let names = NAMES.iter().cycle().skip(start).take(length);
        let fits: Vec<_> = names.map(|name| (Just(name.as_bytes().to_vec()), fit(name))).collect();
        fits
    })
}

fn noise() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    let name = prop_oneof![
        prop::sample::select(NAMES).prop_map(|name| name.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec((name, value()), 0..6)
}

fn any_record() -> impl Strategy<Value = Record> {
    let headers = prop::collection::vec(prop_oneof![3 => run(), 1 => noise()], 0..5);
    let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..9));
    (headers, bytes(), bytes(), prop::option::of(any::<i64>())).prop_map(
        |(headers, key, value, timestamp)| Record {
            headers: headers
                .into_iter()
                .flatten()
                .map(|(name, value)| Header { name: name.into(), value: value.map(Bytes::from) })
                .collect(),
            key: key.map(Bytes::from),
            value: value.map(Bytes::from),
            timestamp: timestamp.map(Timestamp::from_millis),
            ..record("error.a.b")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_record_is_a_letter_and_always_the_same(record in any_record()) {
        let letter = read(&record);
        prop_assert_eq!(&read(&record), &letter);
        let dialect = of(&record).map(|dialect| dialect.to_string());
        prop_assert_eq!(dialect.as_deref(), letter.attributes.get(DIALECT).map(String::as_str));
        let json = serde_json::to_string(&letter).unwrap();
        prop_assert_eq!(serde_json::from_str::<DeadLetter>(&json).unwrap(), letter);
    }

    #[test]
    fn the_message_is_the_producers(record in any_record()) {
        let letter = read(&record);
        prop_assert_eq!(letter.message.key(), record.key.as_ref());
        prop_assert_eq!(letter.message.payload(), record.value.as_ref());
        let is_foreign = |header: &&Header| {
            !NAMES.iter().any(|name| header.name.starts_with(name.as_bytes()))
        };
        let before: Vec<_> = record.headers.iter().filter(is_foreign).collect();
        let after: Vec<_> = letter.message.headers().iter().filter(is_foreign).collect();
        prop_assert_eq!(after, before);
        let is_state = |header: &Header| {
            header.name.starts_with(b"retry_topic-") || header.name.starts_with(b"delayed-retry-")
        };
        prop_assert!(!letter.message.headers().iter().any(is_state));
    }

    #[test]
    fn a_copy_of_a_known_birth_is_the_same_death(record in any_record(), offset in 0_u64..99) {
        let letter = read(&record);
        // More than half of them.
        if Gap::Origin.is_in(&letter) {
            return Ok(());
        }
        let timestamp = record.timestamp.map(|at| Timestamp::from_nanos(at.as_nanos() / 2));
        let copy = Record { offset, partition: 0, timestamp, ..record };
        prop_assert_eq!(read(&copy).death(), letter.death());
        prop_assert_eq!(read(&copy).fingerprint, letter.fingerprint);
    }
}

#[test]
fn headers_that_pile_up_are_read_in_one_pass() {
    let death = |record: Record| {
        record
            .with("__connect.errors.topic", "orders")
            .with("__connect.errors.partition", "3")
            .with("__connect.errors.offset", "41")
            .with("__connect.errors.exception.class.name", "a.B")
            .with("__connect.errors.exception.message", "refused")
    };
    let record = (0..8_000).fold(record("dlq"), |record, _| death(record));
    let started = std::time::Instant::now();
    let letter = read(&record);
    assert_eq!(letter.generation, 7_999);
    assert_eq!(letter.history.len(), 8_000);
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(60), "{took:?}");
}
