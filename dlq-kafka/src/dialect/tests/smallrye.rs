use dlq_core::{Cause, ErrorClass, Reason};

use super::*;

const FIRST: &[(&str, &str)] = &[
    ("dead-letter-exception-class-name", "com.acme.PaymentException"),
    ("dead-letter-reason", "refused"),
    ("dead-letter-topic", "orders"),
    ("dead-letter-partition", "3"),
    ("dead-letter-offset", "41"),
];

const SECOND: &[(&str, &str)] = &[
    ("dead-letter-exception-class-name", "io.smallrye.reactive.messaging.ProcessingException"),
    ("dead-letter-reason", "SRMSG00103"),
    ("dead-letter-cause-class-name", "java.net.ConnectException"),
    ("dead-letter-cause", "connection refused"),
    ("dead-letter-topic", "orders"),
    ("dead-letter-partition", "3"),
    ("dead-letter-offset", "77"),
];

#[test]
fn a_dead_letter_tells_birth_and_error() {
    let record = record("dead-letter-topic-orders").after(FIRST);
    assert_eq!(of(&record), Some(Dialect::SmallRye));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, ""));
    assert_eq!(letter.failure().unwrap().error_type, "com.acme.PaymentException");
    assert_eq!(letter.error(), "refused");
    assert_eq!(letter.died_at, DIED);
    let unknown = "consumer,class,reason,attempts";
    assert_attributes(&letter, &[("dlq.dialect", "smallrye"), ("dlq.unknown", unknown)]);
}

#[test]
fn the_first_headers_are_the_latest() {
    let once = read(&record("dlq").after(FIRST));
    let twice = record("dlq").after(FIRST).after(SECOND);
    let letter = read(&twice);
    assert_producers(&letter, &twice, &[]);
    assert_eq!(letter.id, once.id);
    assert_eq!(letter.generation, 1);
    assert_eq!(letter.attributes[PREVIOUS], "orders/3/77");
    let errors: Vec<_> = letter
        .history
        .attempts()
        .iter()
        .map(|it| (it.generation, it.failure.error_type.as_str(), it.failure.report()))
        .collect();
    let expected = [
        (0, "com.acme.PaymentException", "refused".to_owned()),
        (1, "java.net.ConnectException", "SRMSG00103: connection refused".to_owned()),
    ];
    assert_eq!(errors, expected);
    // The other way round, the cause of the older death is not taken for one of the latest.
    let letter = read(&record("dlq").after(SECOND).after(FIRST));
    assert_eq!(letter.origin.to_string(), "kafka://default/orders[3]@77");
    assert_eq!(letter.failure().unwrap().error_type, "com.acme.PaymentException");
    assert_eq!(letter.error(), "refused");
}

#[test]
fn what_could_not_be_decoded_is_told() {
    let record = record("dlq")
        .after(FIRST)
        .with("deserialization-failure-reason", "unexpected token")
        .with("deserialization-failure-data", [0xff, 0]);
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.cause, Some(Cause::Decode));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Permanent));
    assert_eq!(letter.attributes["deserialization-failure-data"], "\\xff\\x00");
}

fn retried() -> Record {
    let hop = |topic, offset| {
        [
            ("delayed-retry-exception-class-name", "com.acme.PaymentException"),
            ("delayed-retry-reason", "refused"),
            ("delayed-retry-topic", topic),
            ("delayed-retry-partition", "3"),
            ("delayed-retry-offset", offset),
        ]
    };
    record("orders-dlq")
        .after(&hop("orders", "41"))
        .after(&hop("orders_retry_10000", "5"))
        .with("delayed-retry-original-timestamp", BORN.to_string())
        .with("delayed-retry-first-processing-timestamp", (BORN + 1).to_string())
        .with("delayed-retry-count", "0")
        .with("delayed-retry-count", "1")
}

#[test]
fn delayed_retry_counts_retries_and_the_last_count_is_the_latest() {
    let record = retried();
    assert_eq!(of(&record), Some(Dialect::SmallRyeRetry));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), ""));
    assert_eq!((letter.generation, letter.attempts), (0, 2));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::Exhausted));
    let numbers: Vec<_> =
        letter.history.attempts().iter().map(|it| (it.generation, it.number)).collect();
    assert_eq!(numbers, [(0, 1), (0, 2)]);
    assert_attributes(
        &letter,
        &[
            ("delayed-retry-first-processing-timestamp", "1800000000001"),
            ("dlq.dialect", "smallrye-retry"),
            ("dlq.unknown", "consumer"),
            ("kafka.previous", "orders_retry_10000/3/5"),
        ],
    );
}

#[test]
fn retry_state_is_not_sent_back_even_as_history() {
    let record = retried()
        .with("x-original-topic", "orders-dlq")
        .with("x-original-partition", 0_i32.to_be_bytes())
        .with("x-original-offset", 8_i64.to_be_bytes())
        .with("x-exception-fqcn", "a.B")
        .after(&[("shop", "berlin")]);
    assert_eq!(of(&record), Some(Dialect::SpringCloudStream));
    let letter = read(&record);
    let names: Vec<_> = letter.message.headers().iter().map(|it| it.name.clone()).collect();
    assert_eq!(names, ["shop", "traceparent"]);
    assert_eq!(letter.attributes["delayed-retry-count"], "0\n1");
}

fn failed(headers: &[(&'static str, &str)]) -> String {
    let record = record("dlq").after(&FIRST[2..]).after(headers);
    read(&record).failure().unwrap().error_type.clone()
}

#[test]
fn the_class_is_what_was_thrown_and_not_its_cause() {
    let thrown = [
        ("dead-letter-exception-class-name", "com.acme.PaymentException"),
        ("dead-letter-reason", "declined"),
        ("dead-letter-cause-class-name", "java.sql.SQLException"),
        ("dead-letter-cause", "away"),
    ];
    assert_eq!(failed(&thrown), "com.acme.PaymentException");
    let wrapped = [
        ("dead-letter-exception-class-name", "java.util.concurrent.CompletionException"),
        ("dead-letter-reason", "com.acme.PaymentException: declined"),
        ("dead-letter-cause-class-name", "com.acme.PaymentException"),
        ("dead-letter-cause", "declined"),
    ];
    assert_eq!(failed(&wrapped), "com.acme.PaymentException");
    let in_the_text = [
        ("dead-letter-exception-class-name", "io.smallrye.reactive.messaging.ProcessingException"),
        (
            "dead-letter-reason",
            "java.lang.reflect.InvocationTargetException: com.acme.PaymentException: declined",
        ),
        ("dead-letter-cause-class-name", "java.lang.reflect.InvocationTargetException"),
    ];
    assert_eq!(failed(&in_the_text), "com.acme.PaymentException");
    let lost = [
        ("dead-letter-exception-class-name", "io.smallrye.reactive.messaging.ProcessingException"),
        ("dead-letter-reason", "SRMSG00103: Exception thrown"),
        ("dead-letter-cause-class-name", "java.lang.reflect.InvocationTargetException"),
    ];
    assert_eq!(failed(&lost), "io.smallrye.reactive.messaging.ProcessingException");
}
