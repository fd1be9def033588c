//! The version of the schema: looked at, migrated, refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use dlq_core::Filter;
use dlq_core::StoreErrorKind;
use dlq_core::store::{Letters, Sink};
use dlq_sql::sqlite::{SqliteBuilder, SqliteStore};
use dlq_testkit::fixtures::letter;
use rusqlite::Connection;
use tempfile::TempDir;

fn at(path: &Path) -> SqliteBuilder {
    SqliteStore::builder().path(path)
}

/// A file of this program's version; the odd name has to be escaped.
async fn file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("what? 100% #1 é.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    (directory, path)
}

/// Everything in the folder, byte for byte.
fn bytes(directory: &TempDir) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(directory.path()).unwrap();
    let mut all: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    all.sort();
    all
}

/// Makes it say that it is of another version.
fn pretend(path: &Path, version: i64) {
    let conn = Connection::open(path).unwrap();
    conn.execute("UPDATE dlq_meta SET value = ?1 WHERE name = 'version'", [version]).unwrap();
    conn.pragma_update(None, "user_version", version).unwrap();
}

#[tokio::test]
async fn looking_changes_nothing() {
    let (directory, path) = file().await;
    let before = bytes(&directory);
    let migration = at(&path).migration().await.unwrap();
    assert_eq!((migration.found, migration.is_up_to_date()), (Some(migration.known), true));
    let error = at(&directory.path().join("no.db")).migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    assert!(bytes(&directory) == before, "the folder was changed");
}

#[tokio::test]
async fn looking_sees_what_stands_in_the_log_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let _open = SqliteStore::open(&path).await.unwrap();
    assert!(directory.path().join("dlq.db-wal").exists());
    let migration = at(&path).migration().await.unwrap();
    assert_eq!(migration.found, Some(migration.known));
}

#[tokio::test]
async fn an_empty_file_has_every_step_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    std::fs::write(&path, "").unwrap();
    let migration = at(&path).migration().await.unwrap();
    assert_eq!(migration.found, None);
    let versions: Vec<_> = migration.steps.iter().map(|step| step.version).collect();
    assert_eq!(versions, (1..=migration.known).collect::<Vec<_>>());
    assert!(migration.is_online());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    assert_eq!(at(&path).apply_migration().await.unwrap(), migration);
    assert!(at(&path).migration().await.unwrap().is_up_to_date());
    assert_eq!(SqliteStore::open(&path).await.unwrap().count(Filter::new()).await.unwrap(), 0);
}

#[tokio::test]
async fn applying_creates_no_file_and_leaves_other_databases_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("no.db");
    let error = at(&path).apply_migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    assert!(!path.exists());
    let theirs = directory.path().join("theirs.db");
    Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let before = bytes(&directory);
    for error in [
        at(&theirs).migration().await.unwrap_err(),
        at(&theirs).apply_migration().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains("another program"), "{error}");
    }
    assert!(bytes(&directory) == before);
}

#[tokio::test]
async fn a_newer_schema_is_not_migrated() {
    let (_directory, path) = file().await;
    pretend(&path, 99);
    for error in
        [at(&path).migration().await.unwrap_err(), at(&path).apply_migration().await.unwrap_err()]
    {
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains("version 99"), "{error}");
    }
}

/// Without migration only what is older is refused: what is present opens, and what is new is created.
#[tokio::test]
async fn opening_may_be_told_not_to_migrate() {
    let (directory, path) = file().await;
    let store = at(&path).migrate(false).open().await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1);
    drop(store);
    at(&directory.path().join("new.db")).migrate(false).open().await.unwrap();
}

/// Tables that somebody has removed are made again on request, and letters are counted again where their counts were lost.
#[tokio::test]
async fn what_was_removed_is_made_again_and_counted() {
    let (_directory, path) = file().await;
    let store = SqliteStore::open(&path).await.unwrap();
    store.put((2..40).map(dlq_testkit::fixtures::varied).collect()).await.unwrap();
    let before = store.stats(Filter::new()).await.unwrap();
    drop(store);
    let tamper = |sql: &str| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    tamper("DROP TABLE dlq_counts; DROP INDEX dlq_events_by_age; DROP VIEW dlq_events_readable");
    let store = SqliteStore::open(&path).await.unwrap();
    store.stats(Filter::new()).await.unwrap_err();
    let migration = at(&path).migration().await.unwrap();
    assert!(!migration.is_up_to_date() && migration.steps.is_empty());
    let missing = ["index dlq_events_by_age", "table dlq_counts", "view dlq_events_readable"];
    assert_eq!(migration.missing, missing);
    assert_eq!(at(&path).apply_migration().await.unwrap(), migration);
    assert!(at(&path).migration().await.unwrap().is_up_to_date());
    // Also who had it open goes on.
    assert_eq!(store.stats(Filter::new()).await.unwrap(), before);
    assert_eq!(store.count(Filter::new()).await.unwrap(), before.total);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    store.put(vec![letter(77)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), before.total + 1);
    tamper("PRAGMA foreign_keys = OFF; DROP TABLE dlq_events");
    let error = at(&path).apply_migration().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("restore a backup"), "{error}");
}
