//! Whoever asks for the next message may go away at any time, as a consumer does that asks only for what is at hand.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::{DeliveredFrom, Delivery, Disposition, RetryQueue, Settle, Source, Timestamp};
use dlq_nats::{DlqStream, NatsSettle, NatsSink, NatsSource, NatsTransport};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, STREAM, Server, available, billing};
use crate::retry_queue::delayed_retry;

/// Far longer than anything here takes: what was lost comes too late.
const LEASE: Duration = Duration::from_secs(600);
const SOON: Duration = PATIENCE;
const MOST: usize = 65_536;

/// Runs it on the only worker: no answer of a server comes while something is polled.
async fn alone(test: impl Future<Output = ()> + Send + 'static) {
    if available() {
        JoinSet::from_iter([test]).join_all().await;
    }
}

fn patient() -> NatsTransport {
    billing().lease(LEASE)
}

/// Asks again and again at this pace, and never waits for the answer.
async fn at_hand(source: &mut NatsSource, pace: Duration) -> (Delivery, NatsSettle) {
    let asked = async {
        loop {
            match source.next().now_or_never() {
                Some(next) => return next.unwrap().expect("the source has not ended"),
                None => tokio::time::sleep(pace).await,
            }
        }
    };
    timeout(SOON, asked).await.expect("what was begun goes on")
}

async fn soon(source: &mut NatsSource) -> (Delivery, NatsSettle) {
    let next = timeout(SOON, source.next()).await.expect("it comes before its lease ends");
    next.unwrap().expect("the source has not ended")
}

/// A server on which retry records of messages of these sizes are due, and the source that is going to get them.
async fn due(
    consumer: NatsTransport,
    sizes: impl IntoIterator<Item = usize>,
) -> (Server, NatsSource) {
    let server = Server::with("max_payload", &MOST.to_string()).await;
    let queue = consumer.retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&consumer).await;
    let mut settles = Vec::new();
    for size in sizes {
        let sent = server.context.publish("orders.created", vec![b'1'; size].into()).await;
        sent.unwrap().await.unwrap();
        let (delivery, settle) = soon(&mut source).await;
        assert_eq!(delivery.delivered_from(), DeliveredFrom::Main);
        settles.push((delayed_retry(delivery, "billing", Timestamp::EPOCH), settle));
    }
    for (delayed_retry, settle) in settles {
        queue.enqueue(delayed_retry).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    (server, source)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_records_that_are_due_together_are_handled_at_once() {
    alone(async {
        let (server, source) = due(patient(), [MOST - 20; 3]).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        let stack = handler("billing", move |delivery: Delivery| {
            seeing.lock().unwrap().push((delivery.delivered_from(), delivery.deliveries()));
            async { Ok::<(), std::io::Error>(()) }
        });
        let stack = stack.build().unwrap();
        let queue = patient().retry_queue(&server.client).await.unwrap();
        let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
        let consumer = Consumer::builder(source).handler(stack).retry_queue(queue).sink(sink);
        let consumer = consumer.build().unwrap();
        let settled = timeout(SOON, async {
            while server.count("DLQ_RETRY").await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let _ = consumer.run(settled.map(drop)).await;
        assert_eq!(*seen.lock().unwrap(), [(DeliveredFrom::Retry, 1); 3]);
        assert_eq!(server.count("DLQ_RETRY").await, 0, "each is settled, and its parts are gone");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_asked_for_and_dropped_at_once_comes_once_all_the_same() {
    alone(async {
        let sizes = [MOST - 20, 1, MOST - 30, MOST - 40, 2];
        let (server, mut source) = due(patient(), sizes).await;
        server.publish(100..105).await;
        let mut records = Vec::new();
        let mut messages = Vec::new();
        while records.len() + messages.len() < 10 {
            let (delivery, settle) = at_hand(&mut source, Duration::from_millis(2)).await;
            assert_eq!(delivery.deliveries(), 1);
            let size = delivery.message().payload().unwrap().len();
            let of = if delivery.delivered_from() == DeliveredFrom::Main {
                &mut messages
            } else {
                &mut records
            };
            of.push(size);
            settle.settle(Disposition::Succeeded).await.unwrap();
        }
        assert_eq!((records, messages), (sizes.to_vec(), vec![3; 5]));
        assert_eq!(server.count("DLQ_RETRY").await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deleted_consumer_is_made_again_for_one_who_never_waits() {
    alone(async {
        let server = Server::start().await;
        let mut source = server.source(&patient()).await;
        assert!(source.next().now_or_never().is_none(), "nothing was published");
        let stream = server.context.get_stream(STREAM).await.unwrap();
        stream.delete_consumer("billing").await.unwrap();
        server.publish([1]).await;
        let (delivery, settle) = at_hand(&mut source, Duration::from_millis(2)).await;
        assert_eq!(delivery.message().payload().unwrap(), "1");
        settle.settle(Disposition::Succeeded).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_record_that_is_being_read_is_given_back_at_the_end() {
    alone(async {
        let (server, mut source) = due(patient(), [MOST - 20, MOST - 30]).await;
        let (first, settle) = soon(&mut source).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
        // The other came with it or comes soon: until it is taken, nothing is lost by going away.
        let stream = server.context.get_stream("DLQ_RETRY").await.unwrap();
        let handed_out = async {
            while stream.consumer_info("billing").await.unwrap().num_ack_pending == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, handed_out).await.expect("the server hands it out");
        assert!(source.next().now_or_never().is_none(), "its parts are elsewhere");
        source.close().await;
        let mut other = server.source(&patient()).await;
        let (second, settle) = soon(&mut other).await;
        assert_eq!((second.delivered_from(), second.deliveries()), (DeliveredFrom::Retry, 2));
        assert_ne!(second.message().payload(), first.message().payload());
        settle.settle(Disposition::Succeeded).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_record_that_takes_longer_than_its_lease_to_read_is_kept() {
    alone(async {
        // So long that who asks is late by less than that on a slow machine.
        const LEASE: Duration = Duration::from_secs(9);
        // Three parts, each of which takes as long as whoever asks stays away.
        let (server, mut source) = due(billing().lease(LEASE), [MOST - 20]).await;
        let begun = Instant::now();
        let (record, settle) = at_hand(&mut source, Duration::from_millis(3_300)).await;
        assert!(begun.elapsed() > LEASE, "it took {:?}", begun.elapsed());
        assert_eq!((record.delivered_from(), record.deliveries()), (DeliveredFrom::Retry, 1));
        settle.settle(Disposition::Succeeded).await.unwrap();
        assert_eq!(server.count("DLQ_RETRY").await, 0);
        assert!(timeout(LEASE, source.next()).await.is_err(), "once");
    })
    .await;
}
