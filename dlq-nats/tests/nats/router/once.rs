//! A message that is gone when an ear hears of it, and may have its letter.

use async_nats::jetstream::stream;
use dlq_core::{
    Clock as _, Disposition, Message, Origin, Position, Settle as _, Sink as _, SystemClock,
    Timestamp,
};
use dlq_nats::{DlqStream, NatsSink, NatsTransport};
use dlq_testkit::fixtures::letter_of;
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::{Letter, Routing, SECOND, given_up, jobs, theirs};
use crate::fixture::{PATIENCE, STREAM, Server, available, next};

/// Says of a message that is nowhere that it was terminated.
pub(super) async fn terminate(server: &Server, told: Timestamp) {
    let advisory = serde_json::json!({
        "type": "io.nats.jetstream.advisory.v1.terminated", "timestamp": told.to_string(),
        "stream": "JOBS", "consumer": "theirs", "stream_seq": 7, "deliveries": 1,
    });
    let subject = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.JOBS.theirs";
    server.client.publish(subject, advisory.to_string().into()).await.unwrap();
    server.client.flush().await.unwrap();
}

/// Waits until routers have done with so many advisories.
pub(super) async fn settled(server: &Server, advisories: u64) {
    let kept: stream::Stream = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    let settled = async {
        while kept.consumer_info("dlq-router").await.unwrap().ack_floor.stream_sequence < advisories
        {
            sleep(SECOND / 50).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the advisories are acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_is_heard_again_when_the_message_is_gone_has_its_letter() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = given_up(&server).await;
    let router = Routing::start(&server).await;
    server.context.publish("jobs.a", "slow".into()).await.unwrap().await.unwrap();
    let mut batch = theirs.fetch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
    let run = timeout(PATIENCE, batch.next()).await.unwrap().unwrap().unwrap();
    Letter::until(&server, 1).await;
    router.stop().await;
    // The slow worker is done, and of the router nobody knows how far it was.
    run.double_ack().await.unwrap();
    assert_eq!(server.count("JOBS").await, 0);
    let kept = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    kept.delete_consumer("dlq-router").await.unwrap();
    let router = Routing::start(&server).await;
    settled(&server, 1).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (0, 0), "{report}");
    assert_eq!(report.known, 1, "{report}");
    assert_eq!(server.count("DLQ").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_letter_that_another_router_is_writing_is_waited_for() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    jobs(&server, theirs(1)).await;
    let router = Routing::start(&server).await;
    let mut read = server.client.subscribe("$JS.API.STREAM.MSG.GET.JOBS").await.unwrap();
    server.client.flush().await.unwrap();
    let told = SystemClock.now();
    terminate(&server, told).await;
    timeout(PATIENCE, read.next()).await.expect("the router looks for the message").unwrap();
    // The other one has read it in time.
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

/// The server knows consumers by their durables, in whose names no dot may stand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_consumer_of_ours_is_called_as_it_calls_itself() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let router = Routing::start(&server).await;
    let consumer = NatsTransport::new(STREAM).name("shop.billing").without_retries();
    let mut source = server.source(&consumer).await;
    server.publish([1]).await;
    let (delivery, settle) = next(&mut source).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_message(1).await.unwrap();
    // Who has it in flight says of what it died.
    let mut letter = letter_of(delivery.message().clone(), 1);
    letter.id = delivery.death("shop.billing").letter;
    letter.origin = delivery.origin().clone();
    letter.consumer = "shop.billing".to_owned();
    let kept = server.context.get_stream("DLQ_ADVISORY").await.unwrap();
    let told = async {
        while kept.get_info().await.unwrap().state.messages == 0 {
            sleep(SECOND / 50).await;
        }
    };
    timeout(PATIENCE, told).await.expect("the server tells");
    letter.died_at = SystemClock.now();
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter]).await.unwrap();
    settle.settle(Disposition::Succeeded).await.unwrap();
    settled(&server, 1).await;
    let report = router.stop().await;
    assert!(report.routed == 0 && report.known > 0, "{report}");
    assert_eq!(server.count("DLQ").await, 1);
}

/// It may be the only one that has heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_router_that_ends_forgets_nothing_that_it_waits_with() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    jobs(&server, theirs(1)).await;
    let router = Routing::start(&server).await;
    let mut read = server.client.subscribe("$JS.API.STREAM.MSG.GET.JOBS").await.unwrap();
    server.client.flush().await.unwrap();
    server.context.delete_stream("DLQ_ADVISORY").await.unwrap();
    // Of what is said before its plain ear listens it has heard nothing, now that the durable one is gone.
    let looked = async {
        loop {
            terminate(&server, SystemClock.now()).await;
            if timeout(PATIENCE / 6, read.next()).await.is_ok() {
                break;
            }
        }
    };
    timeout(PATIENCE, looked).await.expect("the router looks for the message");
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (1, 1), "{report}");
    assert_eq!(server.count("DLQ").await, 1);
}
