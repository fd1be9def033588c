//! Operators' calls on very many letters go in pages: consumers work meanwhile, and a call that is dropped leaves whole
//! pages behind. `DLQ_LETTERS=300000` for more of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Control, Finish, ItemOutcome, Maintenance as _,
    Mark, OperationSpec, OperationState, Operations as _, Selection, Sink as _,
};
use dlq_core::{Filter, RetryQueue as _, Status, Timestamp};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{PATIENCE, Schema, available};
use crate::racing::counts_are_right;

const LEASE: Duration = Duration::from_secs(600);

fn letters() -> u64 {
    std::env::var("DLQ_LETTERS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

fn by() -> Actor {
    Actor::new("ana")
}

fn all() -> OperationSpec {
    OperationSpec::replay(Filter::new())
}

/// A store with so many letters, and a few retry records that are due.
async fn with(count: u64) -> (Schema, PostgresStore) {
    let schema = Schema::fresh();
    let store = schema.store().await;
    for start in (0..count).step_by(5_000) {
        store.put((start..count.min(start + 5_000)).map(letter).collect()).await.unwrap();
    }
    for n in count..count + 20 {
        store.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    }
    (schema, store)
}

/// Makes a call while a consumer claims and puts back, as fast as it can; no claim may wait for the whole call.
async fn while_claiming<T>(what: &str, schema: &Schema, call: impl Future<Output = T>) -> T {
    // Retry records alone: the others would be sent to it once all are frozen.
    let records: Vec<_> = (letters()..letters() + 20).map(|n| letter(n).id).collect();
    let (store, stop) = (schema.store().await, Arc::new(AtomicBool::new(false)));
    let mut consumer = JoinSet::new();
    consumer.spawn({
        let stop = Arc::clone(&stop);
        async move {
            let (mut calls, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::SeqCst) {
                let began = Instant::now();
                let mut request = ClaimRequest::due([CONSUMER], 5, LEASE);
                request.filter.ids.clone_from(&records);
                let claims = store.claim(request).await.unwrap();
                let back = Finish::Released { after: Duration::ZERO };
                let finishes = claims.iter().map(|claim| (claim.token, back.clone()));
                store.finish(finishes.collect()).await.unwrap();
                longest = longest.max(began.elapsed());
                calls += 1;
            }
            (calls, longest)
        }
    });
    let began = Instant::now();
    let answer = call.await;
    let took = began.elapsed();
    stop.store(true, Ordering::SeqCst);
    let (calls, longest) = consumer.join_next().await.unwrap().unwrap();
    println!("{what} took {took:?}; meanwhile {calls} claims, the longest {longest:?}");
    assert!(calls >= 5, "{what}: {calls} claims: the consumer stood still");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g4_claims_go_on_while_very_many_letters_are_marked_and_sent_back() {
    if !available() {
        return;
    }
    let count = letters();
    let (schema, store) = with(count).await;
    let mine = || Selection::matching(Filter::new().with_status(Status::Pending)).unwrap();
    let marked = while_claiming("mark", &schema, store.mark(mine(), Mark::Quarantined, by()));
    assert_eq!(marked.await.unwrap().changed, count);
    let held = Selection::matching(Filter::new().with_status(Status::Quarantined)).unwrap();
    let marked = while_claiming("mark", &schema, store.mark(held, Mark::Pending, by()));
    assert_eq!(marked.await.unwrap().changed, count);
    let entries = store.audit(AuditRequest::latest(2)).await.unwrap();
    let entries: Vec<_> =
        entries.iter().map(|entry| (entry.action.as_str(), entry.affected)).collect();
    assert_eq!(entries, [("release", count), ("quarantine", count)], "an entry for each call");
    let started = while_claiming("start", &schema, store.start(all(), by())).await.unwrap();
    assert_eq!(started.progress.total, count);
    let cancel = store.control(started.id, Control::Cancel, by());
    let cancelled = while_claiming("cancel", &schema, cancel).await.unwrap();
    assert_eq!(cancelled.progress.with_outcome(ItemOutcome::Skipped), count);
    assert_eq!(store.audit(AuditRequest::latest(1)).await.unwrap()[0].affected, count);
    counts_are_right(&schema).await;
}

/// G6: whoever starts an operation and goes away leaves one that sends nothing until somebody says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g6_a_start_that_is_dropped_sends_nothing_until_it_is_resumed() {
    if !available() {
        return;
    }
    let (schema, store) = with(20_000).await;
    let starter = schema.store().await;
    let mut start = JoinSet::new();
    start.spawn(async move { starter.start(all(), by()).await });
    let began = Instant::now();
    let operation = loop {
        match store.operations(1).await.unwrap().pop() {
            Some(operation) => break operation,
            None => assert!(began.elapsed() < PATIENCE, "it is never started"),
        }
        sleep(Duration::from_millis(1)).await;
    };
    start.shutdown().await;
    assert_eq!(operation.state, OperationState::Preparing);
    let request = || ClaimRequest::due([CONSUMER], 30, LEASE);
    let claims = timeout(PATIENCE, store.claim(request())).await.unwrap().unwrap();
    assert!(claims.iter().all(|claim| claim.continues), "it sends before it is prepared");
    // The page that was under way is committed or taken back; then nothing moves any more.
    let mut conn = schema.connect().await;
    let began = Instant::now();
    let at_work = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid() AND query LIKE $1)";
    while sqlx::query_scalar(at_work)
        .bind(format!("%\"{}\"%", schema.name))
        .fetch_one(&mut conn)
        .await
        .unwrap()
    {
        assert!(began.elapsed() < PATIENCE, "the database works for nobody");
        sleep(Duration::from_millis(10)).await;
    }
    let left = store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(left.state, OperationState::Preparing);
    assert!((1..20_000).contains(&left.progress.total), "{}", left.progress.total);
    let resumed = store.control(operation.id, Control::Resume, by()).await.unwrap();
    assert_eq!(
        (resumed.state, resumed.progress.total),
        (OperationState::Running, left.progress.total)
    );
    let claims = store.claim(request()).await.unwrap();
    assert_eq!(claims.len(), 30);
    let cancelled = store.control(operation.id, Control::Cancel, by()).await.unwrap();
    let skipped = cancelled.progress.with_outcome(ItemOutcome::Skipped);
    assert_eq!(skipped, left.progress.total - 30);
    let rest = store.start(all(), by()).await.unwrap();
    assert_eq!(rest.progress.total, 20_000 - 30);
    counts_are_right(&schema).await;
}
