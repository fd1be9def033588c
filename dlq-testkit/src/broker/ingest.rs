//! From a broker into a store.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlq_core::ingest::{Incident, Ingest, IngestReport, Outcome};
use dlq_core::log::{Content, Entries, Entry};
use dlq_core::replay::ReplayOutcome;
use dlq_core::store::{Group, Letters, Receipt, Sink, Stats};
use dlq_core::{
    DeadLetter, Filter, LetterId, Page, PageRequest, Status, StoreError, StoreErrorKind,
};
use dlq_letters::memory::MemoryStore;
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::steps::{AT_ONCE, beside_one_another, rounds, run_for};
use super::{BrokerFixture, Check, ReplaySpec, ReplayTarget};

const STORE: &str = "sqlite:///dlq.db";

/// Opens a feed, and asks again where a process that has just died is still in the way.
async fn open<F: BrokerFixture>(check: &Check<F>, ends: bool) -> F::Feed {
    let opened = async {
        loop {
            match check.fixture.feed(STORE, ends).await {
                Ok(feed) => return feed,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    timeout(F::PATIENCE, opened).await.expect("a feed is opened")
}

/// The next letters; a broker that is away is asked again, as an ingest does.
async fn next<F: BrokerFixture>(feed: &mut F::Feed, limit: usize) -> Vec<Entry> {
    let next = async {
        loop {
            match feed.next(limit).await {
                Ok(fed) => return fed,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    timeout(F::PATIENCE, next).await.expect("letters come")
}

/// Confirms what was yielded. Returns false if it comes again instead.
async fn confirm<F: BrokerFixture>(feed: &mut F::Feed) -> bool {
    match timeout(F::PATIENCE, feed.confirm()).await.expect("the broker is told") {
        Ok(()) => true,
        Err(error) => {
            assert!(error.is_transient(), "{error}");
            false
        }
    }
}

fn ids(fed: &[Entry]) -> BTreeSet<LetterId> {
    let id = |fed: &Entry| match &fed.content {
        Content::Letter(letter) => Some(letter.id),
        _ => None,
    };
    fed.iter().filter_map(id).collect()
}

/// The letter that an incident is about.
fn letter_of(incident: &Incident) -> Option<LetterId> {
    Some(incident.letter.as_ref()?.letter)
}

fn ids_of(letters: &[DeadLetter]) -> BTreeSet<LetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

/// Everything up to the end.
async fn drain<F: BrokerFixture>(feed: &mut F::Feed) -> Vec<Entry> {
    let mut all = Vec::new();
    loop {
        let fed = next::<F>(feed, 100).await;
        if fed.is_empty() {
            return all;
        }
        all.extend(fed);
        confirm::<F>(feed).await;
    }
}

/// Puts every letter into this store.
async fn ingest<F: BrokerFixture>(
    check: &Check<F>,
    store: impl Sink + Letters,
) -> (IngestReport, Vec<Incident>) {
    let mut told = Vec::new();
    let mut ingest = Ingest::new(open(check, true).await, store);
    let tell = |incidents: &[Incident]| {
        told.extend_from_slice(incidents);
        Ok(())
    };
    let ran = timeout(F::PATIENCE, ingest.run(pending(), tell)).await.expect("it comes to the end");
    ran.expect("letters are put");
    (ingest.report().clone(), told)
}

async fn count(store: &MemoryStore, status: Status) -> u64 {
    store.count(Filter::new().with_status(status)).await.expect("a store counts")
}

/// Every letter is put once, as it was written, of several deaths the latest, and is told.
pub async fn each_letter_is_in_the_store_once<F: BrokerFixture>(check: Check<F>) {
    let dead = check.dead(0..50);
    check.bury_in_order(dead.clone()).await;
    let mut large = dead[7].clone();
    large.message = large.message.with_payload(Some(vec![b'x'; 100_000].into()));
    large.origin = check.fixture.origin(70);
    large.id = LetterId::of(&large.origin, large.message.published_at(), &large.consumer);
    let again = crate::fixtures::died_again(&dead[3]);
    check.bury_in_order(vec![large.clone(), again.clone()]).await;
    let store = MemoryStore::new();
    let (report, told) = ingest(&check, store.clone()).await;
    assert_eq!(report.with_outcome(Outcome::Stored), 51, "{report}");
    assert_eq!(report.with_outcome(Outcome::Reopened), 1, "{report}");
    assert_eq!(told.len(), 52);
    let others = dead.into_iter().filter(|letter| letter.id != again.id);
    let wanted: Vec<DeadLetter> = others.chain([large, again.clone()]).collect();
    for wanted in wanted {
        let found = store.get(wanted.id).await.expect("a store shows it").expect("it is there");
        assert_eq!(found.with_state(wanted.state.clone()), wanted);
    }
    let (report, told) = ingest(&check, store).await;
    assert_eq!((report.by_outcome.len(), told.len()), (0, 0), "all of it was confirmed: {report}");
}

/// An ingest that is killed at any of its steps loses nothing: the next one puts the rest, and every letter was told by one of
/// them at least (G1).
pub async fn g1_killed_at_any_step_nothing_is_lost_and_all_is_told<F: BrokerFixture>(
    check: Check<F>,
) {
    const LETTERS: u32 = 12;
    let check = &check;
    let killed = async |steps: u32| {
        let check = check.beside(steps).await;
        let dead = check.dead(0..LETTERS);
        check.bury(0..LETTERS).await;
        let (store, mut told) = (Failing::default(), BTreeSet::new());
        let mut ids = |incidents: &[Incident]| {
            told.extend(incidents.iter().filter_map(letter_of));
        };
        // Small batches let a kill fall between two of them.
        let mut first = Ingest::new(open(&check, true).await, store.clone()).batch(4);
        let ended = run_for(
            steps,
            pin!(first.run(pending(), |incidents| {
                ids(incidents);
                Ok(())
            })),
        )
        .await;
        // The feed dies with its process, so that the next one gets what was not confirmed.
        drop(first);
        if let Some(ended) = &ended {
            assert!(ended.is_ok(), "{ended:?}");
        }
        let (_, rest) = ingest(&check, store.clone()).await;
        ids(&rest);
        assert_eq!(told, ids_of(&dead), "killed after {steps} steps");
        let all = store.count(Filter::new()).await.expect("a store counts");
        assert_eq!(all, u64::from(LETTERS), "killed after {steps} steps");
        ended.is_some()
    };
    let (mut rounds, mut has_ended) = (rounds(), false);
    // More and more steps are granted until one ingest ends before it is killed.
    while !has_ended {
        let some = rounds.by_ref().take(AT_ONCE).map(|steps| Box::pin(killed(steps)));
        has_ended = beside_one_another(some).await.into_iter().any(|ended| ended);
    }
}

/// A confirmed letter does not come again, to whichever process; another one does, and says that it may have come before
/// (G1).
pub async fn g1_what_is_not_confirmed_comes_again_and_the_rest_does_not<F: BrokerFixture>(
    check: Check<F>,
) {
    let dead = check.dead(0..30);
    check.bury(0..30).await;
    let mut feed = open(&check, false).await;
    let first = next::<F>(&mut feed, 4).await;
    assert!(first.len() <= 4 && first.iter().all(|fed| !fed.again), "{first:?}");
    assert!(confirm::<F>(&mut feed).await, "nobody else has them");
    let lost = next::<F>(&mut feed, 4).await;
    drop(feed);

    let mut feed = open(&check, true).await;
    let rest = drain::<F>(&mut feed).await;
    assert!(ids(&rest).is_disjoint(&ids(&first)), "it was confirmed");
    assert_eq!(rest.len(), ids(&rest).len(), "each came once");
    assert_eq!(&ids(&rest) | &ids(&first), ids_of(&dead));
    let again: Vec<Entry> = rest.into_iter().filter(|fed| fed.again).collect();
    assert!(ids(&again).is_superset(&ids(&lost)), "what may have been stored says so");
    assert!(next::<F>(&mut feed, 5).await.is_empty(), "it stays ended");
    drop(feed);

    // It was left as it should be, so that what comes is new.
    check.bury(30..33).await;
    let new = drain::<F>(&mut open(&check, true).await).await;
    assert_eq!(ids(&new), ids_of(&check.dead(30..33)));
    assert!(new.iter().all(|fed| !fed.again), "{new:?}");
}

/// A call that is given up loses no letter and yields none twice.
pub async fn a_future_that_is_dropped_loses_nothing<F: BrokerFixture>(check: Check<F>) {
    let mut feed = match check.fixture.feed(STORE, false).await {
        Ok(feed) => feed,
        // There is nothing to open before the first letter.
        Err(error) if error.kind() == StoreErrorKind::NotFound => {
            check.bury(0..1).await;
            open(&check, false).await
        }
        Err(error) => panic!("{error}"),
    };
    let dead = check.dead(0..20);
    check.bury(0..20).await;
    let (mut seen, mut dropped) = (BTreeSet::new(), 0_u32);
    while seen.len() < 20 {
        dropped += 1;
        // Asked once and dropped, at each step anew.
        let fed = match feed.next(3).now_or_never() {
            Some(fed) => fed.expect("letters come"),
            // A broker over a network may never answer within one poll, so that some calls are awaited.
            None if dropped < 200 => {
                tokio::task::yield_now().await;
                continue;
            }
            None => next::<F>(&mut feed, 3).await,
        };
        seen.extend(ids(&fed));
        confirm::<F>(&mut feed).await;
    }
    assert_eq!(seen, ids_of(&dead));
}

/// The store's name is there before the first letter; for as long as it is, another store is a conflict. How far the letters
/// were confirmed is there, too.
pub async fn the_mark_is_there_from_the_first_moment<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..6).await;
    assert_eq!(check.fixture.marks().await, []);
    let mut feed = open(&check, false).await;
    let found = check.fixture.marks().await;
    assert_eq!((found.len(), found[0].store.as_str(), found[0].confirmed), (1, STORE, 0));
    let other = check.fixture.feed("sqlite:///other.db", false).await;
    let other = other.expect_err("another store is refused");
    assert_eq!(other.kind(), StoreErrorKind::Conflict, "{other}");
    assert!(other.to_string().contains(STORE), "{other}");
    let (mut seen, mut confirmed) = (BTreeSet::new(), 0);
    while seen.len() < 6 {
        seen.extend(ids(&next::<F>(&mut feed, 4).await));
        confirm::<F>(&mut feed).await;
        let now = check.fixture.marks().await[0].confirmed;
        assert!(now >= confirmed, "{now} after {confirmed}");
        confirmed = now;
    }
    drop(feed);
    // A broker may show its mark a while after it has answered.
    let told = async {
        while check.fixture.marks().await[0].confirmed < 6 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    timeout(F::PATIENCE, told).await.expect("it says that all six were confirmed");
    let other = check.fixture.feed("sqlite:///other.db", true).await;
    assert_eq!(other.err().map(|error| error.kind()), Some(StoreErrorKind::Conflict));
}

/// A store in memory that cannot be reached so many times, and refuses the letter of this text.
#[derive(Clone, Debug, Default)]
struct Failing {
    inner: MemoryStore,
    away: Arc<AtomicU32>,
    refuses: Option<&'static str>,
}

impl Sink for Failing {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        // As a store that takes a while to take them, and to say so.
        tokio::task::yield_now().await;
        let down = |left: u32| left.checked_sub(1);
        if self.away.fetch_update(Ordering::SeqCst, Ordering::SeqCst, down).is_ok() {
            // Every other time it has taken them before it goes away.
            if self.away.load(Ordering::SeqCst).is_multiple_of(2) {
                self.inner.put(letters).await?;
            }
            return Err(StoreError::new(StoreErrorKind::Unavailable, "put letters"));
        }
        let is_refused = |letter: &DeadLetter| {
            let payload = letter.message.payload();
            self.refuses.is_some_and(|text| payload.is_some_and(|payload| payload == text))
        };
        if letters.iter().any(is_refused) {
            return Err(StoreError::new(StoreErrorKind::Refused, "put letters"));
        }
        let receipts = self.inner.put(letters).await;
        tokio::task::yield_now().await;
        receipts
    }
}

impl Letters for Failing {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.inner.get(id).await
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.get_all(ids).await
    }

    fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<LetterId>, StoreError>> + Send {
        self.inner.with_prefix(digits, limit)
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.inner.list(filter, page).await
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.inner.count(filter).await
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        self.inner.groups(filter, limit).await
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.inner.stats(filter).await
    }
}

/// A store that is away, or takes letters and does not say so, is waited for; every letter is in it once.
pub async fn a_store_that_fails_is_waited_for<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..20).await;
    let store = Failing { away: Arc::new(AtomicU32::new(3)), ..Failing::default() };
    let (report, told) = ingest(&check, store.clone()).await;
    assert!(report.outages >= 3, "{report}");
    assert_eq!(count(&store.inner, Status::Pending).await, 20);
    let told: BTreeSet<LetterId> = told.iter().filter_map(letter_of).collect();
    assert_eq!(told.len(), 20, "also those that the store had taken before it went away");
    assert_eq!(drain::<F>(&mut open(&check, true).await).await.len(), 0, "all of it was confirmed");
}

/// A letter that the store does not take is told and set aside, and the others are stored.
pub async fn a_letter_that_the_store_refuses_is_set_aside<F: BrokerFixture>(check: Check<F>) {
    let dead = check.dead(0..10);
    check.bury(0..10).await;
    let store = Failing { refuses: Some("4"), ..Failing::default() };
    let (report, told) = ingest(&check, store.clone()).await;
    assert_eq!(report.with_outcome(Outcome::SetAside), 1, "{report}");
    assert_eq!(count(&store.inner, Status::Pending).await, 9);
    let aside: Vec<_> = told.iter().filter(|told| told.outcome == Outcome::SetAside).collect();
    let aside: Vec<_> = aside.iter().filter_map(|told| letter_of(told)).collect();
    assert_eq!(aside, [dead[4].id]);
    assert!(drain::<F>(&mut open(&check, true).await).await.is_empty(), "it blocks nobody");
}

/// An entry that nobody wrote as a letter blocks no letter before or after it.
pub async fn unreadable_entries_block_no_letter<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..3).await;
    let also = check.fixture.bury_unreadable().await;
    check.bury(3..6).await;
    let store = MemoryStore::new();
    let (report, _) = ingest(&check, store.clone()).await;
    let all = store.count(Filter::new()).await.expect("a store counts");
    assert_eq!(all, 6 + also, "{report}");
    for letter in check.dead(0..6) {
        assert!(store.get(letter.id).await.expect("a store shows it").is_some());
    }
    assert!(drain::<F>(&mut open(&check, true).await).await.is_empty(), "it is not fed again");
}

/// A letter that was sent back at the broker is `sent` in a store that is filled later, and another one is pending there (G6).
pub async fn g6_what_was_sent_back_is_sent_in_the_store<F: BrokerFixture>(check: Check<F>) {
    check.bury_in_order(check.dead(0..8)).await;
    assert_eq!(check.run(ReplaySpec::to_origin(1).limit(3)).await.sent, 3);
    let store = MemoryStore::new();
    ingest(&check, store.clone()).await;
    assert_eq!(count(&store, Status::Sent).await, 3);
    assert_eq!(count(&store, Status::Pending).await, 5);
    for letter in &check.dead(0..3) {
        let found = store.get(letter.id).await.expect("a store shows it").expect("it is there");
        assert_eq!((found.state.status, found.state.replays), (Status::Sent, 1));
    }
}

/// A replay that an ingest overtakes: what was sent is sent or quarantined in the store, and what is pending there was not
/// sent (G6).
pub async fn g6_what_a_running_replay_has_sent_is_not_pending_in_a_store<F: BrokerFixture>(
    check: Check<F>,
) {
    let letters = check.bury(0..40).await;
    let replay = check.fixture.replay(&letters, ReplaySpec::to_origin(1).rate(20));
    let (begun, store) = (Notify::new(), MemoryStore::new());
    let told = std::sync::Mutex::new(Vec::new());
    let sending = F::run(&replay, pending(), |id, outcome| {
        assert!(matches!(outcome, ReplayOutcome::Sent), "{outcome:?}");
        let mut told = told.lock().expect("nobody panics here");
        told.push(id);
        if told.len() == 10 {
            begun.notify_one();
        }
    });
    let ingesting = async {
        begun.notified().await;
        ingest(&check, store.clone()).await;
    };
    let (report, ()) = tokio::join!(sending, ingesting);
    let report = report.expect("a replay is run");
    // It may give way to the store.
    if report.sent < 40 {
        let stopped = report.stopped.as_ref().map(StoreError::kind);
        assert_eq!(stopped, Some(StoreErrorKind::Refused), "{report}");
    }
    let sent = told.into_inner().expect("nobody panics here");
    assert!(sent.len() >= 10);
    let dead = check.dead(0..40);
    let mut numbers = Vec::new();
    for (number, letter) in (0..).zip(&dead) {
        let found = store.get(letter.id).await.expect("a store shows it").expect("it is there");
        if sent.contains(&letter.id) {
            numbers.push(number);
            assert_ne!(found.state.status, Status::Pending, "{number} would be sent twice");
        } else {
            assert_ne!(found.state.status, Status::Sent, "{number} would not be sent");
        }
    }
    check.assert_once(ReplayTarget::Origin, numbers).await;
}

/// A feed waits for a broker that goes away, and loses nothing.
pub async fn a_restart_of_the_broker_is_waited_for<F: BrokerFixture>(check: Check<F>) {
    check.bury(0..20).await;
    let mut feed = open(&check, false).await;
    let mut seen = ids(&next::<F>(&mut feed, 5).await);
    confirm::<F>(&mut feed).await;
    if !check.fixture.restart().await {
        return check.left_out("the broker cannot be restarted");
    }
    check.bury(20..21).await;
    let dead = ids_of(&check.dead(0..21));
    while seen != dead {
        seen.extend(ids(&next::<F>(&mut feed, 5).await));
        confirm::<F>(&mut feed).await;
    }
}
