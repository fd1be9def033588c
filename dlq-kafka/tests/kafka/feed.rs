//! The letters of a topic that is followed into a store.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::log::{Content, Entries as _, Entry, IngestMark, Log as _};
use dlq_core::{Position, StoreError, StoreErrorKind};
use dlq_kafka::{Brokers, KafkaEntries, KafkaLetters, find_topic};
use tokio::time::timeout;

use crate::fixture_feed::{PATIENCE, Topic, confirm, follow};
use crate::topic;

const STORE: &str = "sqlite:///dlq.db";
const LEASE: Duration = Duration::from_secs(10);

fn group(topic: &Topic) -> String {
    KafkaLetters::group_of(&topic.name)
}

async fn open(topic: &Topic, store: &str) -> Result<KafkaEntries, StoreError> {
    follow(&topic.letters(), store, LEASE).await
}

/// The same, up to the end.
async fn open_ending(topic: &Topic) -> KafkaEntries {
    follow(&topic.letters().until_end(), STORE, LEASE).await.unwrap()
}

async fn marks(topic: &Topic) -> Vec<IngestMark> {
    topic.letters().marks().await.unwrap()
}

async fn next(feed: &mut KafkaEntries, limit: usize) -> Vec<Entry> {
    timeout(PATIENCE, feed.next(limit)).await.expect("letters come").unwrap()
}

/// The numbers that were written.
fn numbers(fed: &[Entry]) -> BTreeSet<u32> {
    let number = |fed: &Entry| match &fed.content {
        Content::Letter(letter) => {
            let text = std::str::from_utf8(letter.message.payload().unwrap()).unwrap();
            text.strip_prefix("number ").unwrap().parse().unwrap()
        }
        other => panic!("{other:?}"),
    };
    fed.iter().map(number).collect()
}

fn all(count: u32) -> BTreeSet<u32> {
    (0..count).collect()
}

/// Everything up to the end.
async fn drain(feed: &mut KafkaEntries) -> Vec<Entry> {
    let mut fed = Vec::new();
    loop {
        let some = next(feed, 100).await;
        if some.is_empty() {
            return fed;
        }
        fed.extend(some);
        confirm(feed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_has_a_group_of_its_own() {
    let Some(topic) = Topic::new("feed-mark", 2).await else { return };
    topic.write(0..6).await;
    drop(open(&topic, STORE).await.unwrap());
    let second = topic.letters().group("dlq-ingest.feed-mark.second").until_end();
    let second = follow(&second, "sqlite:///second.db", LEASE).await;
    let all = drain(&mut second.unwrap()).await;
    assert_eq!(numbers(&all), (0..6).collect());
    let stores: Vec<_> = marks(&topic).await.into_iter().map(|mark| mark.store).collect();
    assert_eq!(stores, [STORE, "sqlite:///second.db"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_somebody_else_is_left_alone() {
    let Some(topic) = Topic::new("feed-foreign", 1).await else { return };
    topic.write(0..3).await;
    for (name, metadata) in [("billing", ""), ("shipping", "\u{feff}{\"dlq.store\": 7}")] {
        let name = &*format!("{}.{name}", group(&topic));
        topic.commit(name, 2, metadata);
        let error = follow(&topic.letters().group(name), STORE, LEASE).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("somebody else's"), "{error}");
        assert_eq!(topic.committed(name), [Some(2)]);
    }
    let long = format!("sqlite://{}", "x".repeat(5000));
    let error = open(&topic, &long).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_died_with_letters_in_flight_leaves_them_to_the_next() {
    let Some(topic) = Topic::new("feed-died", 1).await else { return };
    topic.write(0..10).await;
    // As a process leaves it that was killed after its first batch.
    let died = serde_json::json!({ "dlq.store": STORE, "confirmed": 4, "clean": false });
    topic.commit(&group(&topic), 4, &died.to_string());
    let mut feed = open(&topic, STORE).await.unwrap();
    let fed = next(&mut feed, 100).await;
    assert_eq!(*fed[0].place.position(), Position::Offset(4));
    assert!(fed.iter().all(|fed| fed.again), "{fed:?}");
    confirm(&mut feed).await;
    topic.write(10..11).await;
    while !numbers(&next(&mut feed, 100).await).contains(&10) {
        confirm(&mut feed).await;
    }
    confirm(&mut feed).await;
    assert_eq!(marks(&topic).await[0].confirmed, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_goes_to_another_takes_along_what_was_not_confirmed() {
    let Some(topic) = Topic::new("feed-moves", 2).await else { return };
    topic.write(0..20).await;
    let mut first = open(&topic, STORE).await.unwrap();
    assert!(!next(&mut first, 20).await.is_empty());
    let mut second = open(&topic, STORE).await.unwrap();
    // It gets a partition although the first one asks for nothing meanwhile.
    let moved = next(&mut second, 20).await;
    let places: BTreeSet<_> = moved.iter().map(|fed| fed.place.partition()).collect();
    assert_eq!(places.len(), 1, "one partition went over");
    assert!(moved.iter().all(|fed| fed.again), "{moved:?}");
    let partition = usize::try_from(moved[0].place.partition().unwrap()).unwrap();
    let begun = topic.committed(&group(&topic))[partition];
    confirm(&mut first).await;
    assert_eq!(topic.committed(&group(&topic))[partition], begun, "it is not the first one's now");
    confirm(&mut second).await;
    assert_eq!(moved.len(), 10);
    assert_eq!(topic.committed(&group(&topic))[partition], Some(10));
    // What it had in flight comes again.
    let mut seen = BTreeSet::new();
    while topic.committed(&group(&topic)) != [Some(10), Some(10)] {
        let fed = next(&mut first, 20).await;
        assert!(fed.iter().all(|fed| fed.again), "{fed:?}");
        seen.extend(numbers(&fed));
        confirm(&mut first).await;
    }
    assert_eq!(seen.union(&numbers(&moved)).count(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_loses_its_partitions() {
    let Some(topic) = Topic::new("feed-hangs", 2).await else { return };
    topic.write(0..20).await;
    let impatient = topic.brokers().with("max.poll.interval.ms", "2000");
    let lease = Duration::from_secs(2);
    let impatient = KafkaLetters::new(&impatient, &*topic.name);
    let mut first = follow(&impatient, STORE, lease).await.unwrap();
    assert!(!next(&mut first, 20).await.is_empty());
    // It asks for nothing more, and does not end.
    let mut second = open_ending(&topic).await;
    let all_of_it = timeout(PATIENCE, drain(&mut second)).await.expect("it is put out");
    assert_eq!(numbers(&all_of_it), all(20));
    confirm(&mut first).await;
    assert_eq!(topic.committed(&group(&topic)), [Some(10), Some(10)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_who_ends_waits_for_whom_the_group_waits_for() {
    let Some(topic) = Topic::new("feed-waits", 1).await else { return };
    topic.write(0..5).await;
    let hanging = topic.brokers().with("max.poll.interval.ms", "15000");
    let lease = Duration::from_secs(2);
    let hanging = KafkaLetters::new(&hanging, &*topic.name);
    let mut first = follow(&hanging, STORE, lease).await.unwrap();
    assert_eq!(next(&mut first, 5).await.len(), 5);
    // It hears of nobody who joins any more, and is a member for longer than a question may take.
    tokio::time::sleep(lease * 2).await;
    let mut second = open_ending(&topic).await;
    let all_of_it = timeout(PATIENCE, drain(&mut second)).await.expect("it is put out");
    assert_eq!(numbers(&all_of_it), all(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_share_the_partitions_and_end_together() {
    let Some(topic) = Topic::new("feed-share", 4).await else { return };
    topic.write(0..400).await;
    let work = async |mut feed: KafkaEntries| {
        let mut fed = Vec::new();
        loop {
            let some = next(&mut feed, 7).await;
            if some.is_empty() {
                return fed;
            }
            fed.extend(numbers(&some));
            if let Err(error) = feed.confirm().await {
                assert!(error.is_transient(), "{error}");
            }
        }
    };
    let (one, two) = tokio::join!(async { work(open_ending(&topic).await).await }, async {
        work(open_ending(&topic).await).await
    });
    let seen: BTreeSet<u32> = one.into_iter().chain(two).collect();
    assert_eq!(seen, all(400));
    assert_eq!(topic.committed(&group(&topic)), [Some(100); 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_transaction_leaves_behind_is_no_letter_and_no_hurdle() {
    let Some(topic) = Topic::new("feed-gaps", 1).await else { return };
    topic.transaction(0..5, true).await;
    topic.transaction(5..9, false).await;
    let mut feed = open_ending(&topic).await;
    assert_eq!(numbers(&drain(&mut feed).await), all(5));
    drop(feed);
    topic.transaction(9..12, false).await;
    let mut feed = open_ending(&topic).await;
    assert_eq!(drain(&mut feed).await.len(), 0);
    topic.transaction(12..13, true).await;
    let mut feed = open_ending(&topic).await;
    assert_eq!(numbers(&drain(&mut feed).await), [12].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_named_soon() {
    let Some(topic) = Topic::new("feed-there.dlq", 1).await else { return };
    assert_eq!(find_topic(&topic.brokers(), &topic.name).await.unwrap(), 1);
    let missing = find_topic(&topic.brokers(), "feed-gone.dlq").await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound);
    let marks =
        async |brokers: &Brokers, topic: &str| KafkaLetters::new(brokers, topic).marks().await;
    let missing = marks(&topic.brokers(), "feed-gone.dlq").await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound);
    for text in ["feed-gone.dlq", "feed-there.dlq", &topic.bootstrap] {
        assert!(missing.to_string().contains(text), "{text} is not in {missing}");
    }
    // Nobody listens there.
    let nobody = Brokers::at("127.0.0.1:1");
    let away = timeout(PATIENCE, marks(&nobody, "t")).await.unwrap().unwrap_err();
    assert_eq!(away.kind(), StoreErrorKind::Unavailable);
    assert!(away.to_string().contains("127.0.0.1:1"), "{away}");
    let wrong = topic.brokers().with("group.id", "x");
    let wrong = marks(&wrong, "t").await.unwrap_err();
    assert_eq!(wrong.kind(), StoreErrorKind::InvalidConfig, "{wrong}");
    let wrong = topic.brokers().with("no.such.setting", "x");
    let wrong = marks(&wrong, "t").await.unwrap_err();
    assert_eq!(wrong.kind(), StoreErrorKind::InvalidConfig, "{wrong}");
    assert!(wrong.to_string().contains("no.such.setting"), "{wrong}");
}

/// Everything that comes until these are there. A topic that is missing is waited for.
async fn until_fed(feed: &mut KafkaEntries, wanted: &BTreeSet<u32>) {
    let mut seen = BTreeSet::new();
    let fed = async {
        while seen != *wanted {
            match feed.next(100).await {
                Ok(some) => {
                    let numbers = numbers(&some);
                    assert!(numbers.is_subset(wanted), "{numbers:?}");
                    seen.extend(numbers);
                    if let Err(error) = feed.confirm().await {
                        assert!(error.is_transient(), "{error}");
                    }
                }
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    timeout(PATIENCE, fed).await.expect("all of them are fed");
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_letters_of_a_topic_that_is_made_anew_are_fed_from_its_start() {
    let Some(topic) = Topic::new("feed-anew", 1).await else { return };
    topic.write(0..5).await;
    // The client says soon that it is missing.
    let soon = topic.brokers().with("topic.metadata.propagation.max.ms", "500");
    let mut feed = follow(&KafkaLetters::new(&soon, &*topic.name), STORE, LEASE).await.unwrap();
    until_fed(&mut feed, &all(5)).await;
    topic::delete(&topic.bootstrap, &topic.name).await;
    let missing = timeout(PATIENCE, feed.next(100)).await.expect("it is missing").unwrap_err();
    assert!(missing.is_transient() && missing.to_string().contains("waited for"), "{missing}");
    // A running one hears that the log is another where that is shorter.
    let topic = Topic::at(&topic.bootstrap, &topic.name, 1).await;
    topic.write(10..13).await;
    until_fed(&mut feed, &(10..13).collect()).await;
    drop(feed);
    topic::delete(&topic.bootstrap, &topic.name).await;
    let topic = Topic::at(&topic.bootstrap, &topic.name, 1).await;
    topic.write(20..28).await;
    let mut feed = open(&topic, STORE).await.unwrap();
    until_fed(&mut feed, &(20..28).collect()).await;
    drop(feed);
    assert_eq!(topic.committed(&group(&topic)), [Some(8)]);
}
