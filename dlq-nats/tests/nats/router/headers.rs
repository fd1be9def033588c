//! Headers as foreign producers write them.

use std::sync::atomic::Ordering;

use async_nats::HeaderMap;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::pull;
use dlq_core::{Clock as _, DeadLetter, Filter, SystemClock};
use dlq_nats::{DlqStream, EventRouter, NatsLetters};
use tokio::time::{sleep, timeout};

use super::{Letter, Routing, SECOND, answer, answer_nothing, consumer, theirs};
use crate::fixture::{PATIENCE, STREAM, Server, available, read};
use crate::raw::Raw;

async fn letters(server: &Server) -> Vec<DeadLetter> {
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let read = read(&letters, &Filter::new()).await.unwrap();
    read.into_iter().map(|stored| stored.letter).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_all_headers_of_one_name_are_in_the_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    let theirs = consumer(&server, STREAM, 1).await;
    let mut headers = HeaderMap::new();
    headers.append("via", "a");
    headers.append("trace", "t");
    headers.append("via", "b");
    let sent = server.context.publish_with_headers("orders.a", headers, "1".into()).await;
    sent.unwrap().await.unwrap();
    answer(&theirs, 1, |_| AckKind::Nak(None)).await;
    answer_nothing(&theirs).await;
    Letter::until(&server, 1).await;
    router.stop().await;
    let letters = letters(&server).await;
    let headers = letters[0].message.headers();
    assert_eq!(headers.get_all("via").collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(headers.get_str("trace"), Some("t"));
}

/// The client reads none of these messages, neither from a consumer nor by their sequence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_headers_that_no_client_would_write_keep_no_message_from_its_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    let config = pull::Config { ack_wait: SECOND, ..theirs(1) };
    let _ = server.context.create_consumer_on_stream(config, STREAM).await.unwrap();
    let mut raw = Raw::connect(&server);
    let all: [(&[u8], &str, &[u8]); 4] = [
        (b"text: caf\xe9\r\n", "text", b"caf\xe9"),
        (b"error: KeyError: 7\nline 3\r\n", "error", b"KeyError: 7\nline 3"),
        (b"progress: 50 %\r100 %\r\n", "progress", b"50 %\r100 %"),
        (b"my name: x\r\n", "my name", b"x"),
    ];
    for (number, (lines, ..)) in all.iter().enumerate() {
        let lines = [b"trace: t\r\n", *lines].concat();
        raw.publish("orders.a", &lines, &number.to_string());
        raw.take(STREAM, "theirs");
    }
    Letter::until(&server, all.len() as u64).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.given_up), (all.len() as u64, 0), "{report}");
    let letters = letters(&server).await;
    for (number, (_, name, value)) in all.into_iter().enumerate() {
        let payload = number.to_string();
        let is = |letter: &&DeadLetter| letter.message.payload().is_some_and(|is| *is == payload);
        let headers = letters.iter().find(is).expect("it has a letter").message.headers();
        assert_eq!((headers.get(name), headers.get_str("trace")), (Some(value), Some("t")));
    }
}

/// An advisory that the client cannot read can be written by anybody who may publish to its subject. Put off, it is not
/// handed out to a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_an_advisory_that_breaks_the_connection_is_put_off_without_another_break() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    // A look for such messages is far off when the advisory is due again.
    let router = || Routing::with(EventRouter::builder(server.client.clone()).lease(SECOND * 40));
    router().await.kill().await;
    let said = SystemClock.now().before(SECOND * 7).to_string();
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.max_deliver", "timestamp": said, "stream": STREAM, "consumer": "theirs",
        "stream_seq": 99, "deliveries": 1
    });
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.theirs");
    let mut raw = Raw::connect(&server);
    raw.publish(&subject, b"text: caf\xe9\r\n", &advisory.to_string());
    // The router that was killed may have asked for it.
    raw.take("DLQ_ADVISORY", "dlq-router");
    let router = router().await;
    // It waits for a letter of another router, since its message is gone.
    Letter::until(&server, 1).await;
    let durable = async || {
        let advisories = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
        advisories.consumer_info("dlq-router").await.unwrap()
    };
    let settled = async {
        while durable().await.num_ack_pending > 0 {
            sleep(SECOND / 20).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("it is settled");
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload, report.given_up), (1, 1, 0), "{report}");
    assert_eq!(durable().await.num_redelivered, 0, "a client would have got it");
    let connects = server.client.statistics().connects.load(Ordering::Relaxed);
    assert_eq!(connects, 1, "the connection broke");
}
