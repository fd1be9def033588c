//! Calls about many letters leave the one connection that writes to others now and then, and say where they were cut off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, ClaimToken, Claims, Control, ItemOutcome, Letters as _,
    Maintenance as _, Mark, OperationSpec, OperationState, Operations, Selection, Sink as _,
};
use dlq_core::{Filter, RetryQueue as _, Status, StoreErrorKind, Timestamp};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{CONSUMER, delayed_retry, letter};
use rusqlite::Connection;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(3_600);

struct Bench {
    _directory: TempDir,
    path: PathBuf,
    store: SqliteStore,
}

impl Bench {
    async fn with(letters: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dlq.db");
        let store = SqliteStore::open(&path).await.unwrap();
        store.put((0..letters).map(letter).collect()).await.unwrap();
        Self { _directory: directory, path, store }
    }

    fn tamper(&self, sql: &str) {
        let conn = Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::from_secs(60)).unwrap();
        conn.execute_batch(sql).unwrap();
    }

    async fn claimed(&self) -> usize {
        let request = ClaimRequest::due([CONSUMER], 10, LEASE);
        self.store.claim(request).await.unwrap().len()
    }
}

fn by() -> Actor {
    Actor::new("ana")
}

fn all() -> OperationSpec {
    OperationSpec::replay(Filter::new())
}

/// Renews a lease again and again until `work` is done. Returns how often.
async fn renewed<T>(
    store: &SqliteStore,
    token: ClaimToken,
    work: impl Future<Output = T>,
) -> (T, u32) {
    let (mut work, mut renewed) = (pin!(work), 0);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return (done, renewed),
            valid = store.extend(vec![token], LEASE) => {
                assert_eq!(valid.unwrap(), [true]);
                renewed += 1;
            }
        }
    }
}

/// A consumer renews its leases in between.
#[tokio::test]
async fn g4_leases_are_renewed_while_many_letters_are_changed() {
    const LETTERS: u64 = 12_000;
    let Bench { store, _directory, .. } = Bench::with(LETTERS).await;
    store.enqueue(delayed_retry(&letter(LETTERS), 1, Timestamp::EPOCH)).await.unwrap();
    let token = store.claim(ClaimRequest::due([CONSUMER], 1, LEASE)).await.unwrap()[0].token;
    let (started, while_started) = renewed(&store, token, store.start(all(), by())).await;
    let started = started.unwrap();
    assert_eq!((started.state, started.progress.total), (OperationState::Running, LETTERS));
    let cancel = store.control(started.id, Control::Cancel, by());
    let (cancelled, while_cancelled) = renewed(&store, token, cancel).await;
    let cancelled = cancelled.unwrap().progress.with_outcome(ItemOutcome::Skipped);
    assert_eq!(cancelled, LETTERS);
    let mark = store.mark(Selection::all(), Mark::Quarantined, by());
    let (marked, while_marked) = renewed(&store, token, mark).await;
    let marked = marked.unwrap();
    assert_eq!((marked.changed, marked.skipped), (LETTERS, 1));
    let renewals = [while_started, while_cancelled, while_marked];
    println!("renewals while {LETTERS} letters were started, cancelled, marked: {renewals:?}");
    assert!(renewals.iter().all(|renewals| *renewals >= 5), "{renewals:?}");
    let affected: Vec<_> = store
        .audit(AuditRequest::latest(3))
        .await
        .unwrap()
        .iter()
        .map(|entry| entry.affected)
        .collect();
    assert_eq!(affected, [LETTERS; 3], "one entry for each call");
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// An operation that was cut off while its letters were frozen sends nothing by itself, and can be resumed.
#[tokio::test]
async fn a_start_that_was_cut_off_stays_preparing() {
    let bench = Bench::with(2_500).await;
    bench.tamper(
        "CREATE TRIGGER refuse BEFORE INSERT ON dlq_operation_items WHEN NEW.idx = 1500
         BEGIN SELECT RAISE(ABORT, 'enough'); END",
    );
    bench.store.start(all(), by()).await.unwrap_err();
    bench.tamper("DROP TRIGGER refuse");
    let found = bench.store.operations(10).await.unwrap().remove(0);
    assert_eq!(found.state, OperationState::Preparing);
    assert_eq!(found.progress.total, found.progress.with_outcome(ItemOutcome::Queued));
    assert!(found.progress.total > 0 && found.progress.total < 2_500);
    assert_eq!(bench.claimed().await, 0);
    let other = bench.store.start(all(), by()).await.unwrap();
    assert_eq!(other.progress.total, 2_500 - found.progress.total, "the others are free");
    bench.store.control(other.id, Control::Cancel, by()).await.unwrap();
    let resumed = bench.store.control(found.id, Control::Resume, by()).await.unwrap();
    assert_eq!(resumed.state, OperationState::Running);
    assert_eq!(bench.claimed().await, 10);
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}

/// A cancel that fails in the middle has stopped the operation, and goes on when it is asked for again.
#[tokio::test]
async fn g6_a_cancel_that_was_cut_off_goes_on() {
    let bench = Bench::with(2_500).await;
    let operation = bench.store.start(all(), by()).await.unwrap();
    bench.tamper(
        "CREATE TRIGGER refuse BEFORE UPDATE ON dlq_operation_items WHEN NEW.idx = 1500
         BEGIN SELECT RAISE(ABORT, 'enough'); END",
    );
    let cancel = || bench.store.control(operation.id, Control::Cancel, by());
    cancel().await.unwrap_err();
    bench.tamper("DROP TRIGGER refuse");
    let found = bench.store.operation(operation.id).await.unwrap().unwrap();
    assert_eq!(found.state, OperationState::Cancelled);
    assert!(found.progress.with_outcome(ItemOutcome::Queued) > 0);
    assert_eq!(bench.claimed().await, 0);
    let found = cancel().await.unwrap();
    assert_eq!(found.progress.with_outcome(ItemOutcome::Skipped), 2_500);
    let entries = bench.store.audit(AuditRequest::latest(10)).await.unwrap();
    let cancelled = entries.iter().filter(|entry| entry.action == "cancel");
    assert_eq!(cancelled.map(|entry| entry.affected).sum::<u64>(), 2_500);
    assert_eq!(cancel().await.unwrap(), found, "there is nothing left to do");
    assert_eq!(bench.store.audit(AuditRequest::latest(10)).await.unwrap(), entries);
    assert_eq!(bench.store.start(all(), by()).await.unwrap().progress.total, 2_500);
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}

/// G9: what was marked before a failure is in the audit, and the error says so.
#[tokio::test]
async fn g9_what_was_marked_before_a_failure_is_in_the_audit() {
    let bench = Bench::with(2_500).await;
    bench.tamper(
        "CREATE TRIGGER refuse BEFORE UPDATE ON dlq_events WHEN NEW.seq = 1500
         BEGIN SELECT RAISE(ABORT, 'enough'); END",
    );
    let mark = || bench.store.mark(Selection::all(), Mark::Resolved, by());
    let error = mark().await.unwrap_err();
    assert_ne!(error.kind(), StoreErrorKind::Corrupt);
    let resolved = Filter::new().with_status(Status::Resolved);
    let marked = bench.store.count(resolved.clone()).await.unwrap();
    assert!(marked > 0 && marked < 2_500);
    let said = format!("{marked} letters were marked before");
    assert!(error.to_string().contains(&said), "{error}");
    let entry = bench.store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.affected), ("resolve", marked));
    bench.tamper("DROP TRIGGER refuse");
    assert_eq!(mark().await.unwrap().changed, 2_500 - marked);
    assert_eq!(bench.store.count(resolved).await.unwrap(), 2_500);
}
