//! A replay that is killed or stopped for a while, wherever it is, and the next one.

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use dlq_core::ingest::Ingest;
use dlq_core::store::Letters;
use dlq_core::{Filter, PageRequest, Status};
use dlq_letters::memory::MemoryStore;

use super::steps::{AT_ONCE, beside_one_another, rounds, run_for};
use super::{BrokerFixture, Check, ReplaySpec, ReplayTarget};

const LETTERS: u32 = 5;
const LEASE: Duration = Duration::from_secs(1);

fn spec(operation: u64) -> ReplaySpec {
    ReplaySpec::to_origin(operation).lease(LEASE)
}

/// The progress of a replay when it was killed, as the broker shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// Nothing has arrived.
    Nothing,
    /// All has arrived.
    All,
    /// It had come to its end.
    Ended,
}

/// Sends what is left, and makes sure that each letter was sent once and is marked.
async fn finish<F: BrokerFixture>(check: &Check<F>, what: &str) -> u64 {
    // From here on only the ledger keeps a letter from being sent twice.
    check.fixture.forget().await;
    let report = check.run(spec(2)).await;
    assert_eq!((report.failed, report.doubtful), (0, 0), "{what}: {report}");
    check.assert_once(ReplayTarget::Origin, 0..LETTERS).await;
    let sent = Filter::new().with_status(Status::Sent);
    let sent = check.fixture.letters().count(sent).await.expect("letters are counted");
    assert_eq!(sent, u64::from(LETTERS), "{what}");
    report.sent
}

/// Kills one after so many steps, and lets the next one send the rest.
async fn killed<F: BrokerFixture>(check: &Check<F>, steps: u32) -> Seen {
    let check = check.beside(steps).await;
    let letters = check.bury(0..LETTERS).await;
    let replay = check.fixture.replay(&letters, spec(1));
    let ended = run_for(steps, pin!(F::run(&replay, pending(), |_, _| {}))).await;
    let has_ended = ended.is_some();
    if let Some(ended) = ended {
        assert_eq!(ended.expect("a replay is run").sent, u64::from(LETTERS));
    }
    // What is left for the next replay tells how far this one had come.
    match (finish(&check, &format!("killed after {steps} steps")).await, has_ended) {
        (0, true) => Seen::Ended,
        (0, false) => Seen::All,
        _ => Seen::Nothing,
    }
}

/// A replay that is killed at any of its steps has sent some letters or none; the next one sends the others, and each arrives
/// once (G6).
pub async fn g6_killed_at_any_step_each_letter_arrives_once<F: BrokerFixture>(check: Check<F>) {
    let (mut seen, mut rounds) = (BTreeSet::new(), rounds());
    // How many steps there are differs from time to time.
    while !seen.contains(&Seen::Ended) {
        let some = rounds.by_ref().take(AT_ONCE).map(|steps| Box::pin(killed(&check, steps)));
        seen.extend(beside_one_another(some).await);
    }
    // A check that always kills too late proves nothing.
    assert!(seen.contains(&Seen::Nothing), "it was killed before it had sent them: {seen:?}");
}

/// Stops one after so many steps, lets the next one send the rest, and lets the first go on.
async fn stopped<F: BrokerFixture>(check: &Check<F>, steps: u32) {
    let check = check.beside(steps).await;
    let letters = check.bury(0..LETTERS).await;
    let replay = check.fixture.replay(&letters, spec(1));
    let mut first = pin!(F::run(&replay, pending(), |_, _| {}));
    let ended = run_for(steps, first.as_mut()).await;
    let rest = finish(&check, &format!("stopped after {steps} steps")).await;
    check.fixture.forget().await;
    let first = match ended {
        Some(ended) => ended,
        None => first.await,
    };
    let first = first.expect("a replay is run");
    assert!(first.is_complete(), "{first}");
    assert!(first.sent + rest >= u64::from(LETTERS), "stopped after {steps}: {first}; {rest}");
    check.assert_once(ReplayTarget::Origin, 0..LETTERS).await;
}

/// A replay that is stopped at any of its steps until another has sent its letters sends nothing more when it goes on (G6).
pub async fn g6_stopped_at_any_step_it_sends_nothing_twice<F: BrokerFixture>(check: Check<F>) {
    let mut rounds = rounds().step_by(2);
    for _ in 0..2 {
        let some = rounds.by_ref().take(AT_ONCE).map(|steps| Box::pin(stopped(&check, steps)));
        beside_one_another(some).await;
    }
}

/// Kills one after so many steps, and fills a store from what it has left.
async fn stored<F: BrokerFixture>(check: &Check<F>, steps: u32) {
    let check = check.beside(steps).await;
    let letters = check.bury(0..LETTERS).await;
    let replay = check.fixture.replay(&letters, spec(1));
    // The store is filled from what the broker shows, however far this has come.
    let _ = run_for(steps, pin!(F::run(&replay, pending(), |_, _| {}))).await;
    let store = MemoryStore::new();
    let feed = check.fixture.feed("memory", true).await.expect("a feed is opened");
    let mut ingest = Ingest::new(feed, store.clone());
    ingest.run(pending(), |_| Ok(())).await.expect("letters are put");
    let pending = Filter::new().with_status(Status::Pending);
    let page = store.list(pending, PageRequest::new()).await.expect("a store lists");
    let arrived = check.sent_to(ReplayTarget::Origin).await;
    for (number, letter) in (0..LETTERS).zip(check.dead(0..LETTERS)) {
        let is_pending = page.letters.iter().any(|found| found.id == letter.id);
        let has_arrived = arrived.contains_key(&number.to_string());
        assert!(!is_pending || !has_arrived, "{number} would be sent twice: {steps} steps");
    }
}

/// A letter that a killed replay has sent is sent or quarantined in a store that is filled later, and never sent from there again
/// (G6).
pub async fn g6_what_a_killed_replay_has_sent_is_not_pending_in_a_store<F: BrokerFixture>(
    check: Check<F>,
) {
    let steps = [1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32];
    beside_one_another(steps.map(|steps| Box::pin(stored(&check, steps)))).await;
}
