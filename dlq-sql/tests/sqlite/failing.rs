//! What happens when the file cannot be written: nothing is lost, nothing hangs, and the error says why.

use std::future::pending;
use std::time::Duration;

use dlq_core::ingest::{Ingest, Outcome};
use dlq_core::log::{Content, Entries, Entry};
use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Cleanup, ItemOutcome, Letters,
    Maintenance as _, Mark, OperationSpec, Operations as _, Receipt, Selection, Sink,
};
use dlq_core::{DeadLetter, Filter, Message, Origin, Position, StoreError, StoreErrorKind};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::{CONSUMER, letter, letter_of};
use rusqlite::Connection;
use tempfile::TempDir;

fn place() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let path = directory.path().join("dlq.db");
    (directory, path)
}

fn large(n: u64, bytes: usize) -> DeadLetter {
    letter_of(Message::new("orders.created", vec![b'x'; bytes]), n)
}

#[tokio::test]
async fn a_lock_is_waited_for_and_then_reported() {
    let (_directory, path) = place();
    let builder = SqliteStore::builder().path(&path).busy_timeout(Duration::from_millis(50));
    let store = builder.open().await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; DELETE FROM dlq_events").unwrap();
    let error = store.put(vec![letter(2)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.is_transient());
    assert!(error.to_string().contains("another connection holds the lock"), "{error}");
    // Reading goes on, and sees what was committed.
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1);
    assert!(store.get(letter(1).id).await.unwrap().is_some());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(store.put(vec![letter(2)]).await.unwrap(), [Receipt::Stored]);
}

#[tokio::test]
async fn a_lock_delays_opening_no_longer_than_allowed() {
    let (_directory, path) = place();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let builder = SqliteStore::builder().path(&path).busy_timeout(Duration::from_millis(50));
    let error = builder.clone().open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    builder.open().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_loses_nothing_that_was_confirmed() {
    let (_directory, path) = place();
    let store = SqliteStore::builder().path(&path).max_size(1024 * 1024).open().await.unwrap();
    let mut confirmed = Vec::new();
    let error = loop {
        let letters: Vec<_> = (0..5).map(|n| large(confirmed.len() as u64 + n, 10_000)).collect();
        let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
        match store.put(letters).await {
            Ok(_) => confirmed.extend(ids),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("full"), "{error}");
    assert!(confirmed.len() > 20);
    assert_eq!(store.count(Filter::new()).await.unwrap(), confirmed.len() as u64);
    for id in confirmed {
        assert!(store.get(id).await.unwrap().is_some());
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    drop(store);
    // With more room it goes on.
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.put(vec![large(1_000, 10_000)]).await.unwrap(), [Receipt::Stored]);
}

#[tokio::test]
async fn a_write_that_does_not_fit_does_not_fail_those_that_do() {
    let (_directory, path) = place();
    let store = SqliteStore::builder().path(&path).max_size(1024 * 1024).open().await.unwrap();
    let put = |letter| store.put(vec![letter]);
    let (one, huge, two) = tokio::join!(put(letter(1)), put(large(2, 2_000_000)), put(letter(3)));
    assert_eq!(one.unwrap(), [Receipt::Stored]);
    assert_eq!(huge.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(two.unwrap(), [Receipt::Stored]);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 2);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

#[cfg(unix)]
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_reported() {
    use std::os::unix::fs::PermissionsExt;

    let (directory, path) = place();
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(directory.path(), permissions).unwrap();
    };
    allow(0o555);
    if std::fs::write(directory.path().join("probe"), "x").is_ok() {
        eprintln!("skipped: this user may write everywhere, so no directory is read-only");
        return;
    }
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    allow(0o755);
    SqliteStore::open(&path).await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_the_store_usable() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).await.unwrap();
    for n in 0..50 {
        // Asked for, and never waited for.
        let mut put = std::pin::pin!(store.put(vec![letter(n)]));
        let waker = std::task::Waker::noop();
        let _ = put.as_mut().poll(&mut std::task::Context::from_waker(waker));
    }
    store.put(vec![letter(50)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 51);
    drop(store);
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 51);
}

/// G9: letters that are gone are in the audit, also where the work was cut off in the middle.
#[tokio::test]
async fn g9_what_was_deleted_before_a_failure_is_in_the_audit() {
    let (_directory, path) = place();
    let store = SqliteStore::builder().path(&path).open().await.unwrap();
    store.put((0..25).map(letter).collect()).await.unwrap();
    let by = || Actor::new("ana");
    store.mark(Selection::all(), Mark::Resolved, by()).await.unwrap();
    // The third batch fails in its middle, and what it had deleted is there again.
    let refuse = "CREATE TABLE deletes (n); CREATE TRIGGER refuse BEFORE DELETE ON dlq_events \
                  BEGIN SELECT RAISE(ABORT, 'full') WHERE (SELECT count(*) FROM deletes) = 22; \
                  INSERT INTO deletes VALUES (1); END";
    Connection::open(&path).unwrap().execute_batch(refuse).unwrap();
    let clean = || store.cleanup(Cleanup::older_than(Duration::ZERO).batch(10), by());
    let error = clean().await.unwrap_err();
    assert!(error.to_string().contains("20 letters were deleted before"), "{error}");
    let entry = store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.affected, entry.by), ("cleanup", 20, by()));
    assert_eq!(store.count(Filter::new()).await.unwrap(), 5);
    Connection::open(&path).unwrap().execute_batch("DROP TRIGGER refuse").unwrap();
    assert_eq!(clean().await.unwrap().deleted, 5);
    let all: Vec<_> = store
        .audit(AuditRequest::latest(10))
        .await
        .unwrap()
        .iter()
        .map(|entry| entry.affected)
        .collect();
    assert_eq!(all, [5, 20, 25], "one entry for each call");
}

/// Whoever deletes by hand leaves items behind that nobody can send.
#[tokio::test]
async fn an_operation_ends_whose_letters_were_deleted_by_hand() {
    let (_directory, path) = place();
    let store = SqliteStore::builder().path(&path).open().await.unwrap();
    store.put((0..7).map(letter).collect()).await.unwrap();
    let spec = OperationSpec::replay(Filter::new());
    let started = store.start(spec, Actor::new("ana")).await.unwrap();
    let delete = "DELETE FROM dlq_events WHERE item > 0";
    Connection::open(&path).unwrap().execute_batch(delete).unwrap();
    let claim = || store.claim(ClaimRequest::due([CONSUMER], 10, Duration::from_secs(3600)));
    assert_eq!(claim().await.unwrap().len(), 1);
    assert!(claim().await.unwrap().is_empty());
    let operation = store.operation(started.id).await.unwrap().unwrap();
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Queued), 0);
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Skipped), 6);
    let due = store.next_due(vec![CONSUMER.to_owned()]).await.unwrap().unwrap();
    assert!(due > started.updated_at.after(Duration::from_secs(600)), "it is asked for ever");
    let item = store.items(started.id, 6, 1).await.unwrap().items.remove(0);
    assert_eq!(item.why.as_deref(), Some("the letter is not there any more"));
}

/// A broker with these letters, and how many of them were confirmed.
#[derive(Debug)]
struct Broker {
    letters: Vec<DeadLetter>,
    yielded: usize,
    confirmed: usize,
}

impl Entries for &mut Broker {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let next = self.letters.iter().enumerate().skip(self.confirmed).take(limit);
        let fed: Vec<_> = next
            .map(|(n, letter)| Entry {
                place: Origin::new("memory", "DLQ", Position::Offset(n as u64)),
                again: false,
                content: Content::Letter(Box::new(letter.clone())),
            })
            .collect();
        self.yielded = fed.len();
        Ok(fed)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        self.confirmed += self.yielded;
        Ok(())
    }
}

/// A store that has lost its table is no store, and not one that refuses letters.
#[tokio::test]
async fn g1_an_ingest_confirms_nothing_while_the_table_is_gone() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("ALTER TABLE dlq_events RENAME TO gone").unwrap();
    let mut broker = Broker { letters: (0..20).map(letter).collect(), yielded: 0, confirmed: 0 };
    let mut ingest = Ingest::new(&mut broker, store.clone()).batch(5);
    let ran = ingest.run(pending(), |_| Ok(())).await;
    drop(ingest);
    assert_eq!(broker.confirmed, 0, "nothing is stored: {ran:?}");
    let error = ran.unwrap_err();
    assert!(error.to_string().contains("dlq migrate"), "{error}");

    other.execute_batch("ALTER TABLE gone RENAME TO dlq_events").unwrap();
    let mut ingest = Ingest::new(&mut broker, store.clone()).batch(5);
    ingest.run(pending(), |_| Ok(())).await.unwrap();
    drop(ingest);
    assert_eq!((broker.confirmed, store.count(Filter::new()).await.unwrap()), (20, 20));
}

/// A constraint of the operator is about the letters that it keeps out, and no others.
#[tokio::test]
async fn a_letter_that_a_constraint_keeps_out_is_set_aside_alone() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON dlq_events WHEN length(NEW.data) > 1000 \
                  BEGIN SELECT RAISE(ABORT, 'too large'); END";
    Connection::open(&path).unwrap().execute_batch(refuse).unwrap();
    let mut letters: Vec<_> = (0..20).map(letter).collect();
    letters[3] = large(3, 2_000);
    let error = store.put(vec![large(3, 2_000)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    let mut broker = Broker { letters, yielded: 0, confirmed: 0 };
    let mut ingest = Ingest::new(&mut broker, store.clone()).batch(5);
    ingest.run(pending(), |_| Ok(())).await.unwrap();
    assert_eq!(ingest.report().with_outcome(Outcome::SetAside), 1);
    assert_eq!(ingest.report().with_outcome(Outcome::Stored), 19);
}
