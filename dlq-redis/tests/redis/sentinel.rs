//! Fail-over by sentinels while messages are handled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dlq_core::{Disposition, Settle, Sink, Source};
use dlq_redis::RedisClient;
use dlq_services::{RedisSentinel, Sentinels};
use dlq_testkit::fixtures::letter;
use redis::Value;
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, available, billing, number};

/// Everything confirmed is passed on to the replica before the master dies, so that nothing is lost by the fail-over itself;
/// source, sink and settle handles find the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_on_at_the_new_master() {
    if !available() {
        return;
    }
    let mut servers = tokio::task::block_in_place(|| RedisSentinel::start().unwrap());
    let client = RedisClient::sentinel(servers.urls(), Sentinels::MASTER_NAME).await.unwrap();
    let opened = billing().open(&client).await.unwrap();
    let (mut source, sink) = (opened.source, opened.dead_letters);
    let raw = redis::Client::open(servers.nodes()[0].url()).unwrap();
    let mut raw = raw.get_multiplexed_async_connection().await.unwrap();
    for number in 1..=40 {
        let mut add = redis::cmd("XADD");
        add.arg("orders")
            .arg("*")
            .arg("d")
            .arg(number)
            .query_async::<Value>(&mut raw)
            .await
            .unwrap();
    }
    let passed_on: i64 = redis::cmd("WAIT").arg(1).arg(0).query_async(&mut raw).await.unwrap();
    assert_eq!(passed_on, 1);
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let begun = Instant::now();
    let mut killed = false;
    while seen.keys().copied().collect::<BTreeSet<_>>() != (1..=40).collect() {
        assert!(begun.elapsed() < PATIENCE * 2, "only {seen:?}");
        match tokio::time::timeout(PATIENCE, source.next()).await.expect("an answer") {
            Ok(Some((delivery, settle))) => {
                let number = number(&delivery);
                if settle.settle(Disposition::Succeeded).await.is_ok() {
                    *seen.entry(number).or_default() += 1;
                }
            }
            Ok(None) => panic!("the source has ended"),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                sleep(Duration::from_millis(50)).await;
            }
        }
        if !killed && seen.len() >= 10 {
            killed = true;
            tokio::task::block_in_place(|| servers.kill(0).unwrap());
        }
    }
    assert!(killed);
    let written = async {
        loop {
            match sink.put(vec![letter(1)]).await {
                Ok(receipts) => return receipts,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, written).await.expect("a letter is taken").len(), 1);
    source.close().await;
}
