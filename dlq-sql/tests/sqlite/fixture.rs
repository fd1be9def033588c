//! A file of its own for every check.

use dlq_sql::sqlite::{SqliteIdempotency, SqliteStore};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use dlq_testkit::store::StoreFixture;
use tempfile::TempDir;
use tokio::sync::OnceCell;

pub(crate) struct SqliteFixture {
    directory: TempDir,
    clock: ManualClock,
}

impl SqliteFixture {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("there is room for a directory"),
            clock: ManualClock::new(),
        }
    }

    async fn opened(&self, dedup: bool) -> SqliteStore {
        let path = self.directory.path().join("dlq.db");
        let builder = SqliteStore::builder().path(path).clock(self.clock.shared());
        builder.dedup(dedup).open().await.expect("the store opens")
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

/// A database in memory, whose one connection also reads. The first to open it says whether it deduplicates.
pub(crate) struct InMemoryFixture {
    store: OnceCell<SqliteStore>,
    clock: ManualClock,
}

impl StoreFixture for InMemoryFixture {
    type Store = SqliteStore;

    async fn fresh(_check: &'static str) -> Self {
        Self { store: OnceCell::new(), clock: ManualClock::new() }
    }

    async fn open(&self, dedup: bool) -> SqliteStore {
        let open = || SqliteStore::builder().clock(self.clock.shared()).dedup(dedup).open();
        self.store.get_or_try_init(open).await.expect("the store opens").clone()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}
