//! What comes and goes is seen.

use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{collections::BTreeSet, ffi::OsString, fs::DirEntry};

use dlq_core::log::{Entries as _, Log as _, Range};
use dlq_core::{Filter, StoreErrorKind};
use dlq_kafka::{Brokers, KafkaLetters, ScanRange};
use dlq_testkit::fixtures::{died_again, letter};
#[cfg(target_os = "linux")]
use tokio::time::sleep;
use tokio::time::timeout;

use crate::fixture_letters::{Dead, PATIENCE, available};
use crate::fixture_reading::{Look as _, at, entries, place};
use crate::fixture_replay::to_origin;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_goes_is_seen() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(3).await;
    let letters = dead.letters();
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 0);
    for n in 0..30 {
        dead.put(i32::try_from(n % 3).unwrap(), &letter(n)).await;
    }
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 30);
    dead.put(1, &letter(30)).await;
    dead.put(1, &letter(31)).await;
    dead.put(2, &died_again(&letter(1))).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 32);
    assert_eq!(letters.get(letter(1).id).await.unwrap().unwrap().generation, 1);
    // What claims an identity that another message has is told apart as everyone does who reads all of it.
    let mut other = letter(4);
    other.message = other.message.with_payload(Some("other".into()));
    dead.put(0, &other).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 33);
    // Retention takes the first of a partition.
    dead.remove_before(&dead.topic, 0, 1).await;
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 32);
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
    let seen = entries(&letters, Range::all().from(place(0, 1))).await;
    let seen: Vec<_> =
        seen.iter().map(|seen| (at(&seen.place), seen.letter().unwrap().death())).collect();
    let wanted = [((0, 1), letter(2).death()), ((0, 2), died_again(&letter(1)).death())];
    assert_eq!(seen, wanted, "no collapse");
    let mut follow = letters.read(Range::all().from(place(0, 2)).for_ever()).await.unwrap();
    assert_eq!(at(&follow.next(1).await.unwrap()[0].place), (0, 2));
    // Waiting that is given up loses nothing.
    assert!(timeout(Duration::from_millis(20), follow.next(1)).await.is_err());
    dead.put(0, &letter(4)).await;
    let next = timeout(PATIENCE, follow.next(1)).await.unwrap().unwrap().remove(0);
    assert_eq!((at(&next.place), &next.letter().unwrap().message), ((0, 3), &letter(4).message));
    dead.kill_and_restart();
    dead.put(0, &letter(5)).await;
    let next = async {
        loop {
            if let Ok(mut next) = follow.next(1).await {
                return next.remove(0);
            }
        }
    };
    assert_eq!(at(&timeout(PATIENCE, next).await.unwrap().place), (0, 4));
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
        unknown.read(Range::all()).await.unwrap_err(),
        unknown.count(Filter::new()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NotFound, "and it was not made by asking");
        let text = error.to_string();
        assert!(text.contains("mistyped.dlq") && text.contains(&at), "{text}");
    }
    let odd = KafkaLetters::new(&dead.brokers, "no such\0topic");
    assert!(odd.count(Filter::new()).await.is_err());
    let range = ScanRange::new().partition(7);
    let error = to_origin(&dead.letters().range(range), 1).plan().await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::NotFound && error.to_string().contains('7'), "{error}");
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
async fn a_reading_that_is_dropped_is_over() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    for n in 0..2_000 {
        dead.put(i32::try_from(n % 2).unwrap(), &letter(n)).await;
    }
    let letters = dead.letters();
    let ends = Range::all().from(place(0, 1_000)).from(place(1, 1_000));
    let mut waiting = letters.read(ends.for_ever()).await.unwrap();
    assert!(timeout(Duration::from_millis(20), waiting.next(1)).await.is_err());
    let mut full = letters.read(Range::all()).await.unwrap();
    assert_eq!(full.next(1).await.unwrap().len(), 1);
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
