//! The event router, beside a consumer of somebody else's.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::log::Range;
use dlq_core::store::reading::Row;
use dlq_core::{Filter, Origin, Reason};
use dlq_nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use dlq_nats::async_nats::jetstream::{AckKind, stream};
use dlq_nats::{NatsLetters, Reading};
use dlq_services::{Service, or_skip};
use futures_util::StreamExt as _;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::dlq;
use crate::fixture::{Bench, PATIENCE, server_with};
use crate::process::Process;
use crate::scrape::{agree, has, served, until};

/// A consumer that is not ours, of a stream with subjects `STREAM.>`.
async fn shipping(bench: &Bench, stream: &str) -> PullConsumer {
    let subjects = vec![format!("{}.>", stream.to_lowercase())];
    let config = stream::Config { name: stream.to_owned(), subjects, ..stream::Config::default() };
    let stream = bench.context.create_stream(config).await.unwrap();
    let config = pull::Config {
        durable_name: Some("shipping".to_owned()),
        max_deliver: 2,
        // However slow this machine is.
        ack_wait: PATIENCE * 2,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap()
}

/// Does its work as long as it is not dropped: refuses what begins with `bad`, each time.
fn refusing(consumer: PullConsumer) -> JoinSet<()> {
    let mut work = JoinSet::new();
    work.spawn(async move {
        let mut messages = consumer.messages().await.unwrap();
        while let Some(message) = messages.next().await {
            let message = message.unwrap();
            let is_bad = message.payload.starts_with(b"bad");
            let word = if is_bad { AckKind::Nak(None) } else { AckKind::Ack };
            message.ack_with(word).await.unwrap();
        }
    });
    work
}

async fn publish(bench: &Bench, subject: &str, payload: String) {
    let sent = bench.context.publish(subject.to_owned(), payload.into()).await;
    sent.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_foreign_consumer_gives_up_becomes_a_letter() {
    let Some(bench) = Bench::new("route").await else { return };
    let consumer = shipping(&bench, "ROUTED").await;
    let name = "DLQ_NEW";
    let from = format!("{}/{name}", bench.host());
    let mut process = {
        let args =
            ["route", "--from", &from, "--stream", "ROUTED", "-o", "json", "--cluster", "eu"];
        let mut command = bench.command(&args);
        command.env("DLQ_ROUTE_SWEEP_EVERY", "250ms").env("DLQ_ROUTE_LEASE", "2s");
        Process::start(command)
    };
    process.says("routing what the consumers of ROUTED give up into");
    bench.context.publish("routed.parcel", "42".into()).await.unwrap().await.unwrap();
    let mut messages = consumer.stream().max_messages_per_batch(1).messages().await.unwrap();
    for _ in 0..2 {
        let message = messages.next().await.unwrap().unwrap();
        message.ack_with(AckKind::Nak(None)).await.unwrap();
    }
    drop(messages);
    let letters = NatsLetters::new(&bench.client, dlq_nats::DlqStream::new().name(name));
    let found = timeout(PATIENCE, async {
        loop {
            let found = stored(&letters).await;
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

    // The lease is that of its durable consumer.
    let again = ["route", "--from", &from, "--stream", "ROUTED", "--cluster", "eu"];
    let mut process = bench.start(&again);
    process.says("routing what the consumers of ROUTED give up into");
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

#[tokio::test(flavor = "multi_thread")]
async fn what_it_counts_is_served_and_what_it_gave_up_is_its_exit_code() {
    let Some(bench) = Bench::with("counts", Vec::new()).await else { return };
    let _work = refusing(shipping(&bench, "COUNTED").await);
    let metrics = ["--metrics", "127.0.0.1:0"];
    let mut command = bench.command(&[&["route", "--stream", "COUNTED"], &metrics[..]].concat());
    command.env("DLQ_ROUTE_SWEEP_EVERY", "250ms").env("DLQ_ROUTE_LEASE", "2s");
    let (mut process, address) = served(command);
    process.says("routing what the consumers of COUNTED give up into");
    publish(&bench, "counted.parcel", "bad".to_owned()).await;
    let names = ["messages_in_dlq_total", "dlq_router_events_total"];
    tokio::task::block_in_place(|| {
        let lines = [
            "messages_in_dlq_total{topic=\"counted.parcel\",class=\"transient\"} 1",
            "dlq_router_events_total{event=\"routed\"} 1",
        ];
        agree(&until(&address, "/metrics", has(&lines)), &names);
        until(&address, "/health", |page| page.starts_with("HTTP/1.1 200"));
    });
    // The stream of letters takes no more.
    let mut config =
        bench.context.get_stream(&bench.name).await.unwrap().cached_info().config.clone();
    config.max_message_size = 1;
    bench.context.update_stream(config).await.unwrap();
    publish(&bench, "counted.parcel", "bad too".to_owned()).await;
    tokio::task::block_in_place(|| {
        let given_up = "dlq_router_events_total{event=\"given_up\"}";
        until(&address, "/metrics", |page| page.contains(given_up));
    });
    // It does not wait for what cannot be written.
    process.signal("-TERM");
    let ran = process.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.starts_with("1 letters"), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_killed_again_and_again_it_writes_one_letter_of_each_exhausted_message() {
    const KILLS: u64 = 8;
    const EACH: u64 = 60;
    let Some(bench) = Bench::with("killed", Vec::new()).await else { return };
    let _work = refusing(shipping(&bench, "KILLED").await);
    let start = || {
        let mut command = bench.command(&["route", "--stream", "KILLED"]);
        command.env("DLQ_ROUTE_SWEEP_EVERY", "100ms").env("DLQ_ROUTE_LEASE", "1s");
        let mut process = Process::start(command);
        process.says("routing what the consumers of KILLED give up into");
        process
    };
    let count = async || {
        let stream = bench.context.get_stream(&bench.name).await.unwrap();
        stream.cached_info().state.messages
    };
    let until = async |letters: u64| {
        let enough = async {
            while count().await < letters {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = timeout(PATIENCE, enough).await;
        assert!(waited.is_ok(), "{} letters, expected {letters}", count().await);
    };
    let (mut router, mut bad, mut written) = (start(), BTreeSet::new(), Vec::new());
    for round in 0..KILLS {
        // At another place each time, with some of it in flight.
        let before = count().await;
        for n in 0..EACH {
            let is_bad = n % 4 > 0;
            let payload = format!("{} {round} {n}", if is_bad { "bad" } else { "good" });
            publish(&bench, "killed.parcel", payload.clone()).await;
            bad.extend(is_bad.then_some(payload));
        }
        until(before + 1 + round * 5).await;
        router.kill();
        written.push(count().await);
        router = start();
    }
    until(bad.len() as u64).await;
    router.signal("-TERM");
    let ran = router.end().ok();
    let letters = NatsLetters::new(&bench.client, bench.stream.clone());
    let found = stored(&letters).await;
    let payload = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let found: BTreeSet<_> =
        found.iter().map(|found| payload(found.letter.message.payload().unwrap())).collect();
    assert_eq!(found, bad, "{}", ran.out);
    assert_eq!(count().await, bad.len() as u64, "no letter twice: {}", ran.out);
    println!("killed {KILLS} times, at {written:?} of {} letters; {}", bad.len(), ran.out);
}

const USERS: &str = r#"{ users: [ { user: "guest", password: "guest" }, { user: "bob", password: "s3cret",
    permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] } } } ] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_read_messages_is_told_at_once() {
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let bob = format!("nats://bob:s3cret@{}/DLQ", server.url().trim_start_matches("nats://"));
    let ran = Process::start(dlq(&["route", "--from", &bob, "--stream", "ORDERS"])).end();
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("`$JS.API.STREAM.MSG.GET.ORDERS`"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_can_do_without_may_be_refused() {
    const USERS: &str = r#"{ users: [ { user: "guest", password: "guest" }, { user: "bob", password: "s3cret",
        permissions: { publish: { deny: ["$SYS.REQ.USER.INFO", "$JS.API.INFO", "$JS.API.STREAM.INFO.KV_DLQ_ROUTER"] } } } ] }"#;
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let bob = format!("nats://bob:s3cret@{}/DLQ", server.url().trim_start_matches("nats://"));
    let mut process = Process::start(dlq(&["route", "--from", &bob]));
    process.says("routing what all consumers give up into");
    process.signal("-TERM");
    process.end().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_listens_to_each_server_that_is_named() {
    let started = tokio::task::block_in_place(|| Service::Nats.builder().ours().start_cluster());
    let Ok(cluster) = or_skip(Service::Nats, started) else { return };
    let hosts: Vec<&str> =
        cluster.nodes().iter().map(|node| node.url().trim_start_matches("nats://")).collect();
    let route = |hosts: &[&str]| {
        let from = format!("nats://{}/DLQ", hosts.join(",").replace('/', ""));
        let mut process = Process::start(dlq(&["route", "--from", &from, "--replicas", "3"]));
        if hosts.len() == 1 {
            process.says("names one server of several");
        }
        process.says("routing what all consumers give up into");
        process
    };
    let process = route(&hosts);
    for node in cluster.nodes() {
        // Nobody else subscribes to them as a client.
        let listens = |page: &str| page.matches("\"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIV").count();
        let page = "/connz?subs=1";
        tokio::task::block_in_place(|| {
            until(&node.monitor().unwrap(), page, |page| listens(page) > 0)
        });
    }
    process.signal("-TERM");
    process.end().ok();
    let process = route(&hosts[..1]);
    process.signal("-TERM");
    process.end().ok();
}

/// The letters of a stream as they stand.
async fn stored(letters: &NatsLetters) -> Vec<Row<Origin>> {
    let reading = Reading::of(letters.clone(), Range::all()).await.unwrap();
    reading.rows(&Filter::new()).await.unwrap()
}
