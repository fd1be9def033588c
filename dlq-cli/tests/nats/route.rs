//! The event router, beside a consumer of somebody else's.

use std::time::Duration;

use dlq_core::{Filter, Reason};
use dlq_nats::NatsLetters;
use dlq_nats::async_nats::jetstream::consumer::pull;
use dlq_nats::async_nats::jetstream::{AckKind, stream};
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};

use crate::fixture::{Bench, PATIENCE};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_foreign_consumer_gives_up_becomes_a_letter() {
    let Some(bench) = Bench::new("route").await else { return };
    let subjects = vec!["routed.>".to_owned()];
    let config =
        stream::Config { name: "ROUTED".to_owned(), subjects, ..stream::Config::default() };
    let stream = bench.context.create_stream(config).await.unwrap();
    let config = pull::Config {
        durable_name: Some("shipping".to_owned()),
        max_deliver: 2,
        ack_wait: Duration::from_secs(1),
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();

    let name = "DLQ_NEW";
    let from = format!("{}/{name}", bench.host());
    let mut process = {
        let args =
            ["route", "--from", &from, "--stream", "ROUTED", "-o", "json", "--cluster", "eu"];
        let mut command = bench.command(&args);
        command.env("DLQ_ROUTE_SWEEP_EVERY", "250ms").env("DLQ_ROUTE_LEASE", "2s");
        crate::process::Process::start(command)
    };
    process.says("routing what the consumers of ROUTED give up into");
    bench.context.publish("routed.parcel", "42".into()).await.unwrap().await.unwrap();
    let mut messages = consumer.stream().max_messages_per_batch(1).messages().await.unwrap();
    for _ in 0..2 {
        let message = messages.next().await.unwrap().unwrap();
        message.ack_with(AckKind::Nak(None)).await.unwrap();
    }
    drop(messages);
    let letters = NatsLetters::new(&bench.client, dlq_nats::DlqStream::new().with_name(name));
    let found = timeout(PATIENCE, async {
        loop {
            let found = letters.read(&Filter::new()).await.unwrap();
            if !found.is_empty() {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let found = found.await.expect("a letter is written");
    assert_eq!(found[0].letter.reason, Reason::MaxDeliveries);
    assert_eq!(found[0].letter.consumer, "shipping");
    assert_eq!(found[0].letter.origin.cluster(), "eu");
    process.signal("-INT");
    let ran = process.end().ok();
    assert_eq!(ran.json()["routed"], 1, "{}", ran.out);

    let mut process = bench.start(&["route", "--from", &from]);
    process.says("routing what all consumers give up");
    process.signal("-TERM");
    let ran = process.end().ok();
    assert!(ran.out.starts_with("0 letters"), "{}", ran.out);

    let listed = bench.run(&["list", "--from", &from]).ok().out;
    assert!(listed.contains("max_deliveries") && listed.contains("shipping"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_will_not_do_are_named() {
    let Some(bench) = Bench::new("route-bad").await else { return };
    for (variable, value, expected) in [
        ("DLQ_ROUTE_SWEEP_EVERY", "often", "often"),
        ("DLQ_ROUTE_LEASE", "5", "5"),
        ("DLQ_ROUTE_CONSUMERS", "billing", "STREAM/CONSUMER"),
        ("DLQ_ROUTE_REPLICAS", "many", "many"),
    ] {
        let ran =
            tokio::task::block_in_place(|| bench.command(&["route"]).env(variable, value).output());
        let ran = crate::common::Ran::from(ran.unwrap());
        assert_eq!(ran.code, 2, "{variable}: {}", ran.err);
        assert!(ran.err.contains(expected), "{variable}: {}", ran.err);
    }
    let ran = bench.run(&["route", "--sweep-every", "0s"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("sweep_every = 0s"), "{}", ran.err);
}
