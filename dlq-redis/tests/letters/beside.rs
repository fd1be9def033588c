//! Followers beside each other, and beside a replay.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use dlq_core::ingest::Ingest;
use dlq_core::log::{Entries as _, Entry, Log as _};
use dlq_core::replay::ReplayOutcome;
use dlq_core::store::Letters as _;
use dlq_core::{DeadLetter, Filter, LetterId, Message, Status, StoreErrorKind};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::broker::{BrokerFixture, LogFixture as _, ReplaySpec, ReplayTarget};
use dlq_testkit::fixtures::letter_of;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fixture::{Redis7, RedisLettersFixture as ForeignServer, Which};

type Fixture = ForeignServer<Redis7>;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

/// A place with so many letters, of which each is its number.
pub(crate) async fn place<W: Which>(check: &str, letters: u32) -> Option<ForeignServer<W>> {
    if !ForeignServer::<W>::is_available() {
        return None;
    }
    let place = ForeignServer::<W>::fresh(check).await;
    let born = |number: u32| -> DeadLetter {
        let message = Message::new(place.subject(), number.to_string());
        let mut letter = letter_of(message, u64::from(number));
        letter.origin = place.origin(number);
        letter.consumer = ForeignServer::<W>::CONSUMER.to_owned();
        letter.id = LetterId::of(&letter.origin, letter.message.published_at(), &letter.consumer);
        letter
    };
    place.bury((0..letters).map(born).collect()).await;
    Some(place)
}

async fn count(store: &MemoryStore, status: Status) -> u64 {
    store.count(Filter::new().with_status(status)).await.unwrap()
}

async fn sent_back(place: &Fixture) -> u64 {
    place.arrived(ReplayTarget::Origin).await.len() as u64
}

async fn ingest(place: &Fixture) -> MemoryStore {
    let store = MemoryStore::new();
    let feed = place.feed("memory", true).await.unwrap();
    let mut ingest = Ingest::new(feed, store.clone());
    timeout(PATIENCE, ingest.run(pending(), |_| Ok(()))).await.expect("it ends").unwrap();
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_store_that_is_filled_beside_a_replay_learns_of_all_that_it_sends() {
    const LETTERS: u32 = 40;
    let Some(place) = place::<Redis7>("beside", LETTERS).await else { return };
    let spec = ReplaySpec::to_origin(1).rate(40).lease(LONG);
    let replay = place.replay(&place.letters(), spec);
    // The store begins in the middle, when some are sent and others are not.
    let (begun, mut told) = (Notify::new(), 0);
    let sending = Fixture::run(&replay, pending(), |_, outcome| {
        assert!(matches!(outcome, ReplayOutcome::Sent), "{outcome:?}");
        told += 1;
        if told == 5 {
            begun.notify_one();
        }
    });
    let filling = async {
        begun.notified().await;
        ingest(&place).await
    };
    let (report, store) = tokio::join!(sending, filling);
    let report = report.unwrap();
    assert!(report.is_complete(), "who has begun goes on: {report}");
    assert_eq!(count(&store, Status::Sent).await, u64::from(LETTERS));
    assert_eq!(sent_back(&place).await, u64::from(LETTERS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_replay_that_stood_still_sends_nothing_that_a_store_may_send() {
    const LETTERS: u32 = 10;
    let Some(place) = place::<Redis7>("beside", LETTERS).await else { return };
    let spec = ReplaySpec::to_origin(1).rate(20).lease(Duration::from_millis(100));
    let replay = place.replay(&place.letters(), spec);
    let begun = Notify::new();
    let mut sending = pin!(Fixture::run(&replay, pending(), |_, _| begun.notify_one()));
    tokio::select! {
        ended = &mut sending => panic!("it has ended: {ended:?}"),
        () = begun.notified() => {}
    }
    // It is not polled meanwhile.
    let store = ingest(&place).await;
    let before = sent_back(&place).await;
    assert!((1..u64::from(LETTERS)).contains(&before), "{before}");
    assert_eq!(count(&store, Status::Sent).await, before);
    assert_eq!(count(&store, Status::Pending).await, u64::from(LETTERS) - before);
    let report = timeout(PATIENCE, sending).await.expect("it ends").unwrap();
    let stopped = report.stopped.as_ref().expect("it finds the store");
    assert_eq!(stopped.kind(), StoreErrorKind::Refused);
    assert!(stopped.to_string().contains("are kept in memory"), "{stopped}");
    assert_eq!(report.left, u64::from(LETTERS) - before, "{report}");
    assert_eq!(sent_back(&place).await, before, "nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_go_to_one_follower_at_a_time() {
    let Some(place) = place::<Redis7>("beside", 6).await else { return };
    let log = place.log().until_end();
    let follow = |lease| log.follow("memory".to_owned(), lease);
    let (mut one, mut two) = (follow(LONG).await.unwrap(), follow(LONG).await.unwrap());
    assert_eq!(one.next(4).await.unwrap().len(), 4);
    assert!(timeout(Duration::from_millis(300), two.next(4)).await.is_err(), "it waits");
    one.confirm().await.unwrap();
    let rest = timeout(PATIENCE, two.next(4)).await.expect("its turn").unwrap();
    assert!(rest.len() == 2 && rest.iter().all(|entry| !entry.again), "{rest:?}");
    two.confirm().await.unwrap();
    assert!(one.next(4).await.unwrap().is_empty() && two.next(4).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_follower_that_stood_still_confirms_nothing() {
    let Some(place) = place::<Redis7>("beside", 6).await else { return };
    let log = place.log().until_end();
    let follow = |lease| log.follow("memory".to_owned(), lease);
    let mut late = follow(Duration::from_millis(50)).await.unwrap();
    assert_eq!(late.next(4).await.unwrap().len(), 4);
    let mut other = follow(LONG).await.unwrap();
    let again = timeout(PATIENCE, other.next(6)).await.expect("the lease ends").unwrap();
    let known: Vec<bool> = again.iter().map(|entry: &Entry| entry.again).collect();
    assert_eq!(known, [true, true, true, true, false, false]);
    let error = late.confirm().await.expect_err("another has them");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert_eq!(place.marks().await[0].confirmed, 0);
    other.confirm().await.unwrap();
    assert_eq!(place.marks().await[0].confirmed, 6);
    assert!(late.next(4).await.unwrap().is_empty(), "all is confirmed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_created_anew_and_a_mark_that_has_gone_are_told() {
    let Some(place) = place::<Redis7>("beside", 3).await else { return };
    let log = place.log().until_end();
    let follow = || log.follow("memory".to_owned(), LONG);
    let mut feed = follow().await.unwrap();
    assert_eq!(feed.next(2).await.unwrap().len(), 2);
    feed.confirm().await.unwrap();
    let mark = place.log().mark_key("dlq-ingest");
    place.command(&format!("DEL {mark}")).await;
    let error = feed.next(2).await.expect_err("nobody knows where it stood");
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains(&mark), "{error}");
    let mut feed = follow().await.unwrap();
    assert_eq!(feed.next(9).await.unwrap().len(), 3, "from the start");
    feed.confirm().await.unwrap();
    place.command(&format!("DEL {}", place.dead())).await;
    place.command(&format!("XADD {} 1-1 type paid", place.dead())).await;
    let error = follow().await.expect_err("its ids begin anew");
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("created anew"), "{error}");
}
