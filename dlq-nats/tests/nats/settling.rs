//! What the server knows when a settlement has returned.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::{Disposition, Settle, Source};
use tokio::time::{sleep, timeout};

use crate::fixture::{LEASE, PATIENCE, STREAM, Server, available, billing, next, number};
use crate::letters::users;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_is_confirmed_before_it_returns() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=50).await;
    let mut source = server.source(&billing()).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    for settled in 1..=50 {
        let (delivery, settle) = next(&mut source).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
        assert_eq!(number(&delivery), settled);
        let info = stream.consumer_info("billing").await.unwrap();
        assert_eq!(info.ack_floor.stream_sequence, u64::from(settled), "the server has it");
    }
}

/// Until one is confirmed all are, and closing waits until the server has worked through the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_that_nobody_awaits_arrive_before_the_source_is_closed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=500).await;
    let mut source = server.source(&billing().lease(PATIENCE).prefetch(500)).await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let (_, mut first) = next(&mut source).await;
    assert!(first.settle_now(&Disposition::Succeeded).is_none(), "none was confirmed yet");
    first.settle(Disposition::Succeeded).await.unwrap();
    let mut posted = 0;
    for _ in 2..500 {
        let (_, mut settle) = next(&mut source).await;
        let later = Disposition::Deferred { after: Duration::ZERO };
        assert!(settle.settle_now(&later).is_none());
        match settle.settle_now(&Disposition::Duplicate) {
            Some(settled) => {
                settled.unwrap();
                posted += 1;
            }
            // One in a second is confirmed.
            None => settle.settle(Disposition::Duplicate).await.unwrap(),
        }
    }
    assert!(posted > 0);
    let (_, mut last) = next(&mut source).await;
    source.close().await;
    let floor = async || stream.consumer_info("billing").await.unwrap().ack_floor.stream_sequence;
    assert_eq!(floor().await, 499);
    assert!(last.settle_now(&Disposition::Succeeded).is_none(), "the source is closed");
    last.settle(Disposition::Succeeded).await.unwrap();
    assert_eq!(floor().await, 500);
}

/// Else its messages would be handled again and again, and nobody would hear why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_acknowledge_is_told() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"$JS.ACK.>\", \"$SYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    server.publish(1..=3).await;
    let mut source = billing().source(&server.connect("app", "app").await).await.unwrap();
    for _ in 0..2 {
        let (_, mut settle) = next(&mut source).await;
        assert!(settle.settle_now(&Disposition::Succeeded).is_none());
        settle.settle(Disposition::Succeeded).await.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_nobody_hears_is_an_error() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    let (_, mut settle) = next(&mut source).await;
    tokio::task::block_in_place(|| server.running().kill().unwrap());
    assert!(settle.extend().await.is_err());
    let settled = timeout(PATIENCE, settle.settle(Disposition::Succeeded)).await.unwrap();
    assert!(settled.is_err(), "a dead server has confirmed");
    server.kill_and_restart().await;
    // What the client had not sent it sends now, so that the first message may be settled after all.
    server.publish([2]).await;
    let mut last = 0;
    while last != 2 {
        let (delivery, settle) = next(&mut source).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
        last = number(&delivery);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_outlasts_a_restart() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    let consumer = billing().lease(Duration::from_secs(60));
    let mut source = server.source(&consumer).await;
    let (_, settle) = next(&mut source).await;
    tokio::task::block_in_place(|| server.running().kill().unwrap());
    let settling = timeout(PATIENCE, settle.settle(Disposition::Succeeded));
    let (settled, ()) = tokio::join!(settling, server.kill_and_restart());
    settled.unwrap().unwrap();
    let stream = server.context.get_stream(STREAM).await.unwrap();
    assert_eq!(stream.consumer_info("billing").await.unwrap().num_ack_pending, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_counted_and_attempts_are_not() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    let mut source = server.source(&billing()).await;
    for deliveries in 1..=3 {
        let (delivery, settle) = next(&mut source).await;
        assert_eq!((delivery.deliveries(), delivery.attempt()), (deliveries, 1));
        settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
    }
    // Handed out and never settled: another process gets it, and is told.
    let (delivery, settle) = next(&mut source).await;
    assert_eq!(delivery.deliveries(), 4);
    drop((settle, source));
    let mut source = server.source(&billing()).await;
    let (delivery, settle) = next(&mut source).await;
    assert_eq!((delivery.deliveries(), delivery.attempt()), (5, 1));
    settle.settle(Disposition::Succeeded).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_fetched_and_not_asked_for_in_time_is_not_handed_out_stale() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=4).await;
    let mut source = server.source(&billing()).await;
    let (_, settle) = next(&mut source).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    // The rest waits in this process past its lease, as in an outage.
    let mut other = server.source(&billing()).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let (delivery, settle) = next(&mut other).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
        seen.push(number(&delivery));
    }
    let stale = timeout(LEASE, source.next()).await;
    let stale = stale.map(|next| next.unwrap().map(|(delivery, _)| number(&delivery)));
    assert!(stale.is_err(), "handed out although another has handled it: {stale:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_to_be_kept_and_nobody_heard_is_not_handed_out_stale() {
    if !available() {
        return;
    }
    // Whatever this process says of its messages is dropped, as by a consumer without a leader.
    let may = "{ publish: { deny: [\"$JS.ACK.>\", \"$SYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    server.publish(1..=4).await;
    let mut source = billing().source(&server.connect("app", "app").await).await.unwrap();
    drop(next(&mut source).await);
    let keeping = async {
        loop {
            source.keep_alive().await;
            sleep(LEASE / 16).await;
        }
    };
    let mut other = server.source(&billing()).await;
    let handling = async {
        let mut seen = BTreeSet::new();
        while seen.len() < 4 {
            let (delivery, settle) = next(&mut other).await;
            settle.settle(Disposition::Succeeded).await.unwrap();
            seen.insert(number(&delivery));
        }
    };
    tokio::select! {
        () = handling => {}
        () = keeping => unreachable!("it never ends"),
    }
    let stale = timeout(LEASE, source.next()).await;
    let stale = stale.map(|next| next.unwrap().map(|(delivery, _)| number(&delivery)));
    assert!(stale.is_err(), "handed out although another has handled it: {stale:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_behind_slow_handlers_keeps_its_lease_and_comes_once() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=4).await;
    // Its renewals have seconds to arrive.
    let lease = LEASE * 4;
    let consumer = billing().lease(lease).prefetch(4);
    let mut source = server.source(&consumer).await;
    for wanted in 1..=4 {
        let (delivery, settle) = next(&mut source).await;
        assert_eq!((number(&delivery), delivery.deliveries()), (wanted, 1));
        // A handler that takes longer than a quarter of the lease.
        sleep(lease / 3).await;
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    let again = timeout(lease * 3 / 2, source.next()).await;
    assert!(again.is_err(), "each came once");
}
