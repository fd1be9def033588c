//! From an older version to the present one: while consumers work, after one that died, and many at once.

use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Letters as _, OperationSpec, Operations as _, Sink as _,
};
use dlq_core::{CrashMarks as _, Filter, StoreErrorKind};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, letter};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fixture::{PATIENCE, Schema, available};

const TO_VERSION_1: &str = "DROP INDEX dlq_events_by_subject; DROP INDEX dlq_events_by_type; DROP INDEX dlq_events_sending; \
                            DROP TABLE dlq_documents; DROP INDEX dlq_events_items_to_send; \
                            ALTER TABLE dlq_idempotency DROP COLUMN call; ALTER TABLE dlq_crash_marks DROP COLUMN call; \
                            UPDATE dlq_meta SET value = 1 WHERE name = 'version'";

/// Tables of version 1 with letters, and a store that was opened when they were new.
async fn of_version_1(letters: u64) -> (Schema, PostgresStore) {
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..letters).map(letter).collect()).await.unwrap();
    sqlx::raw_sql(TO_VERSION_1).execute(&mut schema.connect().await).await.unwrap();
    (schema, store)
}

async fn version(schema: &Schema) -> i64 {
    let sql = "SELECT value FROM dlq_meta WHERE name = 'version'";
    schema.connect().await.fetch_one(sql).await.unwrap().get(0)
}

/// The indexes of version 2 that are there, and whether they can be used.
async fn indexes(schema: &Schema) -> Vec<bool> {
    let sql = "SELECT indisvalid FROM pg_index \
               WHERE indexrelid IN (to_regclass('dlq_events_by_subject'), to_regclass('dlq_events_by_type'))";
    let rows = schema.connect().await.fetch_all(sql).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn is_migrated(schema: &Schema) {
    assert_eq!((version(schema).await, indexes(schema).await), (5, vec![true, true]));
    assert!(schema.builder().migration().await.unwrap().is_up_to_date());
}

/// A user who has written to the letters and not ended yet: an index waits for him.
async fn in_the_way(schema: &Schema) -> PgConnection {
    let mut conn = schema.connect().await;
    conn.execute("BEGIN").await.unwrap();
    conn.execute("UPDATE dlq_events SET crashes = crashes WHERE letter_id = (SELECT letter_id FROM dlq_events LIMIT 1)")
        .await
        .unwrap();
    conn
}

/// Who builds an index of this schema and waits for somebody, as soon as there is one.
async fn builder_that_waits(schema: &Schema) -> i32 {
    let sql = format!(
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%{}%' AND wait_event_type = 'Lock'",
        schema.name
    );
    found(schema, &sql).await
}

/// What a query finds, as soon as it finds something.
async fn found(schema: &Schema, sql: &str) -> i32 {
    let mut conn = schema.connect().await;
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            look.tick().await;
            if let Some(row) = conn.fetch_optional(AssertSqlSafe(sql)).await.unwrap() {
                return row.get(0);
            }
        }
    };
    timeout(PATIENCE, wait).await.expect("it comes to that")
}

/// Who holds the lock of those who migrate this schema, as soon as that is another one.
async fn migrates_other_than(schema: &Schema, pid: i32) -> i32 {
    let sql = format!(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid <> {pid} \
         AND (classid::bigint << 32) | objid::bigint = hashtextextended('\"{}\".\"dlq_meta\"', 0)",
        schema.name
    );
    found(schema, &sql).await
}

/// Letters are put, claimed and finished at each moment of a migration, and nobody waits for it.
#[tokio::test]
async fn consumers_work_while_indexes_are_built() {
    if !available() {
        return;
    }
    let (schema, store) = of_version_1(20).await;
    let spec = OperationSpec::replay(Filter::new());
    store.start(spec, Actor::new("ana")).await.unwrap();
    let mut user = in_the_way(&schema).await;
    let mut work = JoinSet::new();
    let builder = schema.builder();
    work.spawn(async move { builder.apply_migration().await });
    builder_that_waits(&schema).await;
    let consume = async {
        for n in 100..110 {
            store.put(vec![letter(n)]).await.unwrap();
            let request = ClaimRequest::due([CONSUMER], 1, Duration::from_secs(60));
            assert_eq!(store.claim(request).await.unwrap().len(), 1);
        }
    };
    timeout(PATIENCE, consume).await.expect("nobody waits for the migration");
    assert_eq!(version(&schema).await, 1, "it is still under way");
    user.execute("COMMIT").await.unwrap();
    let done = timeout(PATIENCE, work.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!((done.found, done.known, done.is_online()), (Some(1), 5, true));
    is_migrated(&schema).await;
    assert_eq!(store.count(Filter::new()).await.unwrap(), 30);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// The server's process that builds dies: half an index is left, the old version stands, and the next one begins again.
#[tokio::test]
async fn a_migration_that_died_half_way_is_run_again() {
    if !available() {
        return;
    }
    let (schema, store) = of_version_1(20).await;
    let mut user = in_the_way(&schema).await;
    let mut work = JoinSet::new();
    let builder = schema.builder();
    work.spawn(async move { builder.apply_migration().await });
    let pid = builder_that_waits(&schema).await;
    let kill = format!("SELECT pg_terminate_backend({pid})");
    schema.connect().await.execute(AssertSqlSafe(kill)).await.unwrap();
    let died = timeout(PATIENCE, work.join_next()).await.unwrap().unwrap().unwrap().unwrap_err();
    assert_eq!(died.kind(), StoreErrorKind::Unavailable, "{died}");
    assert_eq!((version(&schema).await, indexes(&schema).await), (1, vec![false]));
    store.put(vec![letter(100)]).await.unwrap();
    user.execute("ROLLBACK").await.unwrap();
    schema.builder().apply_migration().await.unwrap();
    is_migrated(&schema).await;
}

/// The process that migrates dies and the server goes on for a while with what it was told: who comes next waits for
/// that, and does not take for done what is not.
#[tokio::test]
async fn what_a_dead_process_left_running_is_not_taken_for_done() {
    if !available() {
        return;
    }
    for is_killed in [false, true] {
        let (schema, _store) = of_version_1(20).await;
        let mut user = in_the_way(&schema).await;
        let mut work = JoinSet::new();
        let builder = schema.builder();
        work.spawn(async move { builder.apply_migration().await });
        let orphan = builder_that_waits(&schema).await;
        let dead = migrates_other_than(&schema, 0).await;
        work.shutdown().await;
        let builder = schema.builder();
        work.spawn(async move { builder.apply_migration().await });
        migrates_other_than(&schema, dead).await;
        if is_killed {
            let kill = format!("SELECT pg_terminate_backend({orphan})");
            schema.connect().await.execute(AssertSqlSafe(kill)).await.unwrap();
        }
        user.execute("COMMIT").await.unwrap();
        timeout(PATIENCE, work.join_next()).await.unwrap().unwrap().unwrap().unwrap();
        is_migrated(&schema).await;
    }
}

#[tokio::test]
async fn many_may_migrate_at_once() {
    if !available() {
        return;
    }
    let (schema, _store) = of_version_1(20).await;
    // The only connection of the pool holds the lock, so that indexes have to be built on another.
    let migrate = || schema.builder().max_connections(1).apply_migration();
    for done in futures_util::future::join_all((0..8).map(|_| migrate())).await {
        done.unwrap();
    }
    is_migrated(&schema).await;
}

/// The command to type is that of this place, without the password.
#[tokio::test]
async fn an_older_schema_is_refused_where_nobody_may_migrate() {
    if !available() {
        return;
    }
    let (schema, _store) = of_version_1(1).await;
    let url = schema.url.replacen("postgres@", "postgres:s3cret@", 1);
    assert_ne!(url, schema.url);
    let error =
        PostgresStore::builder(url).schema(&schema.name).migrate(false).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    let command = "dlq migrate --apply --from 'postgres://postgres@127.0.0.1:";
    let (text, of_schema) = (error.to_string(), format!("?schema={}'", schema.name));
    assert!(text.contains(command) && text.contains(&of_schema), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!((version(&schema).await, indexes(&schema).await), (1, vec![]));
}

/// Users with rights on the tables of an earlier version need no other grant.
#[tokio::test]
async fn rights_on_the_letters_hold_for_new_tables() {
    if !available() {
        return;
    }
    let (schema, _store) = of_version_1(1).await;
    let (user, name) = (format!("{}_user", schema.name), &schema.name);
    let mut conn = schema.connect().await;
    let all = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {name} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {user}; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {user}"
    );
    sqlx::raw_sql(AssertSqlSafe(all)).execute(&mut conn).await.unwrap();
    schema.builder().apply_migration().await.unwrap();
    let url = schema.url.replacen("postgres@", &format!("{user}@"), 1);
    assert_ne!(url, schema.url);
    let theirs = PostgresStore::builder(url).schema(name.as_str()).migrate(false).open().await;
    let theirs = theirs.unwrap();
    // The letter leaves its group, which is kept in the new table.
    let mut anew = letter(0).with_generation(1);
    anew.fingerprint = dlq_core::Fingerprint::of("another", dlq_core::Reason::Manual, None);
    theirs.put(vec![anew]).await.unwrap();
    conn.execute(AssertSqlSafe(format!("DROP OWNED BY {user}; DROP ROLE {user}"))).await.unwrap();
}

/// Looking creates nothing.
#[tokio::test]
async fn what_is_to_be_done_is_said_without_doing_it() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let none = schema.builder().migration().await.unwrap();
    assert_eq!((none.found, none.steps.len(), none.is_online()), (None, 5, true));
    let exists = format!("SELECT to_regnamespace('{}') IS NOT NULL", schema.name);
    let exists = schema.connect().await.fetch_one(AssertSqlSafe(exists)).await.unwrap();
    assert!(!exists.get::<bool, _>(0), "looking creates no schema");
    let (schema, _store) = of_version_1(1).await;
    let one = schema.builder().migration().await.unwrap();
    assert_eq!((one.found, one.known, one.steps.len()), (Some(1), 5, 4));
    assert_eq!(version(&schema).await, 1);
    let mut conn = schema.connect().await;
    conn.execute("UPDATE dlq_meta SET value = 99 WHERE name = 'version'").await.unwrap();
    conn.close().await.unwrap();
    for error in [
        schema.builder().migration().await.unwrap_err(),
        schema.builder().apply_migration().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
    }
    assert_eq!(version(&schema).await, 99);
}

/// Whoever migrates waits for the index, and may be idle for as long as that takes.
#[tokio::test]
async fn an_index_may_take_longer_than_a_transaction_may_be_idle() {
    if !available() {
        return;
    }
    let (schema, _store) = of_version_1(20).await;
    let mut user = in_the_way(&schema).await;
    let mut work = JoinSet::new();
    let builder = schema.builder().statement_timeout(Duration::from_millis(500));
    let builder = builder.answer_timeout(Duration::from_secs(1));
    work.spawn(async move { builder.apply_migration().await });
    let builds = builder_that_waits(&schema).await;
    let long = "query_start < clock_timestamp() - interval '2 s'";
    found(&schema, &format!("SELECT pid FROM pg_stat_activity WHERE pid = {builds} AND {long}"))
        .await;
    user.execute("COMMIT").await.unwrap();
    timeout(PATIENCE, work.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    is_migrated(&schema).await;
}

/// A backup reads the tables of keys and marks for long: whoever claims would wait behind a migration that waits for it.
#[tokio::test]
async fn a_backup_keeps_a_migration_waiting_for_a_moment_and_nobody_else() {
    if !available() {
        return;
    }
    let (schema, _store) = of_version_1(1).await;
    let mut backup = schema.connect().await;
    backup.execute("BEGIN; LOCK TABLE dlq_crash_marks IN ACCESS SHARE MODE").await.unwrap();
    let error = schema.builder().apply_migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another holds a lock"), "{error}");
    backup.execute("COMMIT").await.unwrap();
    schema.builder().apply_migration().await.unwrap();
    is_migrated(&schema).await;
}

/// Tables that somebody has removed are made again on request, and letters are counted again where their counts were lost.
#[tokio::test]
async fn what_was_removed_is_made_again_and_counted() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..40).map(dlq_testkit::fixtures::varied).collect()).await.unwrap();
    store.start(OperationSpec::replay(Filter::new()).limit(1), Actor::new("ana")).await.unwrap();
    let claim = async || {
        let request = ClaimRequest::due(Vec::<String>::new(), 1, Duration::from_secs(60));
        store.claim(request).await.unwrap().remove(0).token
    };
    let fence = claim().await.fence;
    let before = store.stats(Filter::new()).await.unwrap();
    let removed = "DROP TABLE dlq_counts; DROP INDEX dlq_events_by_age; DROP INDEX dlq_events_by_key; \
                   DROP VIEW dlq_events_readable; DROP SEQUENCE dlq_fences; DROP TABLE dlq_crash_marks; \
                   DROP TRIGGER dlq_events_count_update ON dlq_events";
    sqlx::raw_sql(removed).execute(&mut schema.connect().await).await.unwrap();
    store.stats(Filter::new()).await.unwrap_err();
    let migration = schema.builder().migration().await.unwrap();
    assert!(!migration.is_up_to_date() && migration.steps.is_empty());
    assert_eq!(migration.missing.len(), 7, "{:?}", migration.missing);
    assert!(migration.missing.contains(&"table dlq_counts".to_owned()), "{:?}", migration.missing);
    assert_eq!(schema.builder().apply_migration().await.unwrap(), migration);
    assert!(schema.builder().migration().await.unwrap().is_up_to_date());
    assert_eq!(store.stats(Filter::new()).await.unwrap(), before);
    store.put(vec![letter(77)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), before.total + 1);
    assert_eq!(store.begin(letter(77).id).await.unwrap(), 0, "with all its columns");
    store.start(OperationSpec::replay(Filter::new()).limit(1), Actor::new("ana")).await.unwrap();
    assert!(claim().await.fence > fence, "no token is given out again");
    crate::racing::counts_are_right(&schema).await;
    // Nobody can tell that there were letters.
    sqlx::raw_sql("DROP TABLE dlq_events CASCADE")
        .execute(&mut schema.connect().await)
        .await
        .unwrap();
    let error = schema.builder().apply_migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("restore a backup"), "{error}");
}
