//! Acknowledgements that nobody awaits: bounded, said again where the server did not hear them, and over when the source closes.

use dlq_core::{Disposition, History, Settle, Source, Timestamp};
use dlq_testkit::fixtures::letter;

use crate::fixture::{LEASE, PATIENCE, Server, available, billing, eventually, next};

/// Ends whose acknowledgement stands for something that has to be durable first, or that give the message back.
fn awaited() -> [Disposition; 3] {
    let after = std::time::Duration::ZERO;
    let (due, history) = (Timestamp::EPOCH, History::new());
    [
        Disposition::Dead(Box::new(letter(1))),
        Disposition::DelayedRetry { due, history, attempts: 1 },
        Disposition::Deferred { after },
    ]
}

/// As many as may be open.
const POSTED: usize = 1_024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_as_may_be_open_are_sent() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let transport = billing().prefetch(2 * POSTED).lease(PATIENCE);
    let mut source = transport.source(&server.client).await.unwrap();
    server.publish(0..POSTED as u32 + 3).await;
    let mut settles = Vec::new();
    for _ in 0..POSTED + 3 {
        settles.push(next(&mut source).await.1);
    }
    let mut last = settles.pop().unwrap();

    // Paused and not killed: what is sent stays open, and so the bound is reached.
    server.running().pause().unwrap();
    let mut refused = Vec::new();
    for mut settle in settles {
        match settle.settle_now(&Disposition::Succeeded) {
            Some(settled) => settled.unwrap(),
            None => refused.push(settle),
        }
    }
    assert_eq!(refused.len(), 2, "beyond the bound they are awaited");
    server.running().resume().unwrap();
    source.close().await;
    assert_eq!(server.pending().await, 3);
    assert!(last.settle_now(&Disposition::Succeeded).is_none(), "the source is closed");
    refused.push(last);
    for settle in refused {
        settle.settle(Disposition::Duplicate).await.unwrap();
    }
    assert_eq!(server.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_the_server_did_not_hear_is_said_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = billing().lease(PATIENCE).source(&server.client).await.unwrap();
    server.publish(0..3).await;
    let mut settles = Vec::new();
    for _ in 0..3 {
        settles.push(next(&mut source).await.1);
    }
    server.running().kill().unwrap();
    for settle in &mut settles {
        settle.settle_now(&Disposition::Succeeded).expect("nothing is awaited").unwrap();
    }
    server.running().restart().unwrap();
    source.close().await;
    assert_eq!(server.pending().await, 0, "closing waits for it");
}

/// However much there is to say meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_said_again_waits_for_no_silence() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut source = billing().lease(PATIENCE * 10).source(&server.client).await.unwrap();
    server.publish(0..2).await;
    let (_, mut first) = next(&mut source).await;
    let (_, mut second) = next(&mut source).await;
    // A refusal leaves the connection as it is, unlike a cut: only the pause between two tries decides when it is said again.
    server.run("ACL SETUSER default -xack").await;
    first.settle_now(&Disposition::Succeeded).expect("nothing is awaited").unwrap();
    let acknowledged = async {
        eventually("it was refused", async || {
            let told = server.run("INFO commandstats").await;
            let told: String = redis::from_redis_value(told).unwrap();
            told.lines().any(|line| line.contains("xack") && !line.contains("rejected_calls=0"))
        })
        .await;
        server.run("ACL SETUSER default +xack").await;
        eventually("it is acknowledged", async || server.pending().await == 1).await;
    };
    let talking = async {
        loop {
            second.extend().await.unwrap();
        }
    };
    tokio::select! {
        () = acknowledged => {}
        () = talking => unreachable!("it never ends"),
    }
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_letter_or_retry_record_is_acknowledged_with_an_answer() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    for (confirms, after) in [(false, false), (true, true)] {
        let transport = billing().confirm_acks(confirms);
        let mut source = transport.source(&server.client).await.unwrap();
        server.publish([1]).await;
        let (_, mut settle) = next(&mut source).await;
        for awaited in awaited() {
            assert!(settle.settle_now(&awaited).is_none(), "{awaited:?}");
        }
        assert_eq!(settle.settle_now(&Disposition::Succeeded).is_none(), after);
        if after {
            settle.settle(Disposition::Succeeded).await.unwrap();
        }
        source.close().await;
        assert_eq!(server.pending().await, 0);
    }
}

/// A read that finds nothing would keep a stop waiting for a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_a_blocked_read() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let info = async |what: &str| {
        let text: String =
            redis::from_redis_value(server.run(&format!("INFO {what}")).await).unwrap();
        text
    };
    let mut source = server.source().await;
    // Reading begins with the first call, and goes on when that is dropped.
    assert!(tokio::time::timeout(LEASE / 10, source.next()).await.is_err(), "there is nothing");
    eventually("the read blocks", async || info("clients").await.contains("blocked_clients:1"))
        .await;
    source.close().await;
    let stats = info("commandstats").await;
    assert!(stats.contains("cmdstat_client|unblock:calls=1,"), "{stats}");
    // What is published meanwhile is nobody's.
    server.publish([1]).await;
    assert_eq!(server.pending().await, 0);
}
