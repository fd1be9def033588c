//! What is opened, what is refused, and that refusing changes nothing.

use std::path::Path;

use dlq_core::store::{Letters, Sink};
use dlq_core::{Filter, StoreError, StoreErrorKind};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter;
use rusqlite::Connection;

/// Opens what cannot be opened; the file stays as it was.
async fn refused(path: &Path) -> StoreError {
    let read = || std::fs::read(path).expect("the file is there");
    let before = read();
    let error = SqliteStore::open(path).await.expect_err("the file is not ours");
    assert!(read() == before, "the file was changed");
    error
}

#[tokio::test]
async fn a_missing_file_is_created_unless_told_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let error = SqliteStore::builder().path(&path).create(false).open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    assert!(error.to_string().contains("there is no file"), "{error}");
    assert!(!path.exists());
    SqliteStore::open(&path).await.unwrap();
    SqliteStore::builder().path(&path).create(false).open().await.unwrap();
}

#[tokio::test]
async fn a_missing_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = SqliteStore::open(directory.path().join("no/dlq.db")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("check the path"), "{error}");
}

#[tokio::test]
async fn a_database_of_another_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("theirs.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error = refused(&path).await;
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("not a dlq database"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter.txt");
    std::fs::write(&path, "Dear sir or madam, ".repeat(1000)).unwrap();
    let error = refused(&path).await;
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("is not a dlq database"), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    drop(SqliteStore::open(&path).await.unwrap());
    let conn = Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let error = refused(&path).await;
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("version 99"), "{error}");
    assert!(error.to_string().contains("up to version 4"), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.put((0..500).map(letter).collect()).await.unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() / 2;
    bytes[from..from + 16 * 4096].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    match store.verify().await {
        Ok(findings) => assert!(!findings.is_empty()),
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}"),
    }
}

#[tokio::test]
async fn a_table_name_is_a_plain_identifier() {
    for name in ["", "1st", "a b", "a;b", "sqlite_x", "\"x\"", &"x".repeat(49)] {
        let error = SqliteStore::builder().table(name).open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{name}");
    }
}

#[tokio::test]
async fn stores_of_different_tables_share_a_file_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    let one = SqliteStore::open(&path).await.unwrap();
    let other = SqliteStore::builder().path(&path).table("billing_dlq").open().await.unwrap();
    one.put(vec![letter(1)]).await.unwrap();
    other.put(vec![letter(1), letter(2)]).await.unwrap();
    assert_eq!(one.count(Filter::new()).await.unwrap(), 1);
    assert_eq!(other.count(Filter::new()).await.unwrap(), 2);
    assert_eq!(one.verify().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_create_the_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = directory.path().join(format!("{round}.db"));
        let mut opening = tokio::task::JoinSet::new();
        for n in 0..16 {
            let path = path.clone();
            opening.spawn(async move {
                let store = SqliteStore::open(path).await.unwrap();
                store.put(vec![letter(n)]).await.unwrap();
            });
        }
        while let Some(opened) = opening.join_next().await {
            opened.unwrap();
        }
        let store = SqliteStore::open(&path).await.unwrap();
        assert_eq!(store.count(Filter::new()).await.unwrap(), 16);
        assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn deduplication_is_kept_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dlq.db");
    drop(SqliteStore::builder().path(&path).dedup(true).open().await.unwrap());
    let store = SqliteStore::open(&path).await.unwrap();
    let copy = |n| {
        let mut copy = dlq_testkit::fixtures::letter_of(letter(1).message, n);
        copy.id = letter(n).id;
        copy
    };
    store.put(vec![copy(1), copy(2)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1);
}
