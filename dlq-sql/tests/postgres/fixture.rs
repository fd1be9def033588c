//! One server for all tests, and a schema for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_sql::postgres::{PostgresBuilder, PostgresIdempotency, PostgresStore};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;
use dlq_testkit::store::StoreFixture;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Whether there is a server to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_ok()
}

/// The server that all tests share which break nothing. Nothing here survives a power cut.
pub(crate) fn url() -> &'static str {
    static SERVER: OnceLock<Running> = OnceLock::new();
    let start = || {
        let builder = Service::Postgres.builder().setting("fsync", "off");
        builder.setting("max_connections", "400").start().unwrap()
    };
    SERVER.get_or_init(start).url()
}

/// A schema that nobody else has.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Schema {
    /// On the server that all share.
    pub(crate) fn fresh() -> Self {
        Self::at(url())
    }

    pub(crate) fn at(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A server that was given may have those of an earlier run.
        let name = format!("dlq_test_{}_{number}", std::process::id());
        Self { url: url.to_owned(), name }
    }

    /// With the patience of a test: a disk may stand still for longer than a user would wait.
    pub(crate) fn builder(&self) -> PostgresBuilder {
        let builder = PostgresStore::builder(&self.url).schema(&self.name).max_connections(4);
        builder.statement_timeout(PATIENCE).acquire_timeout(PATIENCE)
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        self.builder().open().await.unwrap()
    }

    /// A connection of a user's own, in this schema.
    pub(crate) async fn connect(&self) -> PgConnection {
        let mut conn = PgConnection::connect(&self.url).await.unwrap();
        let path = format!("SET search_path = {}", self.name);
        conn.execute(AssertSqlSafe(path)).await.unwrap();
        conn
    }
}

impl Drop for Schema {
    /// Leaves nothing behind, so that the catalogue stays small.
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        let drop = async move {
            let mut conn = PgConnection::connect(&url).await?;
            // Somebody may still be connected who was dropped in the middle of something.
            conn.execute("SET lock_timeout = '2s'; SET client_min_messages = warning").await?;
            conn.execute(AssertSqlSafe(format!("DROP SCHEMA IF EXISTS {name} CASCADE"))).await?;
            conn.close().await
        };
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(drop))
        });
        let _ = ended.join();
    }
}

/// By the clock of the test.
#[derive(Debug)]
pub(crate) struct PostgresFixture {
    schema: Schema,
    clock: ManualClock,
}

impl PostgresFixture {
    fn new() -> Self {
        Self { schema: Schema::fresh(), clock: ManualClock::new() }
    }

    async fn opened(&self, dedup: bool) -> PostgresStore {
        self.schema.builder().clock(self.clock.shared()).dedup(dedup).open().await.unwrap()
    }
}

impl StoreFixture for PostgresFixture {
    type Store = PostgresStore;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self, dedup: bool) -> PostgresStore {
        self.opened(dedup).await
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

impl IdempotencyFixture for PostgresFixture {
    type Store = PostgresIdempotency;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self::new()
    }

    async fn open(&self) -> PostgresIdempotency {
        self.opened(false).await.idempotency()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// By the clock of the database.
#[derive(Debug)]
pub(crate) struct OwnTimeFixture(Schema);

impl IdempotencyFixture for OwnTimeFixture {
    type Store = PostgresIdempotency;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        Self(Schema::fresh())
    }

    async fn open(&self) -> PostgresIdempotency {
        self.0.store().await.idempotency()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}
