use super::*;

const WRAPPER: &str = "org.springframework.messaging.MessagingException";

fn dead(text: &str) -> Record {
    record("error.orders.billing")
        .with("x-original-topic", "orders")
        .with("x-original-partition", 3_i32.to_be_bytes())
        .with("x-original-offset", 41_i64.to_be_bytes())
        .with("x-original-timestamp", BORN.to_be_bytes())
        .with("x-original-timestamp-type", "CreateTime")
        .with("x-exception-fqcn", WRAPPER)
        .with("x-exception-message", text)
        .with(
            "x-exception-stacktrace",
            format!("{WRAPPER}: {text}\n\tat a.B.c(B.java:1)\nCaused by: com.acme.Bad: no stock\n"),
        )
}

#[test]
fn the_trace_tells_what_was_thrown_and_the_topic_whose_death_it_was() {
    let record = dead("failed: com.acme.Consumer@1a2b3c");
    assert_eq!(of(&record), Some(Dialect::SpringCloudStream));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.consumer, "billing");
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
    let failure = letter.failure().unwrap();
    assert_eq!(failure.error_type, "com.acme.Bad");
    let messages = ["failed: com.acme.Consumer@1a2b3c", "com.acme.Bad: no stock"];
    assert_eq!(failure.messages, messages);
    assert_eq!(letter.attributes["dlq.unknown"], "class,reason,attempts");
}

#[test]
fn identity_hashes_divide_no_group() {
    let group = |text| read(&dead(text)).fingerprint;
    assert_eq!(group("failed: a.B@1a2b3c, a"), group("failed: a.B@deadbeef, a"));
    assert_ne!(group("failed: a.B@1a2b3c, a"), group("failed: a.C@1a2b3c, a"));
}

#[test]
fn another_topic_tells_no_group_and_a_producers_own_headers_no_dialect() {
    let mut other = dead("x");
    other.topic = "orders.dlq".into();
    assert_eq!(read(&other).consumer, "");
    let producers = record("orders.dlq")
        .with("x-original-topic", "orders")
        .with("x-original-partition", "3")
        .with("x-original-offset", "41")
        .with("x-exception-fqcn", "x");
    assert_eq!(of(&producers), None);
    assert_eq!(read(&producers).message.headers(), &producers.headers);
}

#[test]
fn the_last_coordinates_are_the_latest() {
    let record = dead("first")
        .with("x-original-topic", "orders")
        .with("x-original-partition", 3_i32.to_be_bytes())
        .with("x-original-offset", 99_i64.to_be_bytes())
        .with("x-original-timestamp", (BORN + 5).to_be_bytes())
        .with("x-exception-fqcn", WRAPPER);
    let letter = read(&record);
    assert_eq!(letter.id, read(&dead("x")).id);
    assert_eq!((letter.generation, &*letter.attributes[PREVIOUS]), (1, "orders/3/99"));
    assert_eq!(letter.history.attempts()[0].failure.message(), "first");
    assert_eq!(letter.error(), WRAPPER, "the latest had no message");
}
