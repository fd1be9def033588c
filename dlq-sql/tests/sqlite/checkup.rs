//! What only a file can have wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;

use dlq_core::store::{CheckLimits, Maintenance, Sink as _};
use dlq_core::{Finding, Severity};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter;
use rusqlite::Connection;
use tempfile::TempDir;

struct Bench {
    _directory: TempDir,
    path: PathBuf,
    store: SqliteStore,
}

impl Bench {
    async fn new(max_size: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dlq.db");
        let store = SqliteStore::builder().path(&path).max_size(max_size).open().await.unwrap();
        Self { _directory: directory, path, store }
    }

    async fn found(&self, limits: CheckLimits) -> Vec<Finding> {
        Maintenance::check(&self.store, limits).await.unwrap()
    }

    fn tamper(&self, sql: &str) {
        Connection::open(&self.path).unwrap().execute_batch(sql).unwrap();
    }
}

#[tokio::test]
async fn a_missing_index_is_found_and_its_advice_creates_it() {
    let bench = Bench::new(u64::MAX).await;
    bench.tamper("DROP INDEX dlq_events_available; DROP VIEW dlq_events_readable");
    let findings = bench.found(CheckLimits::default()).await;
    let subjects: Vec<_> =
        findings.iter().map(|finding| (finding.severity, finding.subject.as_str())).collect();
    let index = (Severity::Error, "index `dlq_events_available`");
    assert_eq!(subjects, [index, (Severity::Warning, "view `dlq_events_readable`")]);
    for finding in findings {
        let (_, sql) = finding.advice.split_once("again: ").unwrap();
        bench.tamper(sql);
    }
    assert_eq!(bench.found(CheckLimits::default()).await, []);
}

#[tokio::test]
async fn a_missing_table_is_found() {
    let bench = Bench::new(u64::MAX).await;
    bench.tamper("DROP TABLE audit_log");
    let findings = bench.found(CheckLimits::default()).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].subject, "table `audit_log`");
    assert_eq!(findings[0].severity, Severity::Error);
}

#[tokio::test]
async fn a_file_near_its_largest_size_is_found() {
    let bench = Bench::new(1024 * 1024).await;
    assert_eq!(bench.found(CheckLimits::default()).await, []);
    let mut n = 0;
    while bench.store.put(vec![letter(n)]).await.is_ok() {
        n += 1;
    }
    let findings = bench.found(CheckLimits::default()).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        (findings[0].subject.as_str(), findings[0].setting.as_str()),
        ("file", "used pages")
    );
}

#[tokio::test]
async fn damage_is_found_when_it_is_looked_for() {
    let bench = Bench::new(u64::MAX).await;
    bench.store.put(vec![letter(1)]).await.unwrap();
    bench.tamper("UPDATE dlq_counts SET n = n + 1");
    assert_eq!(bench.found(CheckLimits::default()).await, []);
    let findings = bench.found(CheckLimits::default().deep(true)).await;
    assert!(findings.iter().any(|finding| finding.setting == "integrity"), "{findings:?}");
    assert!(findings.iter().all(|finding| finding.severity == Severity::Error), "{findings:?}");
}
