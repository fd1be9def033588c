//! Cancelling an operation that runs: its consumers go on with everything else meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Cluster, Control, Dispatch as _, Dispatched,
    Finish, Finished, ItemOutcome, Letters as _, Maintenance as _, OperationSpec, OperationState,
    Operations as _, Sink as _, TakeRequest, Target,
};
use dlq_core::{Filter, Resolution, RetryQueue as _, Status, StoreErrorKind, Timestamp};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::fixture::{PATIENCE, Schema, available};
use crate::racing::{counts_are_right, until_blocked};

const LEASE: Duration = Duration::from_secs(600);

fn by() -> Actor {
    Actor::new("ana")
}

async fn sql(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

fn all() -> OperationSpec {
    OperationSpec::replay(Filter::new())
}

/// Puts letters 0 to `count`.
async fn bury(store: &PostgresStore, count: u64) {
    for start in (0..count).step_by(5_000) {
        store.put((start..count.min(start + 5_000)).map(letter).collect()).await.unwrap();
    }
}

/// Puts retry records that are due, so many after letter `first`.
async fn enqueue(store: &PostgresStore, first: u64, count: u64) {
    for n in first..first + count {
        store.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    }
}

/// While a cancel stands still in the middle of its letters, its consumer is given whatever else is due, and nothing of the
/// operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g4_claims_go_on_while_an_operation_is_cancelled() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    bury(&store, 50).await;
    let operation = store.start(all(), by()).await.unwrap();
    enqueue(&store, 100, 3).await;
    let claim = || timeout(PATIENCE, store.claim(ClaimRequest::due([CONSUMER], 1, LEASE)));
    let mut gate = schema.connect().await;
    let mut watch = schema.connect().await;
    let gated = format!(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
         $$BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext('{0}')); RETURN NULL; END$$;
         CREATE TRIGGER wait AFTER UPDATE ON dlq_operation_items FOR EACH ROW WHEN (NEW.why = 'cancelled')
             EXECUTE FUNCTION wait();
         SELECT pg_advisory_lock(hashtext('{0}'))",
        schema.name
    );
    sql(&mut gate, &gated).await;
    let canceller = store.clone();
    let mut cancel = JoinSet::new();
    cancel.spawn(async move { canceller.control(operation.id, Control::Cancel, by()).await });
    until_blocked(&mut watch, &schema).await;
    for _ in 0..3 {
        // More than is due, so that operations are asked too.
        let request = ClaimRequest::due([CONSUMER], 10, LEASE);
        let claims = timeout(PATIENCE, store.claim(request)).await.expect("the claim stands still");
        let claims = claims.unwrap();
        assert!(claims.iter().all(|claim| claim.continues), "the operation goes on sending");
        for claim in claims {
            let released = Finish::Released { after: Duration::ZERO };
            store.finish(vec![(claim.token, released)]).await.unwrap();
        }
    }
    assert_eq!(claim().await.expect("the claim stands still").unwrap().len(), 1);
    let seen = store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(seen.state, OperationState::Cancelled, "the state comes first");
    assert!(cancel.try_join_next().is_none(), "it waits");
    gate.execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let cancelled = timeout(PATIENCE, cancel.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(cancelled.progress.with_outcome(ItemOutcome::Skipped), 50);
    let entry = store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.affected), ("cancel", 50));
    counts_are_right(&schema).await;
}

/// A letter that is put back while its operation is being cancelled is taken out of it: the cancel passes over what is on its
/// way, and whoever puts it back sees that nobody is going to send it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_a_letter_that_is_put_back_during_a_cancel_is_not_left_behind() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    bury(&store, 1).await;
    let cluster = Cluster::new("memory", "default");
    let spec = all().target(Target::Origin, [cluster.clone()]);
    let operation = store.start(spec, by()).await.unwrap();
    let senders = BTreeMap::from([(cluster, "sender".to_owned())]);
    let taken = store.take(TakeRequest::new(operation.id, 1, LEASE, senders)).await.unwrap();
    // A cancel that has changed the state, and is about to commit.
    let mut cancel = schema.connect().await;
    sql(&mut cancel, "BEGIN; UPDATE dlq_operations SET state = 'cancelled'").await;
    let (sender, token) = (store.clone(), taken.letters[0].token);
    let mut record = JoinSet::new();
    record.spawn(async move { sender.record(vec![(token, Dispatched::Later)]).await });
    let mut watch = schema.connect().await;
    tokio::select! {
        () = until_blocked(&mut watch, &schema) => {}
        done = record.join_next() => panic!("it did not wait for the cancel: {done:?}"),
    }
    sql(&mut cancel, "COMMIT").await;
    let recorded = timeout(PATIENCE, record.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(recorded, [Finished::Applied]);
    let left = store.get(letter(0).id).await.unwrap().unwrap();
    assert_eq!((left.state.status, left.state.operation), (Status::Pending, None));
    let items = store.items(operation.id, 0, 10).await.unwrap().items;
    assert_eq!(items[0].outcome, ItemOutcome::Skipped);
}

/// Letters that others have locked are passed over, and not taken for letters that are gone: looking for such among many
/// would hold up every claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g4_a_claim_does_not_look_for_orphans_among_locked_letters() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    bury(&store, 20).await;
    let operation = store.start(all(), by()).await.unwrap();
    let mut conn = schema.connect().await;
    // Also an update of no row is one.
    let counted = "CREATE SEQUENCE looks;
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
         $$BEGIN PERFORM nextval('looks'); RETURN NULL; END$$;
         CREATE TRIGGER look BEFORE UPDATE ON dlq_operation_items FOR EACH STATEMENT EXECUTE FUNCTION look()";
    sql(&mut conn, counted).await;
    let mut locks = schema.connect().await;
    locks.execute("BEGIN; SELECT FROM dlq_events FOR UPDATE").await.unwrap();
    let claim = || store.claim(ClaimRequest::due([CONSUMER], 10, LEASE));
    assert!(claim().await.unwrap().is_empty());
    let looks = "SELECT is_called FROM looks";
    let looked: bool = sqlx::query_scalar(looks).fetch_one(&mut conn).await.unwrap();
    assert!(!looked, "it looked for letters that are gone");
    locks.execute("ROLLBACK").await.unwrap();
    assert_eq!(claim().await.unwrap().len(), 10);
    let found = store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(found.progress.with_outcome(ItemOutcome::Queued), 10);
}

/// A cancel that fails in the middle has stopped the operation, and goes on when it is asked for again.
#[tokio::test]
async fn g6_a_cancel_that_was_cut_off_goes_on() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 2_500;
    let schema = Schema::fresh();
    let store = schema.store().await;
    bury(&store, LETTERS).await;
    let operation = store.start(all(), by()).await.unwrap();
    let mut conn = schema.connect().await;
    let failing = "CREATE SEQUENCE batches;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
         $$BEGIN IF nextval('batches') = 2 THEN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END IF; RETURN NULL; END$$;
         CREATE TRIGGER refuse BEFORE UPDATE ON dlq_operation_items FOR EACH STATEMENT EXECUTE FUNCTION refuse()";
    sql(&mut conn, failing).await;
    let cancel = || store.control(operation.id, Control::Cancel, by());
    assert_eq!(cancel().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    let found = store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(found.state, OperationState::Cancelled);
    assert!(found.progress.with_outcome(ItemOutcome::Queued) > 0);
    assert!(store.claim(ClaimRequest::due([CONSUMER], 10, LEASE)).await.unwrap().is_empty());
    let found = cancel().await.unwrap();
    assert_eq!(found.progress.with_outcome(ItemOutcome::Skipped), LETTERS);
    let entries = store.audit(AuditRequest::latest(10)).await.unwrap();
    let cancelled = entries.iter().filter(|entry| entry.action == "cancel");
    assert_eq!(cancelled.map(|entry| entry.affected).sum::<u64>(), LETTERS);
    assert_eq!(cancel().await.unwrap(), found, "there is nothing left to do");
    assert_eq!(store.audit(AuditRequest::latest(10)).await.unwrap(), entries);
    assert_eq!(store.start(all(), by()).await.unwrap().progress.total, LETTERS);
    counts_are_right(&schema).await;
}

/// A consumer that works at an operation of many letters goes on working while that is cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g4_a_consumer_works_while_a_large_operation_is_cancelled() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 30_000;
    let schema = Schema::fresh();
    let store = schema.store().await;
    bury(&store, LETTERS).await;
    enqueue(&store, LETTERS, 20).await;
    let operation = store.start(all(), by()).await.unwrap();
    let (stop, working) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
    let mut consumer = JoinSet::new();
    consumer.spawn({
        let (store, stop, working) =
            (schema.store().await, Arc::clone(&stop), Arc::clone(&working));
        async move {
            // When each claim and what finished it ended, and how long both took.
            let mut calls = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let began = Instant::now();
                let claims = store.claim(ClaimRequest::due([CONSUMER], 40, LEASE)).await.unwrap();
                let finish = |continues| match continues {
                    true => Finish::Released { after: Duration::ZERO },
                    false => Finish::Resolved(Resolution::Succeeded),
                };
                let finishes = claims.iter().map(|claim| (claim.token, finish(claim.continues)));
                store.finish(finishes.collect()).await.unwrap();
                calls.push((Instant::now(), began.elapsed()));
                if calls.len() == 5 {
                    working.notify_one();
                }
            }
            calls
        }
    });
    timeout(PATIENCE, working.notified()).await.expect("the consumer works");
    let began = Instant::now();
    let cancelled = store.control(operation.id, Control::Cancel, by()).await.unwrap();
    let ended = Instant::now();
    stop.store(true, Ordering::SeqCst);
    let calls = consumer.join_next().await.unwrap().unwrap();
    let alone = calls.iter().filter(|(at, _)| *at < began).map(|(_, took)| *took).max();
    let during: Vec<_> =
        calls.iter().filter(|(at, took)| *at > began && *at - *took < ended).collect();
    let inside = during.iter().filter(|(at, _)| *at < ended).count();
    println!(
        "cancel of {} letters took {:?}; meanwhile {inside} claims were made and finished, the longest in {:?} (before: {:?})",
        cancelled.progress.with_outcome(ItemOutcome::Skipped),
        ended - began,
        during.iter().map(|(_, took)| *took).max().unwrap_or_default(),
        alone.unwrap_or_default(),
    );
    assert_eq!(cancelled.state, OperationState::Cancelled);
    assert!(cancelled.progress.with_outcome(ItemOutcome::Skipped) > LETTERS / 2);
    assert!(inside >= 10, "{inside} claims in {:?}: the consumer stood still", ended - began);
    counts_are_right(&schema).await;
}
