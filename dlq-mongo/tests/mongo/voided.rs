//! Locks of a void commit: they are taken away whoever dies, since claims pass over letters that are locked.

use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, Finished, Letters as _, OperationSpec,
    OperationState, Operations as _, Sink as _,
};
use dlq_core::{Filter, Resolution, Status, StoreError};
use dlq_mongo::MongoStore;
use dlq_testkit::fixtures::letter;
use mongodb::bson::{Document, doc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, TestDatabase, available, url};
use crate::proxy::{Proxy, Trouble};

/// Time for which an open commit is waited for here.
const WAIT: Duration = Duration::from_millis(50);
const LEASE: Duration = Duration::from_secs(3600);
const LETTERS: u32 = 3;

async fn behind(proxy: &Proxy, place: &TestDatabase) -> MongoStore {
    // Once it is dead, nothing comes through.
    let url = proxy.url.replace("TimeoutMS=1000", "TimeoutMS=100");
    let store = MongoStore::builder(url).database(&place.name).max_connections(2);
    store.commit_timeout(WAIT).migrate(false).open().await.unwrap()
}

async fn number_locked(place: &TestDatabase) -> u64 {
    let letters = place.database().await.collection::<Document>("dlq_letters");
    letters.count_documents(doc! { "lock": { "$exists": true } }).await.unwrap()
}

async fn commit(place: &TestDatabase) -> Option<Document> {
    let commits = place.database().await.collection::<Document>("dlq_commits");
    commits.find_one(doc! {}).await.unwrap()
}

/// Three letters of an operation, and a process that dies with its `at`th command while it claims them.
async fn dies_while_it_claims(at: usize) -> (TestDatabase, MongoStore, bool) {
    let place = TestDatabase::fresh();
    let direct = place.builder().commit_timeout(WAIT).open().await.unwrap();
    direct.put((0..LETTERS.into()).map(letter).collect()).await.unwrap();
    direct.start(OperationSpec::replay(Filter::new()), Actor::new("ana")).await.unwrap();
    let proxy = Proxy::before(url()).await;
    let dying = behind(&proxy, &place).await;
    proxy.trouble_after(at, Trouble::DiesAfter);
    let _ = dying.claim(ClaimRequest::due(Vec::<String>::new(), LETTERS, LEASE)).await;
    let has_died = !proxy.is_troubling();
    (place, direct, has_died)
}

/// The command after which everything is locked and nothing is decided.
async fn locked_and_undecided() -> usize {
    for at in 0.. {
        let (place, _direct, has_died) = dies_while_it_claims(at).await;
        assert!(has_died, "no command leaves locks behind");
        let commit = commit(&place).await;
        let is_open =
            commit.is_some_and(|commit| commit.get_str("state").is_ok_and(|it| it == "open"));
        if is_open && number_locked(&place).await == u64::from(LETTERS) {
            return at;
        }
    }
    unreachable!()
}

/// All letters are handed out, by claims alone, and run.
async fn all_are_handed_out(store: &MongoStore) -> Result<(), StoreError> {
    let (began, mut ended) = (Instant::now(), 0);
    while ended < LETTERS as usize {
        assert!(began.elapsed() < PATIENCE, "{ended} letters were handed out");
        let claims = store.claim(ClaimRequest::due(Vec::<String>::new(), LETTERS, LEASE)).await?;
        ended += claims.len();
        let end =
            |claim: &dlq_core::store::Claim| (claim.token, Finish::Resolved(Resolution::Succeeded));
        let ends = store.finish(claims.iter().map(end).collect()).await?;
        assert!(ends.iter().all(|end| *end == Finished::Applied));
        sleep(WAIT).await;
    }
    let operations = store.operations(1).await?;
    assert_eq!(operations[0].state, OperationState::Completed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_who_dies_while_it_takes_locks_away_leaves_no_letter_locked() {
    if !available() {
        return;
    }
    let at = locked_and_undecided().await;
    let mut is_over = false;
    for next in 0.. {
        let (place, direct, _) = dies_while_it_claims(at).await;
        let proxy = Proxy::before(url()).await;
        let dying = behind(&proxy, &place).await;
        // A sweep leaves alone what may be under way.
        sleep(WAIT * 3).await;
        proxy.trouble_after(next, Trouble::DiesAfter);
        let _ = dying.sweep().await;
        is_over = proxy.is_troubling();
        direct.sweep().await.unwrap();
        assert_eq!(number_locked(&place).await, 0, "after {next} commands");
        all_are_handed_out(&direct).await.unwrap();
        if is_over {
            break;
        }
    }
    assert!(is_over);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_who_locks_for_a_void_commit_and_dies_keeps_no_letter() {
    if !available() {
        return;
    }
    let at = locked_and_undecided().await;
    let (place, direct, _) = dies_while_it_claims(at).await;
    // As if it had been paused before it locked, and its commit had been made void meanwhile.
    let commits = place.database().await.collection::<Document>("dlq_commits");
    commits.update_one(doc! {}, doc! { "$set": { "state": "void" } }).await.unwrap();
    let operations = place.database().await.collection::<Document>("dlq_operations");
    operations.update_one(doc! {}, doc! { "$unset": { "lock": "" } }).await.unwrap();
    assert_eq!(number_locked(&place).await, u64::from(LETTERS));
    all_are_handed_out(&direct).await.unwrap();
}

/// A commit is decided by its owner between any two commands of somebody who takes it for left behind: it happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_its_owner_decides_meanwhile_is_written() {
    if !available() {
        return;
    }
    let at = locked_and_undecided().await;
    let mut decided = 0;
    for next in 0.. {
        let (place, direct, _) = dies_while_it_claims(at).await;
        let proxy = Proxy::before(url()).await;
        let other = behind(&proxy, &place).await;
        // A sweep leaves alone what may be under way.
        sleep(WAIT * 3).await;
        proxy.trouble_after(next, Trouble::Waits);
        let mut sweeps = JoinSet::new();
        sweeps.spawn(async move { other.sweep().await });
        let mut swept = None;
        while proxy.is_troubling() && swept.is_none() {
            swept = sweeps.try_join_next();
            sleep(Duration::from_millis(1)).await;
        }
        if let Some(swept) = swept {
            swept.unwrap().unwrap();
            break;
        }
        let commits = place.database().await.collection::<Document>("dlq_commits");
        let decide = doc! { "$set": { "state": "done" } };
        let is_decided = commits.update_one(doc! { "state": "open" }, decide).await.unwrap();
        proxy.go_on();
        sweeps.join_next().await.unwrap().unwrap().unwrap();
        sleep(WAIT * 3).await;
        direct.sweep().await.unwrap();
        assert_eq!(number_locked(&place).await, 0, "after {next} commands");
        let claimed = Filter::new().with_status(Status::Replaying);
        let claimed = direct.count(claimed).await.unwrap();
        if is_decided.modified_count == 1 {
            decided += 1;
            assert_eq!(claimed, u64::from(LETTERS), "lost after {next} commands");
        }
    }
    assert!(decided > 0);
}

/// A commit that was made void and swept while its owner stood still has not happened: its owner claims anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_commit_that_was_swept_has_not_happened() {
    if !available() {
        return;
    }
    let at = locked_and_undecided().await;
    let place = TestDatabase::fresh();
    let direct = place.builder().commit_timeout(WAIT).open().await.unwrap();
    direct.put((0..LETTERS.into()).map(letter).collect()).await.unwrap();
    direct.start(OperationSpec::replay(Filter::new()), Actor::new("ana")).await.unwrap();
    let proxy = Proxy::before(url()).await;
    let url = proxy.url.replace("TimeoutMS=1000", "TimeoutMS=60000");
    let slow = MongoStore::builder(url).database(&place.name).max_connections(2);
    let slow = slow.commit_timeout(WAIT).migrate(false).open().await.unwrap();
    proxy.trouble_after(at + 1, Trouble::Waits);
    let mut claiming = JoinSet::new();
    claiming.spawn(async move {
        slow.claim(ClaimRequest::due(Vec::<String>::new(), LETTERS, LEASE)).await
    });
    while proxy.is_troubling() {
        sleep(Duration::from_millis(1)).await;
    }
    let database = place.database().await;
    let commits = database.collection::<Document>("dlq_commits");
    let open = commits.find_one(doc! { "state": "open" }).await.unwrap();
    assert!(open.is_some(), "its next command decides");
    for name in ["dlq_letters", "dlq_operations"] {
        let unlock = doc! { "$unset": { "lock": "" } };
        database.collection::<Document>(name).update_many(doc! {}, unlock).await.unwrap();
    }
    commits.delete_many(doc! {}).await.unwrap();
    proxy.go_on();
    let claims = claiming.join_next().await.unwrap().unwrap().unwrap();
    let claimed = Filter::new().with_status(Status::Replaying);
    assert_eq!(direct.count(claimed).await.unwrap(), claims.len() as u64);
}
