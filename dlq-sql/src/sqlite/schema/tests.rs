use std::path::Path;

use dlq_core::store::{
    Actor, Edit, Letters, Maintenance, OperationSpec, Operations, Receipt, Sink,
};
use dlq_core::{DeadLetter, Filter, PageRequest};
use dlq_testkit::fixtures::{letter, varied};

use super::*;
use crate::sqlite::SqliteStore;

/// A file as the program of version 1 left it, with what is in the file `from`.
fn of_version_1(path: &Path, from: &Path) {
    let names = Names::new("dlq_events").unwrap();
    let conn = Connection::open(path).unwrap();
    conn.pragma_update(None, "journal_mode", "WAL").unwrap();
    conn.execute_batch(&version_1(&names)).unwrap();
    conn.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    conn.pragma_update(None, "user_version", 1).unwrap();
    conn.execute("ATTACH ?1 AS present", [from.to_str().unwrap()]).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(|row| row.unwrap()).collect()
    };
    for table in texts("SELECT name FROM main.sqlite_schema WHERE type = 'table'") {
        if table == names.meta {
            continue;
        }
        let columns = texts(&format!("SELECT name FROM pragma_table_info('{table}', 'main')"));
        let columns = columns.join(", ");
        conn.execute_batch(&format!(
            "INSERT INTO main.{table} ({columns}) SELECT {columns} FROM present.{table}"
        ))
        .unwrap();
    }
}

async fn everything(store: &SqliteStore) -> Vec<DeadLetter> {
    let page = PageRequest::new().limit(1_000);
    let mut all = Vec::new();
    for summary in store.list(Filter::new(), page).await.unwrap().letters {
        all.push(store.get(summary.id).await.unwrap().unwrap());
    }
    all
}

#[tokio::test]
async fn a_file_of_version_1_is_migrated_with_its_letters() {
    let folder = tempfile::tempdir().unwrap();
    let (present, old) = (folder.path().join("present.db"), folder.path().join("old.db"));
    let store = SqliteStore::open(&present).await.unwrap();
    store.put((0..40).map(varied).collect()).await.unwrap();
    let spec = OperationSpec::replay(Filter::new()).limit(5);
    let operation = store.start(spec, Actor::new("ana")).await.unwrap();
    let before = everything(&store).await;
    drop(store);
    of_version_1(&old, &present);

    let store = SqliteStore::open(&old).await.unwrap();
    assert_eq!(everything(&store).await, before);
    assert_eq!(store.operation(operation.id).await.unwrap(), Some(operation));
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    let original = &before[0];
    let edit = Edit::new().payload("{}").allow_invalid();
    let edited = store.edit(original.id, edit, Actor::new("ana")).await.unwrap();
    assert_eq!(store.put(vec![original.clone()]).await.unwrap(), [Receipt::Unchanged]);
    store.put(vec![letter(1_000)]).await.unwrap();
    drop(store);

    let store = SqliteStore::open(&old).await.unwrap();
    assert_eq!(store.get(edited.id).await.unwrap(), Some(edited));
    let conn = Connection::open(&old).unwrap();
    let found: i64 =
        conn.query_row("SELECT user_version FROM pragma_user_version", [], |r| r.get(0)).unwrap();
    assert_eq!(found, latest());
}

#[tokio::test]
async fn a_migration_that_died_half_way_is_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let (present, old) = (folder.path().join("present.db"), folder.path().join("old.db"));
    let store = SqliteStore::open(&present).await.unwrap();
    store.put((0..40).map(varied).collect()).await.unwrap();
    let before = everything(&store).await;
    drop(store);
    of_version_1(&old, &present);
    let names = Names::new("dlq_events").unwrap();
    {
        // What a process leaves that dies before its transaction is committed.
        let mut conn = Connection::open(&old).unwrap();
        let transaction = conn.transaction().unwrap();
        transaction.execute_batch(&version_2(&names)).unwrap();
    }
    let store = SqliteStore::open(&old).await.unwrap();
    assert_eq!(everything(&store).await, before);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

fn refuse(found: i64, known: i64) -> Option<Fault> {
    Some(super::super::migrate::refused(found, known, Some("dlq.db".as_ref())))
}

fn version_is(conn: &Connection, names: &Names, wanted: i64) {
    assert_eq!(version(conn, names).unwrap(), wanted);
    let user: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(user, wanted);
}

#[test]
fn every_step_says_what_it_does() {
    assert!(STEPS.iter().all(|step| !step.what.is_empty()));
}

const fn step(sql: fn(&Names) -> String) -> Step {
    Step { what: "a step of tomorrow", is_online: true, sql }
}

fn present() -> (Connection, Names) {
    let names = Names::new("dlq_events").unwrap();
    let mut conn = Connection::open_in_memory().unwrap();
    ensure(&mut conn, &names, refuse).unwrap();
    (conn, names)
}

/// The steps, and one more.
fn tomorrow(sql: fn(&Names) -> String) -> Vec<Step> {
    let steps = STEPS.iter().map(|Step { what, is_online, sql }| Step {
        what,
        is_online: *is_online,
        sql: *sql,
    });
    steps.chain([step(sql)]).collect()
}

#[test]
fn an_older_version_is_refused_where_nobody_may_migrate() {
    let (mut conn, names) = present();
    let today = latest();
    let steps = tomorrow(|names| format!("ALTER TABLE {} ADD COLUMN x", names.letters));
    let refused = climb(&mut conn, &names, &steps, refuse).unwrap_err();
    let text = refused.during("open the store").to_string();
    assert!(text.contains("dlq migrate --apply --from sqlite://dlq.db"), "{text}");
    version_is(&conn, &names, today);
    climb(&mut conn, &names, &steps, |_, _| None).unwrap();
    version_is(&conn, &names, today + 1);
    conn.prepare("SELECT x FROM dlq_events").unwrap();
}

#[test]
fn a_step_that_fails_half_way_leaves_the_old_version_and_can_be_run_again() {
    let (mut conn, names) = present();
    let today = latest();
    let broken = tomorrow(|_| "CREATE TABLE half (x); CREATE TABLE half (x)".to_owned());
    climb(&mut conn, &names, &broken, |_, _| None).unwrap_err();
    version_is(&conn, &names, today);
    conn.prepare("SELECT x FROM half").unwrap_err();
    let whole = tomorrow(|_| "CREATE TABLE half (x)".to_owned());
    climb(&mut conn, &names, &whole, |_, _| None).unwrap();
    version_is(&conn, &names, today + 1);
}

#[test]
fn what_was_dropped_is_missing() {
    let (conn, names) = present();
    assert_eq!(missing(&conn, &names).unwrap(), []);
    conn.execute_batch("DROP INDEX dlq_events_by_age; DROP VIEW dlq_events_readable").unwrap();
    let missing = missing(&conn, &names).unwrap();
    let names: Vec<_> = missing.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["dlq_events_by_age", "dlq_events_readable"]);
    conn.execute_batch(&missing[0].sql).unwrap();
}
