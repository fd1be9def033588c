//! Reading goes on by itself, and nothing is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream;
use dlq_core::{DeliveredFrom, Disposition, RetryQueue, Settle, Source, Timestamp};
use dlq_nats::NatsSource;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::fixture::{LEASE, PATIENCE, STREAM, Server, available, billing, handle, next, number};
use crate::retry_queue::delayed_retry;

/// Handles messages until these were all seen. One that cannot be settled comes again.
async fn handle_all(
    source: &mut NatsSource,
    wanted: impl IntoIterator<Item = u32>,
) -> BTreeSet<u32> {
    let wanted: BTreeSet<u32> = wanted.into_iter().collect();
    let mut seen = BTreeSet::new();
    let all = async {
        while !wanted.is_subset(&seen) {
            let (delivery, settle) = next(source).await;
            let settled = settle.settle(Disposition::Succeeded).await;
            if settled.is_ok() {
                seen.insert(number(&delivery));
            }
        }
    };
    let done = timeout(PATIENCE, all).await;
    assert!(done.is_ok(), "of {wanted:?} only {seen:?} came");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_killed_server_loses_nothing() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    server.publish(1..=20).await;
    for _ in 0..5 {
        let _ = crate::fixture::handle(&mut source).await.unwrap();
    }
    let held = next(&mut source).await;
    server.kill_and_restart().await;
    server.publish(21..=30).await;
    // What was settled in the last moments may come again; what was not settled must.
    let seen = handle_all(&mut source, (6..=30).collect::<Vec<_>>()).await;
    assert!(seen.is_superset(&(6..=30).collect()), "{seen:?}");
    drop(held);
    assert_eq!(server.running().starts(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_waits_hears_of_messages_after_a_restart() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    for round in 1..=3 {
        let reading = async {
            loop {
                let (delivery, settle) = next(&mut source).await;
                // It comes again when nobody has heard that.
                if settle.settle(Disposition::Succeeded).await.is_ok() {
                    break number(&delivery);
                }
            }
        };
        let restarting = async {
            server.kill_and_restart().await;
            server.publish([round]).await;
        };
        let (got, ()) = tokio::join!(reading, restarting);
        assert!(got <= round, "an earlier one may come again when its settlement was forgotten");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_deleted_consumer_is_made_again_and_skips_nothing() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=3).await;
    let mut source = server.source(&billing()).await;
    let seen = handle_all(&mut source, 1..=3).await;
    assert_eq!(seen.len(), 3);
    // A process that is started later knows what was settled before.
    drop(source);
    let mut source = server.source(&billing()).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_consumer("billing").await.unwrap();
    server.publish(4..=6).await;
    let seen = handle_all(&mut source, 4..=6).await;
    assert_eq!(
        seen,
        (4..=6).collect(),
        "what was settled before it was opened does not come again"
    );
}

/// A work queue takes no consumer that begins elsewhere than at its start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_deleted_consumer_of_a_work_queue_is_made_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.context.delete_stream(STREAM).await.unwrap();
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    server.context.create_stream(config).await.unwrap();
    let mut source = server.source(&billing()).await;
    server.publish(1..=3).await;
    let _ = handle_all(&mut source, 1..=3).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_consumer("billing").await.unwrap();
    server.publish(4..=6).await;
    let seen = handle_all(&mut source, 4..=6).await;
    assert_eq!(seen, (4..=6).collect(), "what was settled is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_records_are_heard_when_their_consumer_was_deleted() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let queue = billing().retry_queue(&server.client).await.unwrap();
    let mut source = server.source(&billing()).await;
    for round in 1..=2 {
        server.publish([round]).await;
        let (delivery, settle) = next(&mut source).await;
        assert_eq!(delivery.delivered_from(), DeliveredFrom::Main);
        let stream = server.context.get_stream("DLQ_RETRY").await.unwrap();
        stream.delete_consumer("billing").await.unwrap();
        queue.enqueue(delayed_retry(delivery, "billing", Timestamp::EPOCH)).await.unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
        let record = handle(&mut source).await.unwrap();
        assert_eq!((record.delivered_from(), number(&record)), (DeliveredFrom::Retry, round));
    }
}

/// Weeks may have passed since it was opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_settled_long_before_a_consumer_is_deleted_does_not_come_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    server.publish(1..=3).await;
    let _ = handle_all(&mut source, 1..=3).await;
    // Another look begins only when the one before is known.
    let looks = server.client.subscribe("$JS.API.CONSUMER.INFO.ORDERS.billing").await.unwrap();
    let looked = async {
        tokio::select! {
            next = source.next() => panic!("nothing was published: {next:?}"),
            looks = looks.take(3).count() => assert_eq!(looks, 3),
        }
    };
    timeout(PATIENCE, looked).await.expect("it looks where it stands now and then");
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_consumer("billing").await.unwrap();
    server.publish(4..=6).await;
    let seen = handle_all(&mut source, 4..=6).await;
    assert_eq!(seen, (4..=6).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_deleted_while_somebody_waits_is_noticed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    assert!(timeout(Duration::from_millis(300), source.next()).await.is_err());
    let deleting = async {
        let stream = server.context.get_stream(STREAM).await.unwrap();
        stream.delete_consumer("billing").await.unwrap();
        server.publish(1..=3).await;
    };
    let (seen, ()) = tokio::join!(handle_all(&mut source, 1..=3), deleting);
    assert_eq!(seen.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_made_anew_is_read_from_its_beginning() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=9).await;
    let mut source = server.source(&billing()).await;
    let _ = handle_all(&mut source, 1..=9).await;
    drop(source);
    let mut source = server.source(&billing()).await;
    server.context.delete_stream(STREAM).await.unwrap();
    server.create_stream().await;
    server.publish(11..=12).await;
    let seen = handle_all(&mut source, 11..=12).await;
    assert_eq!(seen, (11..=12).collect());
}

/// The consumer as an operator makes it.
fn theirs(lease: Duration, max_deliver: i64) -> pull::Config {
    pull::Config {
        durable_name: Some("billing".to_owned()),
        filter_subject: "orders.>".to_owned(),
        ack_wait: lease,
        max_deliver,
        ..pull::Config::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_an_operator_changes_do_not_end_it() {
    const LONG: Duration = Duration::from_secs(20);
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    server.publish(1..=3).await;
    let seen = handle_all(&mut source, 1..=3).await;
    assert_eq!(seen.len(), 3);
    // One that would lose messages is not worked with; it is looked at again.
    let stream = server.context.get_stream(STREAM).await.unwrap();
    stream.delete_consumer("billing").await.unwrap();
    stream.create_consumer(theirs(LONG, 3)).await.unwrap();
    server.publish(4..=6).await;
    for _ in 0..2 {
        let error = timeout(PATIENCE, source.next()).await.expect("it says so").unwrap_err();
        assert!(
            error.is_transient() && error.to_string().contains("`max_deliver` is 3"),
            "{error}"
        );
    }
    // Another lease does no harm, and is the one that counts.
    stream.update_consumer(theirs(LONG, -1)).await.unwrap();
    let (delivery, settle) = next(&mut source).await;
    assert_eq!(settle.lease(), Some(LONG));
    settle.settle(Disposition::Succeeded).await.unwrap();
    let missing = (4..=6).filter(|n| *n != number(&delivery)).collect::<Vec<_>>();
    let _ = handle_all(&mut source, missing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_or_a_limit_that_an_operator_sets_is_seen_when_a_message_comes_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source(&billing()).await;
    server.publish([1]).await;
    // Nobody says a word for it, so that it comes again.
    drop(next(&mut source).await);
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let (again, _) = next(&mut source).await;
    assert_eq!(again.deliveries(), 2);
    stream.update_consumer(theirs(LEASE / 2, -1)).await.unwrap();
    let shorter = async {
        loop {
            let (_, settle) = next(&mut source).await;
            if settle.lease() == Some(LEASE / 2) {
                return;
            }
        }
    };
    timeout(PATIENCE, shorter).await.expect("the lease is seen");
    stream.update_consumer(theirs(LEASE / 2, 100)).await.unwrap();
    let limited = async {
        loop {
            if let Err(error) = source.next().await {
                return error;
            }
        }
    };
    let error = timeout(PATIENCE, limited).await.expect("the limit is seen");
    assert!(error.is_transient() && error.to_string().contains("`max_deliver` is 100"), "{error}");
}
