//! What is about many letters: it keeps to portions, has the time it needs, and leaves a trace wherever it ends.

use std::time::Duration;

use dlq_core::store::{
    Actor, AuditRequest, ClaimRequest, Claims as _, Cleanup, Control, ItemOutcome, Letters as _,
    Maintenance as _, Mark, OperationSpec, OperationState, Operations as _, Selection, Sink as _,
};
use dlq_core::{Filter, Status, StoreErrorKind};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, letter};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::fixture::{Schema, available};

const LEASE: Duration = Duration::from_secs(60);

fn by() -> Actor {
    Actor::new("ana")
}

async fn sql(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

/// A store with so many letters, and a connection of a user's own.
async fn with(letters: u64) -> (Schema, PostgresStore, PgConnection) {
    let schema = Schema::fresh();
    let store = schema.store().await;
    for start in (0..letters).step_by(5_000) {
        store.put((start..letters.min(start + 5_000)).map(letter).collect()).await.unwrap();
    }
    let conn = schema.connect().await;
    (schema, store, conn)
}

/// G9: letters that are gone are in the audit, also where the work was cut off in the middle.
#[tokio::test]
async fn g9_what_was_deleted_before_a_failure_is_in_the_audit() {
    if !available() {
        return;
    }
    let (_schema, store, mut conn) = with(25).await;
    store.mark(Selection::all(), Mark::Resolved, by()).await.unwrap();
    sql(
        &mut conn,
        "CREATE SEQUENCE deletes;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
         $$BEGIN IF nextval('deletes') = 3 THEN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END IF; RETURN NULL; END$$;
         CREATE TRIGGER refuse BEFORE DELETE ON dlq_events FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    )
    .await;
    let clean = || store.cleanup(Cleanup::older_than(Duration::ZERO).batch(10), by());
    let error = clean().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("20 letters were deleted before"), "{error}");
    let entry = store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.affected, entry.by), ("cleanup", 20, by()));
    assert_eq!(store.count(Filter::new()).await.unwrap(), 5);
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

/// Not all letters of a cleanup are looked up first, however many there are.
#[tokio::test]
async fn a_cleanup_looks_some_batches_ahead() {
    if !available() {
        return;
    }
    let (_schema, store, mut conn) = with(35).await;
    store.mark(Selection::all(), Mark::Resolved, by()).await.unwrap();
    // While the first batch is deleted, others become old that come later.
    sql(
        &mut conn,
        "UPDATE dlq_events t SET updated_at = '2020-01-01'::timestamptz + n.n * interval '1 minute',
             status = CASE WHEN n.n BETWEEN 30 AND 34 THEN 'pending' ELSE t.status END
         FROM (SELECT letter_id, row_number() OVER (ORDER BY letter_id) n FROM dlq_events) n WHERE n.letter_id = t.letter_id;
         CREATE FUNCTION age() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
         $$BEGIN UPDATE dlq_events SET status = 'resolved' WHERE status = 'pending'; RETURN NULL; END$$;
         CREATE TRIGGER age AFTER DELETE ON dlq_events FOR EACH STATEMENT EXECUTE FUNCTION age()",
    )
    .await;
    let clean = Cleanup::older_than(Duration::ZERO).batch(1);
    assert_eq!(store.cleanup(clean, by()).await.unwrap().deleted, 35);
}

/// Letters that come while others are deleted are not hunted down: somebody may write faster than that.
#[tokio::test]
async fn a_delete_ends_while_letters_come() {
    if !available() {
        return;
    }
    let (_schema, store, mut conn) = with(2_500).await;
    sql(
        &mut conn,
        "CREATE TABLE likeness AS SELECT * FROM dlq_events LIMIT 1;
         CREATE SEQUENCE later;
         CREATE FUNCTION write() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
         $$BEGIN
             UPDATE likeness SET letter_id = decode(lpad(to_hex(nextval('later')), 32, '0'), 'hex'), created_at = clock_timestamp();
             INSERT INTO dlq_events SELECT * FROM likeness;
             RETURN NULL;
         END$$;
         CREATE TRIGGER write AFTER DELETE ON dlq_events FOR EACH STATEMENT EXECUTE FUNCTION write()",
    )
    .await;
    assert_eq!(store.delete(Selection::all(), by()).await.unwrap().changed, 2_500);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 3);
}

/// More letters than a statement has time for.
#[tokio::test]
async fn a_mark_of_many_letters_has_time() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 2_000;
    let (schema, store, mut conn) = with(LETTERS).await;
    store.start(OperationSpec::replay(Filter::new()).limit(7), by()).await.unwrap();
    sql(
        &mut conn,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
         $$BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END$$;
         CREATE TRIGGER wait AFTER UPDATE ON dlq_events FOR EACH STATEMENT EXECUTE FUNCTION wait()",
    )
    .await;
    // By the trigger each statement takes longer than this, and less than the ten times as long that it is given.
    let hurried = schema.builder().statement_timeout(Duration::from_secs(2)).open().await.unwrap();
    let marked = hurried.mark(Selection::all(), Mark::Resolved, by()).await.unwrap();
    assert_eq!((marked.changed, marked.skipped), (LETTERS, 0));
    let resolved = store.count(Filter::new().with_status(Status::Resolved)).await.unwrap();
    assert_eq!(resolved, LETTERS);
    let entry = store.audit(AuditRequest::latest(1)).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.affected), ("resolve", LETTERS));
    let operation = store.operations(1).await.unwrap().remove(0);
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Skipped), 7);
    assert_eq!(operation.state, OperationState::Completed);
    crate::racing::counts_are_right(&schema).await;
}

/// Whoever deletes by hand leaves items behind that nobody can send.
#[tokio::test]
async fn an_operation_ends_whose_letters_were_deleted_by_hand() {
    if !available() {
        return;
    }
    for (letters, is_gone, skipped) in
        [(3, "TRUNCATE dlq_events CASCADE", 3), (700, "DELETE FROM dlq_events WHERE item > 0", 699)]
    {
        let (_schema, store, mut conn) = with(letters).await;
        let started = store.start(OperationSpec::replay(Filter::new()), by()).await.unwrap();
        sql(&mut conn, is_gone).await;
        let claim = || store.claim(ClaimRequest::due([CONSUMER], 10, LEASE));
        let (mut claimed, mut calls) = (0, 0);
        while store
            .next_due(vec![CONSUMER.to_owned()])
            .await
            .unwrap()
            .is_some_and(|due| due <= started.updated_at.after(LEASE / 2))
        {
            claimed += claim().await.unwrap().len();
            calls += 1;
            assert!(calls < 20, "it is asked for ever");
        }
        assert_eq!(claimed as u64, letters - skipped);
        let operation = store.operation(started.id).await.unwrap().unwrap();
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Queued), 0);
        assert_eq!(operation.progress.with_outcome(ItemOutcome::Skipped), skipped);
        assert_eq!(operation.state == OperationState::Completed, skipped == letters);
        let item = store.items(started.id, letters - 1, 1).await.unwrap().items.remove(0);
        assert_eq!(item.why.as_deref(), Some("the letter is not there any more"));
    }
}

/// One claim sets some letters aside and ends; those that follow go on.
#[tokio::test]
async fn a_claim_sets_no_more_than_some_letters_aside() {
    if !available() {
        return;
    }
    const PAST: u64 = 1_500;
    let (_schema, store, mut conn) = with(PAST + 5).await;
    sql(
        &mut conn,
        "UPDATE dlq_events SET replays = 10 WHERE letter_id IN
             (SELECT letter_id FROM dlq_events ORDER BY created_at, letter_id LIMIT 1500)",
    )
    .await;
    let spec = OperationSpec::replay(Filter::new()).canary(5);
    let started = store.start(spec, by()).await.unwrap();
    let skipped = async || {
        let operation = store.operation(started.id).await.unwrap().unwrap();
        operation.progress.with_outcome(ItemOutcome::Skipped)
    };
    let (mut claimed, mut before) = (0, 0);
    while claimed < 5 {
        let now = store.next_due(vec![CONSUMER.to_owned()]).await.unwrap();
        assert!(now.is_some(), "{before} were set aside and nobody asks on");
        claimed += store.claim(ClaimRequest::due([CONSUMER], 10, LEASE)).await.unwrap().len();
        let now = skipped().await;
        assert!(now - before <= 600, "{} were set aside at once", now - before);
        assert!(claimed > 0 || now > before, "it does not go on");
        before = now;
    }
    assert_eq!(skipped().await, PAST);
}

/// What the manual says removes what has ended, and nothing that goes on.
#[tokio::test]
async fn what_operations_and_operators_left_is_removed_as_the_manual_says() {
    if !available() {
        return;
    }
    let (_schema, store, mut conn) = with(10).await;
    let start = async |limit| {
        store.start(OperationSpec::replay(Filter::new()).limit(limit), by()).await.unwrap()
    };
    let (ended, running) = (start(4).await, start(3).await);
    store.control(ended.id, Control::Cancel, by()).await.unwrap();
    let manual = include_str!("../../README.md");
    let said = manual.split("**Retention**").nth(1).unwrap().split("```").nth(1).unwrap();
    let said = said.strip_prefix("sql").unwrap();
    sql(&mut conn, said).await;
    assert_eq!(store.operations(10).await.unwrap().len(), 2, "all of it is new");
    let now = said
        .replace("interval '90 days'", "interval '0'")
        .replace("interval '1 year'", "interval '0'");
    sql(&mut conn, &now).await;
    assert_eq!(store.operations(10).await.unwrap(), std::slice::from_ref(&running));
    assert_eq!(store.items(running.id, 0, 10).await.unwrap().items.len(), 3);
    assert!(store.items(ended.id, 0, 10).await.is_err());
    assert!(store.audit(AuditRequest::latest(10)).await.unwrap().is_empty());
    store.control(running.id, Control::Cancel, by()).await.unwrap();
}
