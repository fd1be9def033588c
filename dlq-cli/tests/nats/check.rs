//! Settings by which messages would be lost.

use std::time::Duration;

use dlq_nats::async_nats;
use dlq_nats::async_nats::jetstream::{consumer::pull, stream};
use dlq_nats::{DlqStream, NatsSink};

use crate::common::dlq;
use crate::fixture::{Bench, server_with};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_wrongly_is_found_and_the_rest_is_fine() {
    let Some(bench) = Bench::with("check", Vec::new()).await else { return };
    let config = stream::Config {
        name: "CHECKED".to_owned(),
        subjects: vec!["checked.>".to_owned()],
        ..stream::Config::default()
    };
    let stream = bench.context.create_stream(config).await.unwrap();
    // It keeps letters for an hour, whoever is asked about.
    for args in [&["check"][..], &["check", "--stream", "CHECKED"]] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
        for expected in ["error: ", "stream `DLQ_check`", "max_age is 1h", "30d"] {
            assert!(ran.out.contains(expected), "{expected} is not in {}", ran.out);
        }
    }
    let mut letters = bench.context.get_stream(&bench.name).await.unwrap();
    let mut kept = letters.info().await.unwrap().config.clone();
    kept.max_age = Duration::from_secs(30 * 24 * 60 * 60);
    bench.context.update_stream(kept).await.unwrap();
    let fine = bench.run(&["check", "--stream", "CHECKED"]);
    assert_eq!(fine.code, 0, "{}{}", fine.out, fine.err);
    assert!(
        fine.out.is_empty() && fine.err.contains("as it should be"),
        "{}{}",
        fine.out,
        fine.err
    );

    let config = pull::Config {
        durable_name: Some("billing".to_owned()),
        max_deliver: 3,
        ack_wait: Duration::from_secs(60),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let ran = bench.run(&["check", "--consumer", "CHECKED/billing"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for expected in ["error: ", "billing", "max_deliver is 3", "wanted: "] {
        assert!(ran.out.contains(expected), "{expected} is not in {}", ran.out);
    }
    let ran = bench.run(&["check", "--consumer", "CHECKED/billing", "-o", "json"]);
    assert_eq!(ran.code, 3);
    let findings = ran.json()["findings"].as_array().unwrap().clone();
    let deliveries = findings.iter().find(|finding| finding["setting"] == "max_deliver");
    assert_eq!(deliveries.unwrap()["found"], "3", "{findings:?}");

    let file = bench.file("deployment.json");
    let letters = serde_json::json!({ "name": bench.name, "prefix": "dlq-check" });
    let deployment = serde_json::json!({
        "letters": letters, "consumers": [{ "stream": "CHECKED", "name": "billing" }],
    });
    std::fs::write(&file, deployment.to_string()).unwrap();
    let ran = bench.run(&["check", "--deployment", &file, "-o", "jsonl"]);
    assert_eq!((ran.code, ran.out.lines().count()), (3, findings.len()), "{}{}", ran.out, ran.err);
    std::fs::write(&file, r#"{"lettters": 1}"#).unwrap();
    for path in [file.as_str(), "/none.json"] {
        let ran = bench.run(&["check", "--deployment", path]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(path), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_not_taken_for_what_is_not_there() {
    const USERS: &str = r#"{ users: [ { user: "guest", password: "guest" }, { user: "bob", password: "s3cret",
        permissions: { publish: { deny: ["$JS.API.STREAM.INFO.DLQ"] } } } ] }"#;
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let client = async_nats::connect(server.url()).await.unwrap();
    let kept = DlqStream::new().max_age(Duration::from_secs(3600));
    NatsSink::open(&client, kept).await.unwrap();
    let bob = format!("nats://bob:s3cret@{}", server.url().trim_start_matches("nats://"));
    let ran = tokio::task::block_in_place(|| dlq(&["check", "--from", &bob]).output());
    let ran = crate::common::Ran::from(ran.unwrap());
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.is_empty() && ran.err.contains("$JS.API.STREAM.INFO.DLQ"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_consumer_here_need_not_see_the_stream_of_retries() {
    const USERS: &str = r#"{ users: [ { user: "guest", password: "guest" }, { user: "bob", password: "s3cret",
        permissions: { publish: { deny: ["$JS.API.STREAM.INFO.DLQ_RETRY"] } } } ] }"#;
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let client = async_nats::connect(server.url()).await.unwrap();
    NatsSink::open(&client, DlqStream::new()).await.unwrap();
    let bob = format!("nats://bob:s3cret@{}", server.url().trim_start_matches("nats://"));
    for (consumer, code) in [(None, 0), (Some("ORDERS/billing"), 1)] {
        let mut args = vec!["check", "--from", &bob];
        args.extend(consumer.iter().flat_map(|consumer| ["--consumer", consumer]));
        let ran = tokio::task::block_in_place(|| dlq(&args).output());
        let ran = crate::common::Ran::from(ran.unwrap());
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        assert_eq!(ran.err.contains("does not permit"), consumer.is_some(), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_is_a_finding() {
    const ACCOUNTS: &str = r#"{
        JS: { jetstream: enabled, users: [ { user: "guest", password: "guest" } ] },
        PLAIN: { users: [ { user: "ana", password: "s3cret" } ] }
    }"#;
    let Some(server) = tokio::task::block_in_place(|| server_with("accounts", ACCOUNTS)) else {
        return;
    };
    let host = server.url().trim_start_matches("nats://").trim_end_matches('/').to_owned();
    let from = format!("nats://ana:s3cret@{host}");
    let ran = tokio::task::block_in_place(|| dlq(&["check", "--from", &from]).output());
    let ran = crate::common::Ran::from(ran.unwrap());
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("jetstream is not available"), "{}", ran.out);
    assert!(!ran.err.contains("s3cret"), "{}", ran.err);
}
