//! The gauges of a stream of dead letters.

use std::time::Duration;

use dlq_core::{Message, Sink as _};
use dlq_nats::async_nats::jetstream::consumer::pull;
use dlq_nats::async_nats::{self, jetstream};
use dlq_nats::{DlqStream, NatsSink};
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::{letter, letter_of};

use crate::common::dlq;
use crate::fixture::Bench;
use crate::scrape::{agree, has, served, until};

const SERVE: [&str; 5] = ["serve", "--metrics", "127.0.0.1:0", "--every", "100ms"];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_stream_is_counted_without_reading_it() {
    let letters: Vec<_> = (0..7).map(letter).collect();
    let Some(bench) = Bench::with("served", letters).await else { return };
    // A part of it stands aside, and is no letter.
    let large = Message::new("orders.large", vec![b'x'; 1024 * 1024]);
    bench.put(vec![letter_of(large, 100)]).await;
    let into = bench.store_url();
    bench.run(&["ingest", "--once", "--into", &into]).ok();
    bench.put((200..203).map(letter).collect()).await;
    // The stream that a consumer reads may be any of the account.
    let stream = bench.context.get_stream(&bench.name).await.unwrap();
    let billing = pull::Config { durable_name: Some("billing".into()), ..Default::default() };
    stream.create_consumer(billing).await.unwrap();
    let named = format!("{}/billing", bench.name);
    let (process, address) = served(bench.command(&[&SERVE[..], &["--consumer", &named]].concat()));
    let last = stream.get_info().await.unwrap().state.last_sequence;
    let letters = "dlq_broker_letters{part=\"orders.created\"} 10".to_owned();
    let lines = [
        letters,
        "dlq_broker_letters{part=\"orders.large\"} 1".to_owned(),
        "dlq_broker_max_age_seconds 3600".to_owned(),
        format!("dlq_nats_last_sequence{{stream=\"{}\"}} {last}", bench.name),
        format!("dlq_nats_pending{{stream=\"{}\",consumer=\"dlq-ingest\"}} 3", bench.name),
        format!("dlq_nats_ack_pending{{stream=\"{}\",consumer=\"dlq-ingest\"}} 0", bench.name),
        format!("dlq_nats_ack_pending{{stream=\"{}\",consumer=\"billing\"}} 0", bench.name),
        "dlq_store_up 1".to_owned(),
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    tokio::task::block_in_place(|| {
        let page = until(&address, "/metrics", has(&lines));
        agree(
            &page,
            &[
                "dlq_store_up",
                "dlq_broker_letters",
                "dlq_broker_oldest_age_seconds",
                "dlq_broker_max_age_seconds",
                "dlq_nats_last_sequence",
                "dlq_nats_pending",
                "dlq_nats_ack_pending",
            ],
        );
        let health = until(&address, "/health", |page| page.starts_with("HTTP/1.1 200"));
        assert!(health.contains("\"healthy\"") && health.contains("\"backlog\":11"), "{health}");
        // It reads by no consumer of its own.
        bench.run(&["ingest", "--once", "--into", &into]).ok();
        let caught_up =
            format!("dlq_nats_pending{{stream=\"{}\",consumer=\"dlq-ingest\"}} 0", bench.name);
        until(&address, "/metrics", has(&[&caught_up]));
    });
    process.signal("-TERM");
    process.end().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_and_comes_back_is_served_again() {
    if or_skip(Service::Nats, ensure_installed(Service::Nats)).is_err() {
        return;
    }
    let mut server =
        tokio::task::block_in_place(|| Service::Nats.builder().ours().start().unwrap());
    let url = format!("{}/DLQ", server.url().trim_end_matches('/'));
    let mut command = dlq(&SERVE);
    command.env("DLQ_FROM", &url);
    let (mut process, address) = served(command);
    tokio::task::block_in_place(|| {
        // It waits for a stream that is not there yet.
        let page = until(&address, "/metrics", has(&["dlq_store_up 0"]));
        assert!(!page.contains("dlq_broker_letters"), "{page}");
        let health = until(&address, "/health", |page| page.starts_with("HTTP/1.1 503"));
        assert!(health.contains("there is no stream `DLQ`"), "{health}");
    });
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = jetstream::new(client);
    let kept = DlqStream::new().max_age(Duration::ZERO);
    let sink = NatsSink::open(&jetstream, kept).await.unwrap();
    sink.put(vec![letter(1), letter(2)]).await.unwrap();
    tokio::task::block_in_place(|| {
        let there = ["dlq_store_up 1", "dlq_broker_letters{part=\"orders.created\"} 2"];
        let page = until(&address, "/metrics", has(&there));
        assert!(!page.contains("dlq_broker_max_age_seconds"), "it is kept for ever: {page}");
        server.stop().unwrap();
        until(&address, "/metrics", has(&["dlq_store_up 0"]));
        process.says("it is not reached");
        server.restart().unwrap();
        until(&address, "/metrics", has(&there));
        process.says("it answers again");
    });
    process.signal("-TERM");
    let ran = process.end().ok();
    // Whether the same connection comes back or another one is made depends on how long the server was away.
    assert!(ran.err.contains("the connection to the server is lost"), "{}", ran.err);
}
