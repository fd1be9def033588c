//! What comes and goes is seen, and only what is new is read.

use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{collections::BTreeSet, ffi::OsString, fs::DirEntry};

use dlq_core::store::Letters;
use dlq_core::{Filter, StoreErrorKind};
use dlq_kafka::{Brokers, KafkaLetters, ScanRange};
use dlq_testkit::fixtures::{died_again, letter};
#[cfg(target_os = "linux")]
use tokio::time::sleep;
use tokio::time::timeout;

use crate::fixture_letters::{Dead, PATIENCE, Told, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_new_is_read() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(3).await;
    let told = Told::default();
    let letters = told.hear(dead.letters());
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 0);
    for n in 0..30 {
        dead.put(i32::try_from(n % 3).unwrap(), &letter(n)).await;
    }
    told.totals();
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 30);
    assert_eq!(letters.clone().count(Filter::new()).await.unwrap(), 30);
    assert_eq!(told.totals(), [30], "clones share what was read");
    dead.put(1, &letter(30)).await;
    dead.put(1, &letter(31)).await;
    dead.put(2, &died_again(&letter(1))).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 32);
    assert_eq!(told.totals(), [3 + 2], "and the last that was known of both partitions");
    assert_eq!(letters.get(letter(1).id).await.unwrap().unwrap().generation, 1);
    // What claims an identity that another message has is told apart as everyone does who reads all of it.
    let mut other = letter(4);
    other.message = other.message.with_payload(Some("other".into()));
    dead.put(0, &other).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 33);
    assert_eq!(told.totals(), [2, 34]);
    // Retention takes the first of a partition.
    dead.remove_before(&dead.topic, 0, 1).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 32);
    assert_eq!(told.totals(), [33]);
    assert_eq!(letters.get(letter(0).id).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_topic_of_the_same_name_is_another() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(1).await;
    let letters = dead.letters();
    dead.put(0, &letter(1)).await;
    dead.put(0, &letter(2)).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 2);
    dead.create_anew(1).await;
    for n in 5..8 {
        dead.put(0, &letter(n)).await;
    }
    assert_eq!(letters.get(letter(1).id).await.unwrap(), None);
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_seen_as_they_arrive() {
    if !available() {
        return;
    }
    let dead = Dead::own(2).await;
    dead.put(0, &letter(1)).await;
    dead.put(0, &letter(2)).await;
    dead.put(0, &died_again(&letter(1))).await;
    let letters = dead.letters();
    let range = ScanRange::new().with_partition(0).with_offsets(1..);
    let mut scan = letters.scan(&range).await.unwrap();
    let mut seen = Vec::new();
    while let Some(stored) = scan.next().await.unwrap() {
        seen.push((stored.offset, stored.letter.death()));
    }
    assert_eq!(seen, [(1, letter(2).death()), (2, died_again(&letter(1)).death())], "no collapse");
    assert_eq!((scan.progress().read, scan.progress().total), (2, 2));
    let mut follow = letters.follow(&ScanRange::new().with_offsets(2..)).await.unwrap();
    assert_eq!(follow.next().await.unwrap().unwrap().offset, 2);
    // Waiting that is given up loses nothing.
    assert!(timeout(Duration::from_millis(20), follow.next()).await.is_err());
    dead.put(0, &letter(4)).await;
    let next = timeout(PATIENCE, follow.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((next.offset, next.letter.message), (3, letter(4).message));
    dead.kill_and_restart();
    dead.put(0, &letter(5)).await;
    let next = async {
        loop {
            if let Ok(next) = follow.next().await {
                return next.unwrap();
            }
        }
    };
    assert_eq!(timeout(PATIENCE, next).await.unwrap().offset, 4);
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 4, "the same client finds it again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(1).await;
    let at = dead.brokers.bootstrap().to_owned();
    let unknown = KafkaLetters::new(&dead.brokers, "mistyped.dlq");
    for error in [
        unknown.count(Filter::new()).await.unwrap_err(),
        unknown.scan(&ScanRange::new()).await.unwrap_err(),
        unknown.count(Filter::new()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NotFound, "and it was not made by asking");
        let text = error.to_string();
        assert!(text.contains("mistyped.dlq") && text.contains(&at), "{text}");
    }
    let odd = KafkaLetters::new(&dead.brokers, "no such\0topic");
    assert!(odd.count(Filter::new()).await.is_err());
    let range = ScanRange::new().with_partition(7);
    let error = dead.letters().scan(&range).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::NotFound && error.to_string().contains('7'), "{error}");
    let error = dead.letters().with_range(range).count(Filter::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    // Nobody listens there.
    let nobody = KafkaLetters::new(&Brokers::at("127.0.0.1:1"), "orders.dlq");
    let error = timeout(PATIENCE, nobody.count(Filter::new())).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("orders.dlq") && text.contains("127.0.0.1:1"), "{text}");
    for (setting, value) in [("group.id", "mine"), ("isolation.levle", "x")] {
        let letters = KafkaLetters::new(&dead.brokers.clone().with(setting, value), "orders.dlq");
        let error = letters.count(Filter::new()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        assert!(error.to_string().contains(setting), "{error}");
    }
}

/// The threads that read now, those of other tests among them.
#[cfg(target_os = "linux")]
fn readers() -> BTreeSet<OsString> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let reads = |thread: &DirEntry| {
        let name = std::fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "dlq-letters")
    };
    threads.filter(reads).map(|thread| thread.file_name()).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_that_is_dropped_is_over() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    for n in 0..2_000 {
        dead.put(i32::try_from(n % 2).unwrap(), &letter(n)).await;
    }
    let letters = dead.letters();
    let mut waiting = letters.follow(&ScanRange::new().with_offsets(1_000..)).await.unwrap();
    assert!(timeout(Duration::from_millis(20), waiting.next()).await.is_err());
    let mut full = letters.scan(&ScanRange::new()).await.unwrap();
    assert!(full.next().await.unwrap().is_some());
    let reading = readers();
    assert!(reading.len() >= 2);
    drop((waiting, full));
    // Those of other tests end too, and begin.
    let over = async {
        while !readers().is_disjoint(&reading) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, over).await.expect("no reader stays");
}
