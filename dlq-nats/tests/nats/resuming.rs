//! Reading goes on by itself, and nothing is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::Source;
use dlq_nats::NatsSource;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, STREAM, Server, available, billing, next, number};

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
            let settled = dlq_core::Settle::settle(settle, dlq_core::Disposition::Succeeded).await;
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
            let (delivery, settle) = next(&mut source).await;
            dlq_core::Settle::settle(settle, dlq_core::Disposition::Succeeded).await.unwrap();
            number(&delivery)
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
