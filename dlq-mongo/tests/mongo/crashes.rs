//! Processes that die between two commands: nothing is half done, whoever comes next goes on, and a lost command or answer is
//! made up for.
//!
//! A scenario of calls runs through a network that fails at its first command, then at its second, and so on, until the
//! scenario has no further command. By default every fourth command is tried, another fourth by each test; all of them with
//! `DLQ_CRASH_ALL=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dlq_core::store::{
    Actor, ArchiveFilter, ArchiveRequest, AuditRequest, ClaimRequest, Claims as _, Cleanup,
    Control, Finish, Finished, ItemOutcome, Letters as _, Maintenance as _, Mark, OperationSpec,
    Operations as _, Selection, Sink as _,
};
use dlq_core::{Filter, LetterId, PageRequest, Resolution, StoreError};
use dlq_mongo::MongoStore;
use dlq_testkit::fixtures::{died_again, letter};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, TestDatabase, available, url};
use crate::proxy::{Proxy, Trouble};

const LETTERS: u64 = 7;
const LEASE: Duration = Duration::from_millis(1);
/// Time for which an open commit is waited for here.
const WAIT: Duration = Duration::from_millis(50);

/// Calls of every kind that writes several documents.
async fn scenario(store: &MongoStore) -> Result<(), StoreError> {
    let by = || Actor::new("ana");
    let ids = |from: u64, to: u64| {
        (from..to).fold(Filter::new(), |filter, n| filter.with_id(letter(n).id))
    };
    store.put((0..LETTERS).map(letter).collect()).await?;
    let spec = OperationSpec::replay(ids(0, 5)).canary(2);
    let operation = store.start(spec, by()).await?;
    let claims = store.claim(ClaimRequest::due(Vec::<String>::new(), 2, LEASE)).await?;
    let mut finishes = Vec::new();
    for claim in &claims {
        finishes.push((claim.token, Finish::Resolved(Resolution::Succeeded)));
    }
    store.finish(finishes).await?;
    let claims = store.claim(ClaimRequest::due(Vec::<String>::new(), 1, LEASE)).await?;
    for claim in &claims {
        let death = Finish::Dead(Box::new(died_again(&claim.letter)));
        store.finish(vec![(claim.token, death)]).await?;
    }
    store.put(vec![died_again(&letter(3))]).await?;
    store.control(operation.id, Control::Cancel, by()).await?;
    let selected = Selection::matching(ids(5, 7)).map_err(|_| unreachable!()).unwrap();
    store.mark(selected.clone(), Mark::Quarantined, by()).await?;
    store.delete(selected, by()).await?;
    store.undelete(ArchiveFilter::new().letters(ids(5, 7)), by()).await?;
    store.restore(vec![died_again(&letter(6))], by()).await?;
    let cleanup = Cleanup::older_than(Duration::ZERO);
    store.cleanup(cleanup, by()).await?;
    Ok(())
}

async fn documents(place: &TestDatabase, name: &str) -> Vec<Document> {
    use futures_util::TryStreamExt as _;
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let found = client.database(&place.name).collection::<Document>(&format!("dlq_{name}"));
    found.find(doc! {}).await.unwrap().try_collect().await.unwrap()
}

/// Nothing is locked, no commit is left, and operations agree with their letters.
async fn is_whole(place: &TestDatabase, store: &MongoStore) {
    let began = Instant::now();
    loop {
        store.sweep().await.unwrap();
        let mut left = documents(place, "commits").await;
        left.retain(|commit| commit.get_str("state").unwrap() != "void");
        if left.is_empty() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "commits stay: {left:?}");
        sleep(WAIT).await;
    }
    for name in ["letters", "operations", "schedules"] {
        for document in documents(place, name).await {
            assert!(!document.contains_key("lock"), "{name}: {document:?}");
            let is_whole = document.contains_key("status") || document.contains_key("state");
            assert!(is_whole || name == "schedules", "an empty document: {document:?}");
        }
    }
    for document in documents(place, "documents").await {
        assert!(!document.contains_key("lock") && document.contains_key("text"), "{document:?}");
    }
    let letters = store.list(Filter::new(), PageRequest::new().limit(1_000)).await.unwrap();
    assert!(letters.next.is_none());
    let held: BTreeMap<LetterId, _> = letters
        .letters
        .iter()
        .filter_map(|letter| Some((letter.id, (letter.state.operation?, letter.state.status))))
        .collect();
    for operation in store.operations(100).await.unwrap() {
        let items = store.items(operation.id, 0, 1_000).await.unwrap().items;
        let total = operation.progress.by_outcome.values().sum::<u64>();
        assert_eq!((operation.progress.total, total), (items.len() as u64, items.len() as u64));
        for item in &items {
            let is_in = held.get(&item.letter).is_some_and(|(of, _)| *of == operation.id);
            let is_open = matches!(item.outcome, ItemOutcome::Queued | ItemOutcome::Released);
            assert_eq!(is_in, is_open, "{item:?} of {operation:?}");
        }
        let indexes: BTreeSet<_> = items.iter().map(|item| item.index).collect();
        assert_eq!(indexes, (0..items.len() as u64).collect(), "items are numbered without a gap");
    }
    let stored = documents(place, "letters").await.len();
    assert_eq!(stored, letters.letters.len());
    let audit = store.audit(AuditRequest::latest(1_000)).await.unwrap();
    let starts = audit.iter().filter(|entry| entry.action == "replay").count();
    assert_eq!(starts, store.operations(100).await.unwrap().len(), "one entry for each: {audit:?}");
}

/// Each letter that may be deleted is in the store or in the archive, once.
async fn are_in_one_place(store: &MongoStore) {
    let stored = store.list(Filter::new(), PageRequest::new().limit(1_000)).await.unwrap().letters;
    let archived = store.archived(ArchiveRequest::latest(1_000)).await.unwrap().letters;
    let stored = stored.iter().map(|letter| letter.id);
    let all: Vec<_> = stored.chain(archived.iter().map(|it| it.letter.id)).collect();
    let places = [5, 6].map(|n| all.iter().filter(|id| **id == letter(n).id).count());
    let is_nothing_put = all.is_empty();
    assert_eq!(places, if is_nothing_put { [0, 0] } else { [1, 1] }, "{archived:?}");
}

/// Runs the scenario with a trouble at each command. Returns how many commands it has.
async fn with(trouble: Trouble, is_fatal: bool) -> usize {
    let is_all = std::env::var_os("DLQ_CRASH_ALL").is_some();
    let (mut at, step) = if is_all { (0, 1) } else { (trouble as usize, 4) };
    loop {
        let place = TestDatabase::fresh();
        let direct = place.builder().commit_timeout(WAIT).open().await.unwrap();
        let proxy = Proxy::before(url()).await;
        // One that goes on finds the server again, however busy the machine is.
        let patience = if is_fatal { "TimeoutMS=1000" } else { "TimeoutMS=30000" };
        let url = proxy.url.replace("TimeoutMS=1000", patience);
        let through = MongoStore::builder(url).database(&place.name).max_connections(2);
        let through = through.commit_timeout(WAIT).migrate(false).open().await.unwrap();
        proxy.trouble_after(at, trouble);
        let ran = scenario(&through).await;
        let is_over = proxy.is_troubling();
        // Where the process dies after the last call was decided, that has happened.
        if is_over || !is_fatal {
            ran.unwrap_or_else(|error| panic!("{trouble:?} at {at}: {error:?}"));
        }
        is_whole(&place, &direct).await;
        are_in_one_place(&direct).await;
        if is_fatal {
            goes_on(&direct).await;
            is_whole(&place, &direct).await;
        }
        if is_over {
            return at;
        }
        at += step;
    }
}

/// The messages come again, and everything that waits is run.
async fn goes_on(store: &MongoStore) {
    let stored = store.count(Filter::new()).await.unwrap();
    store.put((0..LETTERS).map(letter).collect()).await.unwrap();
    assert!(store.count(Filter::new()).await.unwrap() >= stored);
    let held: Vec<_> = store.operations(10).await.unwrap();
    for operation in held.iter().filter(|operation| !operation.state.is_final()) {
        // A canary that had failed stays stopped until somebody resumes it.
        store.control(operation.id, Control::Resume, Actor::new("ana")).await.unwrap();
    }
    let began = Instant::now();
    loop {
        let claims = store.claim(ClaimRequest::due(Vec::<String>::new(), 10, LEASE)).await.unwrap();
        if claims.is_empty() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it never ends");
        let finishes = claims
            .iter()
            .map(|claim| (claim.token, Finish::Resolved(Resolution::Succeeded)))
            .collect();
        let ended = store.finish(finishes).await.unwrap();
        assert!(ended.iter().all(|ended| *ended == Finished::Applied));
    }
    for operation in store.operations(10).await.unwrap() {
        assert!(operation.state.is_final(), "{operation:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_lost_is_sent_again() {
    if available() {
        let commands = with(Trouble::Lost, false).await;
        assert!(commands > 50, "{commands}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_made_up_for() {
    if available() {
        let commands = with(Trouble::Unanswered, false).await;
        assert!(commands > 50, "{commands}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_before_a_command_leaves_nothing_half_done() {
    if available() {
        with(Trouble::DiesBefore, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_after_a_command_leaves_nothing_half_done() {
    if available() {
        with(Trouble::DiesAfter, true).await;
    }
}
