//! A server that takes nothing for a while, or goes away in the middle.

use std::future::pending;
use std::time::Duration;

use dlq_core::log::{Log as _, Range};
use dlq_core::replay::ReplayReport;
use dlq_core::{OperationId, StoreErrorKind};
use dlq_redis::{RedisReplay, RedisTarget};
use dlq_testkit::broker::{BrokerFixture as _, LogFixture as _, ReplayTarget};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::beside::{PATIENCE, place};
use crate::fixture::Own;

fn replay(place: &Own) -> RedisReplay {
    let operation = OperationId::from_bytes([1; 16]);
    RedisReplay::new(&place.log(), dlq_core::Filter::new(), RedisTarget::Origin, operation)
}

/// The payloads that have arrived, each as often as it has.
async fn arrived(place: &Own) -> Vec<u32> {
    let arrived = place.arrived(ReplayTarget::Origin).await;
    let mut numbers: Vec<u32> = arrived.iter().map(|one| one.text().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// Runs it until it has come to every letter.
async fn to_the_end(replay: &RedisReplay) -> ReplayReport {
    let ran = async {
        loop {
            match replay.run(pending(), |_| {}).await {
                Ok(report) if report.is_complete() => return report,
                Ok(report) => assert!(report.stopped.is_some(), "{report}"),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    timeout(PATIENCE, ran).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_server_that_is_full_is_waited_for() {
    let Some(place) = place::<crate::fixture::Redis7>("restart-full", 5).await else { return };
    place.command("CONFIG SET maxmemory 1").await;
    let replay = replay(&place);
    let mut running = std::pin::pin!(to_the_end(&replay));
    tokio::select! {
        report = &mut running => panic!("nothing is taken: {report}"),
        () = sleep(Duration::from_millis(400)) => {}
    }
    assert_eq!(arrived(&place).await, [0_u32; 0]);
    place.command("CONFIG SET maxmemory 0").await;
    assert_eq!(running.await.failed, 0);
    assert_eq!(arrived(&place).await, [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_server_that_dies_in_the_middle_gets_each_letter_once() {
    let Some(place) = place::<crate::fixture::Redis7>("restart-dies", 40).await else { return };
    let (replay, begun) = (replay(&place).rate(40), Notify::new());
    let mut told = 0;
    let first = replay.run(pending(), |_| {
        told += 1;
        if told == 5 {
            begun.notify_one();
        }
    });
    let restarting = async {
        begun.notified().await;
        place.restart().await
    };
    let (first, _) = tokio::join!(first, restarting);
    println!("the first: {}", first.unwrap());
    assert_eq!(to_the_end(&self::replay(&place)).await.failed, 0);
    assert_eq!(arrived(&place).await, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_told_and_nothing_is_sent() {
    let Some(place) = place::<crate::fixture::Redis7>("type", 3).await else { return };
    for key in ["replays", "ingests", "replaying"] {
        let key = format!("{}:{key}", place.dead());
        place.command(&format!("SET {key} text")).await;
        let told = match replay(&place).run(pending(), |_| {}).await {
            Ok(report) => {
                assert_eq!((report.sent, report.failed), (0, 3), "{key}: {report}");
                continue;
            }
            Err(error) => error.to_string(),
        };
        assert!(told.contains("another type"), "{key}: {told}");
        place.command(&format!("DEL {key}")).await;
    }
    place.command(&format!("DEL {}:replaying", place.dead())).await;
    assert_eq!(arrived(&place).await, [0_u32; 0]);
    assert_eq!(to_the_end(&replay(&place)).await.sent, 3);
    assert_eq!(arrived(&place).await, [0, 1, 2]);
    place.command(&format!("DEL {}", place.dead())).await;
    let gone = place.log().read(Range::all()).await.expect_err("there is no stream");
    assert_eq!(gone.kind(), StoreErrorKind::NotFound, "{gone}");
    place.command(&format!("SET {} text", place.dead())).await;
    let other = place.log().read(Range::all()).await.expect_err("it is no stream");
    assert_eq!(other.kind(), StoreErrorKind::InvalidConfig, "{other}");
}
