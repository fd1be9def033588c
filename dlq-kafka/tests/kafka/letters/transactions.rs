//! Marks of transactions and what they took back leave gaps, at which no reader stops.

use dlq_core::log::Range;
use dlq_core::{DeadLetter, Filter};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_testkit::fixtures::letter;
use tokio::time::timeout;

use crate::fixture_letters::{Dead, PATIENCE, available, fill};
use crate::fixture_reading::{Look as _, at, entries, place};
use crate::fixture_replay::{PARTITIONS, Shop, run, to_origin};

async fn put(dead: &Dead, producer: &FutureProducer, letter: &DeadLetter) {
    let record = FutureRecord::<[u8], _>::to(&dead.topic).partition(0);
    producer.send(fill(record, letter), PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_stop_nobody() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    let letters = dead.letters();
    let count = async || timeout(PATIENCE, letters.count(Filter::new())).await.unwrap().unwrap();
    // Committed: an offset for the mark after it.
    let committed = dead.transaction("committed");
    put(&dead, &committed, &letter(1)).await;
    tokio::task::block_in_place(|| committed.commit_transaction(PATIENCE).unwrap());
    dead.await_stable(2);
    assert_eq!(count().await, 1);
    // Taken back, at the end of the partition.
    let aborted = dead.transaction("aborted");
    put(&dead, &aborted, &letter(2)).await;
    put(&dead, &aborted, &letter(3)).await;
    tokio::task::block_in_place(|| aborted.abort_transaction(PATIENCE).unwrap());
    dead.await_stable(5);
    assert_eq!(count().await, 1);
    let behind = Range::all().from(place(0, 2));
    assert!(entries(&letters, behind.clone()).await.is_empty(), "only what is gone");
    // In the midst of it.
    dead.put(0, &letter(4)).await;
    assert_eq!(count().await, 2);
    let found = timeout(PATIENCE, entries(&letters, behind)).await.unwrap();
    assert_eq!(found.iter().map(|found| at(&found.place)).collect::<Vec<_>>(), [(0, 5)]);
    // Not ended: what comes after it is not there yet.
    let open = dead.transaction("open");
    put(&dead, &open, &letter(5)).await;
    dead.put(0, &letter(6)).await;
    dead.put(1, &letter(7)).await;
    assert_eq!(count().await, 3);
    tokio::task::block_in_place(|| open.commit_transaction(PATIENCE).unwrap());
    dead.await_stable(9);
    assert_eq!(count().await, 5);
}

/// As after a broker that takes a transaction for ended where a partition had no leader (KAFKA-20734).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_replay_tells_where_what_it_sent_is_not_seen() {
    let Some(shop) = Shop::open("unseen").await else { return };
    let mut config = shop.config();
    let producer: FutureProducer = config.set("transactional.id", "unseen").create().unwrap();
    tokio::task::block_in_place(|| producer.init_transactions(PATIENCE).unwrap());
    producer.begin_transaction().unwrap();
    for partition in 0..PARTITIONS {
        let record = FutureRecord::<[u8], _>::to(&shop.topic).partition(partition).payload("1");
        producer.send(record, PATIENCE).await.unwrap();
    }
    let letters = shop.bury(&shop.dead([1])).await;
    let report = run(to_origin(&letters, 1)).await;
    assert_eq!((report.sent, report.notes.len()), (1, 1), "{:?}", report.notes);
    let says = format!("what was sent to `{}`, partition ", shop.topic);
    assert!(report.notes[0].contains(&says), "{:?}", report.notes);
    tokio::task::block_in_place(|| producer.commit_transaction(PATIENCE).unwrap());
    let letters = shop.bury(&shop.dead([2])).await;
    let report = run(to_origin(&letters, 2)).await;
    assert_eq!((report.sent, report.notes.len()), (1, 0), "{:?}", report.notes);
}
