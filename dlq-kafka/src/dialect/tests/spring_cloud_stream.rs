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

/// Headers in front of a payload: names and JSON.
fn embedded(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, u8::try_from(headers.len()).unwrap()];
    for (name, json) in headers {
        bytes.push(u8::try_from(name.len()).unwrap());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&i32::try_from(json.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(json.as_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

const EMBEDDED: [(&str, &str); 7] = [
    ("x-original-topic", "\"orders\""),
    ("x-original-partition", "3"),
    ("x-original-offset", "41"),
    ("x-original-timestamp", "1800000000000"),
    ("x-exception-fqcn", "\"org.springframework.messaging.MessagingException\""),
    ("x-exception-message", "\"no \\u00e9clair\""),
    ("x-exception-stacktrace", "\"a.B: x\\nCaused by: com.acme.Bad: no stock\\n\""),
];

fn with_value(value: Vec<u8>) -> Record {
    Record { value: Some(value.into()), ..record("error.orders.billing") }
}

#[test]
fn embedded_headers_are_read_and_the_payload_is_the_producers() {
    let payload = b"\xff\0{\"amount\":12.50}";
    let letter = read(&with_value(embedded(&EMBEDDED, payload)));
    assert_eq!(letter.attributes[DIALECT], "spring-cloud-stream");
    let producers = with_value(payload.to_vec());
    assert_producers(&letter, &producers, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
    let failure = letter.failure().unwrap();
    assert_eq!(failure.error_type, "com.acme.Bad");
    assert_eq!(failure.messages[0], "no \u{e9}clair");
    // What the producer had embedded stays embedded, byte for byte.
    let own = ("contentType", " \"text/plain\" ");
    let all: Vec<_> =
        EMBEDDED[..4].iter().copied().chain([own]).chain(EMBEDDED[4..].to_vec()).collect();
    let letter = read(&with_value(embedded(&all, b"x")));
    assert_eq!(letter.message.payload().unwrap()[..], embedded(&[own], b"x"));
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
}

#[test]
fn a_payload_that_only_begins_like_embedded_headers_is_kept_as_it_is() {
    let whole = embedded(&EMBEDDED, b"");
    let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
    let mut not_json = EMBEDDED;
    not_json[1].1 = "three";
    let mut too_large = EMBEDDED;
    too_large[1].1 = "3000000000";
    let mut text = EMBEDDED;
    text[2].1 = "\"41\"";
    let odd = [
        embedded(&not_json, b"x"),
        embedded(&too_large, b"x"),
        embedded(&text, b"x"),
        embedded(&EMBEDDED[..4], b"x"),
        embedded(&[("contentType", "1")], b"x"),
        vec![0xff, 1, 1, b'a', 0xff, 0xff, 0xff, 0xff],
        vec![0xff; 600],
    ];
    for value in cut.chain(odd) {
        let record = with_value(value);
        assert_eq!(of(&record), None, "{:?}", record.value);
        assert_eq!(read(&record).message.payload(), record.value.as_ref());
    }
}

#[test]
fn g8_a_payload_that_begins_so_is_kept_where_the_headers_are_real_ones() {
    let producers = embedded(&[("contentType", "1")], b"x");
    for payload in [&b"\xff\0abc"[..], b"\xff\0", &producers] {
        let record = Record { value: Some(payload.to_vec().into()), ..dead("x") };
        assert_eq!(of(&record), Some(Dialect::SpringCloudStream));
        assert_eq!(read(&record).message.payload(), record.value.as_ref());
    }
}

#[test]
fn the_last_cause_is_what_was_thrown_whatever_wraps_it() {
    let trace = format!(
        "{WRAPPER}: failed\n\tat a.B.c(B.java:1)\nCaused by: org.springframework.core.retry.RetryException: exhausted\n\tat \
         a.B.c(B.java:2)\n\tSuppressed: com.acme.Other: x\n\tCaused by: com.acme.Inner: y\nCaused by: com.acme.Bad: no \
         stock\n\t... 9 more\n"
    );
    let record = record("error.orders.billing")
        .with("x-original-topic", "orders")
        .with("x-original-partition", 3_i32.to_be_bytes())
        .with("x-original-offset", 41_i64.to_be_bytes())
        .with("x-exception-fqcn", "org.springframework.core.retry.RetryException")
        .with("x-exception-stacktrace", trace);
    assert_eq!(read(&record).failure().unwrap().error_type, "com.acme.Bad");
}

#[test]
fn g8_a_producers_header_of_one_of_the_names_is_given_back() {
    let mut record = dead("x");
    record.headers = [header("x-original-topic", Some(b"mine"))]
        .into_iter()
        .chain(record.headers.iter().cloned())
        .collect();
    let letter = read(&record);
    assert_eq!(letter.id, id("orders", 3, 41, Some(BORN), "billing"));
    let names: Vec<_> = letter.message.headers().iter().map(|it| &it.name[..]).collect();
    assert_eq!(names, [&b"x-original-topic"[..], b"traceparent"]);
    assert_eq!(letter.message.headers().get("x-original-topic"), Some(&b"mine"[..]));
    assert!(!letter.attributes.contains_key("x-original-topic"));
}

#[test]
fn dumps_of_messages_divide_no_group() {
    let group = |offset: u32| {
        let text = format!(
            "error occurred, failedMessage=GenericMessage [payload=byte[5], headers={{kafka_offset={offset}, \
             list=[{{a=1}}]}}]; nested"
        );
        read(&dead(&text)).fingerprint
    };
    assert_eq!(group(1), group(77));
}
