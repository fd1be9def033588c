//! Letters that go into a store are sent from there, and a replay at the broker that was begun before gives way.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dlq_core::log::{Content, Entries as _, Entry};
use dlq_core::{Death, Status, StoreErrorKind};
use dlq_kafka::KafkaEntries;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fixture_feed::follow;
use crate::fixture_replay::{PATIENCE, Shop, operation, to_origin};

/// The name of the store.
const STORE: &str = "sqlite:///dead.db";

async fn open(shop: &Shop) -> KafkaEntries {
    follow(&shop.letters(), STORE, Duration::from_secs(10)).await.unwrap()
}

/// The status of so many letters, by the numbers that they carry.
async fn statuses(feed: &mut KafkaEntries, count: usize) -> BTreeMap<u32, Status> {
    let mut all = BTreeMap::new();
    while all.len() < count {
        let next = timeout(PATIENCE, feed.next(count)).await.expect("letters come").unwrap();
        for Entry { content, .. } in next {
            let Content::Letter(letter) = content else { panic!("{content:?}") };
            let text = String::from_utf8(letter.message.payload().unwrap().to_vec()).unwrap();
            all.insert(text.parse().unwrap(), letter.state.status);
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_letters_that_are_kept_in_a_store_are_sent_from_there() {
    let Some(shop) = Shop::open("kept").await else { return };
    let letters = shop.bury(&shop.dead(0..10)).await;
    let mut feed = open(&shop).await;
    assert_eq!(statuses(&mut feed, 10).await.len(), 10);
    let replay = to_origin(&letters, 1);
    let report = replay.run(pending(), |_| {}).await.unwrap();
    let stopped = report.stopped.unwrap();
    assert_eq!((stopped.kind(), report.sent, report.left), (StoreErrorKind::Refused, 0, 10));
    assert!(stopped.to_string().contains(STORE), "{stopped}");
    assert!(shop.sent_back().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_replay_ends_when_its_letters_go_into_a_store() {
    let Some(shop) = Shop::open("kept-later").await else { return };
    let letters = shop.bury(&shop.dead(0..10)).await;
    let begun = Arc::new(Notify::new());
    let (tells, told) = mpsc::channel();
    let mut ingest = JoinSet::new();
    ingest.spawn({
        let (begun, shop) = (Arc::clone(&begun), shop.clone());
        async move {
            begun.notified().await;
            let all = statuses(&mut open(&shop).await, 10).await;
            tells.send(()).unwrap();
            all
        }
    });
    // One letter in a transaction; after the first the ingest takes them all.
    let (slow, mut sent) = (to_origin(&letters, 1).rate(4), 0);
    let report = slow.run(pending(), move |_| {
        sent += 1;
        if sent == 1 {
            begun.notify_one();
            told.recv_timeout(PATIENCE).unwrap();
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.sent, report.left), (1, 9), "{report}");
    assert_eq!(report.stopped.unwrap().kind(), StoreErrorKind::Refused);
    let kept = ingest.join_next().await.unwrap().unwrap();
    let kept_sent = kept.iter().filter(|(_, status)| **status == Status::Sent);
    let kept_sent: BTreeMap<String, u32> =
        kept_sent.map(|(number, _)| (number.to_string(), 1)).collect();
    assert_eq!(shop.sent_back().await, kept_sent, "the store knows what was sent");
}

/// A replay that had looked for a store before there was one, and has not committed yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_who_follows_waits_for_a_replay_that_may_commit() {
    let Some(shop) = Shop::open("kept-open").await else { return };
    let dead = shop.dead(0..4);
    shop.bury(&dead).await;
    let ledger = format!("{}.replays", shop.dlq);
    shop.create(&ledger, 1, &[("cleanup.policy", "compact")]).await;
    let replay: FutureProducer =
        shop.config().set("transactional.id", "kept-open").create().unwrap();
    tokio::task::block_in_place(|| replay.init_transactions(PATIENCE).unwrap());
    replay.begin_transaction().unwrap();
    let sent: [Death; 2] = [dead[1].death(), dead[2].death()];
    for death in sent {
        let (key, operation) = (death.to_string(), operation(1));
        let value = serde_json::json!({ "operation": operation, "at": "2026-01-01T00:00:00Z" });
        let value = value.to_string();
        let record = FutureRecord::to(&ledger).partition(0).key(&key).payload(&value);
        replay.send(record, PATIENCE).await.unwrap();
    }
    let mut feed = open(&shop).await;
    let mut following = std::pin::pin!(statuses(&mut feed, 4));
    let early = timeout(Duration::from_secs(3), &mut following).await;
    assert!(early.is_err(), "it waits: {early:?}");
    tokio::task::block_in_place(|| replay.commit_transaction(PATIENCE).unwrap());
    let sent: Vec<u32> = following.await.into_iter().filter_map(as_sent).collect();
    assert_eq!(sent, [1, 2]);
}

fn as_sent((number, status): (u32, Status)) -> Option<u32> {
    (status == Status::Sent).then_some(number)
}
