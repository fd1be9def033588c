//! Pending entries: what is found again, what is lost by others and told, and what is never done in silence.

use std::time::Duration;

use dlq_core::{Disposition, Settle, Source};
use metrics_util::debugging::DebuggingRecorder;

use crate::fixture::{
    LEASE, PATIENCE, Server, available, billing, eventually, handle, next, next_error, number,
};

/// A read is answered while its connection is cut: the message is pending on us and was seen by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_lost_read_is_found_again_and_not_counted() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    // The lease is longer than the test: only looking finds it.
    let mut source = billing().lease(PATIENCE * 10).source(&server.client).await.unwrap();
    server.publish([1]).await;
    assert_eq!(number(&handle(&mut source).await), 1);
    let redis::Value::Array(consumers) = server.run("XINFO CONSUMERS orders billing").await else {
        panic!()
    };
    let consumer: std::collections::HashMap<String, redis::Value> =
        redis::from_redis_value(consumers[0].clone()).unwrap();
    let name: String = redis::from_redis_value(consumer["name"].clone()).unwrap();
    // What the server does for a read whose client is gone before it hears.
    let mut raw = server.raw().await;
    for number in [2, 3] {
        let mut lost = redis::pipe();
        lost.atomic().cmd("XADD").arg("orders").arg("*").arg("d").arg(number);
        lost.cmd("XREADGROUP")
            .arg("GROUP")
            .arg("billing")
            .arg(&name)
            .arg("STREAMS")
            .arg("orders")
            .arg(">");
        lost.query_async::<redis::Value>(&mut raw).await.unwrap();
    }
    assert_eq!(server.pending().await, 2);
    let (delivery, ()) = tokio::join!(next(&mut source), async {
        server.run("CLIENT KILL TYPE normal SKIPME yes").await;
    });
    let (first, settle) = delivery;
    settle.settle(Disposition::Succeeded).await.unwrap();
    let second = handle(&mut source).await;
    assert_eq!([number(&first), number(&second)], [2, 3]);
    assert_eq!([first.deliveries(), second.deliveries()], [1, 1]);
    assert_eq!(server.pending().await, 0);
}

/// A message that was taken over is pending on us, too, and is not taken for one of a lost read: it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g10_a_message_that_was_taken_over_does_not_run_twice_when_the_connection_breaks() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    for command in [
        "XGROUP CREATE orders billing 0 MKSTREAM",
        "XADD orders 5-0 d 1",
        "XREADGROUP GROUP billing dead STREAMS orders >",
        "XCLAIM orders billing dead 0 5-0 IDLE 100000000 JUSTID",
    ] {
        server.run(command).await;
    }
    let mut source = billing().lease(PATIENCE * 10).source(&server.client).await.unwrap();
    let (first, settle) = next(&mut source).await;
    assert_eq!((number(&first), first.deliveries()), (1, 2));
    let ((second, _), ()) = tokio::join!(next(&mut source), async {
        server.run("CLIENT KILL TYPE normal SKIPME yes").await;
        server.run("XADD orders * d 2").await;
    });
    assert_eq!(number(&second), 2, "the first one still runs");
    settle.settle(Disposition::Succeeded).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_gone_is_told_and_recreated_where_allowed() {
    if !available() {
        return;
    }
    for how in ["XGROUP DESTROY orders billing", "DEL orders", "FLUSHALL"] {
        let server = Server::start().await;
        let mut source = server.source().await;
        server.publish([1]).await;
        assert_eq!(number(&handle(&mut source).await), 1);
        server.run(how).await;
        let error = next_error(&mut source).await;
        assert!(
            error.is_transient()
                && error.to_string().contains("`billing` of stream `orders` is gone"),
            "{error}"
        );
        assert_eq!(server.int("EXISTS nothing").await, 0);
        // Nobody recreates it in silence, and once an operator has, reading goes on.
        server.run("XGROUP CREATE orders billing $ MKSTREAM").await;
        server.publish([2]).await;
        assert_eq!(number(&handle(&mut source).await), 2);

        let mut source =
            billing().name("other").recreate_group(true).source(&server.client).await.unwrap();
        let mut seen = number(&handle(&mut source).await);
        server.run("XGROUP DESTROY orders other").await;
        server.publish([3]).await;
        // At the beginning, so that nothing is skipped.
        while seen != 3 {
            seen = number(&handle(&mut source).await);
        }
        source.close().await;
    }
}

/// A server that is demoted ends a blocked read as one does whose group is gone: nothing that is in flight runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_demoted_still_has_its_group() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = server.source().await;
    server.publish([1]).await;
    let (first, settle) = next(&mut source).await;
    assert_eq!(number(&first), 1);
    // A master that nobody reaches: what is there stays there.
    server.run("REPLICAOF 127.0.0.1 1").await;
    let error = next_error(&mut source).await;
    assert!(error.is_transient() && !error.to_string().contains("is gone"), "{error}");
    server.run("REPLICAOF NO ONE").await;
    server.publish([2]).await;
    assert_eq!(number(&handle(&mut source).await), 2, "the first is in flight still");
    settle.settle(Disposition::Succeeded).await.unwrap();
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_trimmed_while_pending_are_counted_and_cleared() {
    if !available() {
        return;
    }
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _ = recorder.install();
    let mut lost = 0;
    for version in [None, Some("6.2"), Some("valkey-9")] {
        let server = match version {
            None => Server::start().await,
            Some(version) => Server::version(version).await,
        };
        server.publish([1, 2, 3]).await;
        let mut dead = server.source().await;
        let held = next(&mut dead).await;
        eventually("all are pending", || async { server.pending().await == 3 }).await;
        // Dropped and not closed, as a process that dies gives nothing back.
        drop((held, dead));
        server.run("XTRIM orders MAXLEN 1").await;
        let mut source = server.source().await;
        assert_eq!(number(&handle(&mut source).await), 3, "what is left comes again");
        eventually("lost ones are cleared", || async { server.pending().await == 0 }).await;
        lost += 2;
    }
    let counted: u64 = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == dlq_redis::DLQ_REDIS_TRIMMED_TOTAL)
        .map(|(.., value)| match value {
            metrics_util::debugging::DebugValue::Counter(count) => count,
            other => panic!("no counter: {other:?}"),
        })
        .sum();
    assert_eq!(counted, lost);
}

/// A slow handler whose lease is renewed is never handed out twice, with two processes that take over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handler_keeps_its_message_and_what_waits_behind_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish(1..=4).await;
    let mut source = server.source().await;
    let (first, mut settle) = next(&mut source).await;
    // Two processes, since either of them alone could be waiting for its turn when the lease would end.
    let (mut one, mut two) = (server.source().await, server.source().await);
    // Two leases long: without a renewal the message would be handed out in the middle.
    for _ in 0..8 {
        tokio::select! {
            next = one.next() => panic!("it was handed out: {next:?}"),
            next = two.next() => panic!("it was handed out: {next:?}"),
            () = tokio::time::sleep(LEASE / 4) => {}
        }
        settle.extend().await.unwrap();
        source.keep_alive().await;
    }
    settle.settle(Disposition::Succeeded).await.unwrap();
    assert_eq!(number(&first), 1);
    for expected in 2..=4 {
        let delivery = handle(&mut source).await;
        assert_eq!((number(&delivery), delivery.deliveries()), (expected, 1));
    }
}

/// A message that is given back often was not delivered often (G3), and one deferred beyond its lease is not early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_what_is_given_back_does_not_count() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    server.publish([1]).await;
    for _ in 0..3 {
        let mut source = server.source().await;
        let (delivery, settle) = next(&mut source).await;
        assert_eq!(delivery.deliveries(), 1);
        settle.settle(Disposition::Deferred { after: Duration::ZERO }).await.unwrap();
        source.close().await;
    }
    let mut source = server.source().await;
    let (_, settle) = next(&mut source).await;
    let begun = tokio::time::Instant::now();
    // Longer than a lease, which an idle time cannot express, so that the set of deferred entries is used.
    let wait = LEASE * 2;
    settle.settle(Disposition::Deferred { after: wait }).await.unwrap();
    drop(source);
    let mut source = server.source().await;
    let delivery = handle(&mut source).await;
    assert!(begun.elapsed() >= wait, "early, after {:?}", begun.elapsed());
    assert_eq!(delivery.deliveries(), 1);
    assert_eq!(server.int("EXISTS {orders}:later:billing").await, 0, "nothing is left");
}
