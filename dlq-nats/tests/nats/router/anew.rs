//! A stream that was deleted and made again: its sequences begin again.

use std::time::Duration;

use async_nats::jetstream::AckKind;
use dlq_core::{Clock as _, Filter, Message, Origin, Position, Sink as _, SystemClock, Timestamp};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::letter_of;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::once::{settled, terminate};
use super::{Letter, Routing, SECOND, answer, jobs, theirs};
use crate::fixture::{PATIENCE, STREAM, Server, available, read};

const HOUR: Duration = Duration::from_secs(3600);

/// Says of the first message of a stream that it was given up.
async fn exhausted(server: &Server, told: Timestamp) {
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.theirs");
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.max_deliver", "timestamp": told.to_string(),
        "stream": STREAM, "consumer": "theirs", "stream_seq": 1, "deliveries": 1,
    });
    server.client.publish(subject, advisory.to_string().into()).await.unwrap();
    server.client.flush().await.unwrap();
}

async fn letters(server: &Server) -> usize {
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    read(&letters, &Filter::new()).await.unwrap().len()
}

/// They were said of the stream that was there before, and before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_what_came_after_a_death_is_not_the_message_that_died() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    server.publish([1]).await;
    let now = SystemClock.now();
    exhausted(&server, now.before(HOUR)).await;
    Letter::until(&server, 1).await;
    exhausted(&server, now.before(HOUR * 2)).await;
    Letter::until(&server, 2).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (2, 2), "{report}");
    assert_eq!(letters(&server).await, 2);
    for stored in server.stored("DLQ").await {
        assert!(stored.payload.is_empty(), "nobody gave this one up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_what_was_lost_in_each_of_two_streams_of_one_name_has_a_letter_of_its_own() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    for deaths in 1..=2 {
        let consumer = jobs(&server, theirs(3)).await;
        server.context.publish("jobs.a", "gone".into()).await.unwrap().await.unwrap();
        answer(&consumer, 1, |_| AckKind::Term).await;
        settled(&server, deaths).await;
        server.context.delete_stream("JOBS").await.unwrap();
    }
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (2, 2), "{report}");
    assert_eq!(letters(&server).await, 2);
}

/// How young a death is says whether it is waited, and not who has heard of it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_a_router_gave_back_young_is_waited_for() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    jobs(&server, theirs(1)).await;
    Routing::start(&server).await.stop().await;
    // By the clock of this machine, which is the server's, too.
    let told = SystemClock.now().after(SECOND * 5);
    terminate(&server, told).await;
    // What was fetched ahead is given back at the end.
    let kept = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    let durable = kept.get_consumer("dlq-router").await.unwrap();
    answer(&durable, 1, |_| AckKind::Nak(None)).await;
    let mut read = server.client.subscribe("$JS.API.STREAM.MSG.GET.JOBS").await.unwrap();
    server.client.flush().await.unwrap();
    let router = Routing::start(&server).await;
    timeout(PATIENCE, read.next()).await.expect("the router looks for the message").unwrap();
    // Another router has read it in time.
    let mut letter = letter_of(Message::new("jobs.a", "read in time"), 7);
    letter.origin = Origin::new("nats", "JOBS", Position::Offset(7));
    letter.consumer = "theirs".to_owned();
    letter.died_at = told;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter]).await.unwrap();
    settled(&server, 1).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (0, 0), "{report}");
    assert_eq!(server.count("DLQ").await, 1, "{report}");
}
