//! A file of its own for every check.

use dlq_sql::sqlite::{SqliteIdempotency, SqliteStore};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use dlq_testkit::store::StoreFixture;
use tempfile::TempDir;

pub(crate) struct SqliteFixture {
    directory: TempDir,
    clock: ManualClock,
}

impl SqliteFixture {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: ManualClock::new() }
    }

    async fn opened(&self, dedup: bool) -> SqliteStore {
        let path = self.directory.path().join("dlq.db");
        let builder = SqliteStore::builder().path(path).clock(self.clock.shared());
        builder.dedup(dedup).open().await.unwrap()
    }
}

impl StoreFixture for SqliteFixture {
    type Store = SqliteStore;

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self, dedup: bool) -> SqliteStore {
        self.opened(dedup).await
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

impl IdempotencyFixture for SqliteFixture {
    type Store = SqliteIdempotency;

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self) -> SqliteIdempotency {
        self.opened(false).await.idempotency()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}
