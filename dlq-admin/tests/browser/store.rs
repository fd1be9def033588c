//! Stores as users have them: a file of SQLite, a schema of PostgreSQL.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dlq_core::memory::{MemoryBroker, MemoryOutbox};
use dlq_core::outbox::Outboxes;
use dlq_core::{DeadLetters, Delivery, SharedClock, Store, SystemClock};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_sql::postgres::PostgresStore;
use dlq_sql::sqlite::SqliteStore;
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerError, handler};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;

use crate::browser::PATIENCE;
use crate::world::CONSUMER;

/// Database of one test.
#[derive(Debug)]
pub(crate) enum Database {
    Sqlite(TempDir),
    Postgres(String),
}

impl Database {
    /// A database for each kind of store that is to be had.
    pub(crate) fn all() -> Vec<Self> {
        [Some(Self::sqlite()), Self::postgres()].into_iter().flatten().collect()
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn postgres() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        or_skip(Service::Postgres, ensure_installed(Service::Postgres)).ok()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self::Postgres(format!("dlq_browser_{}_{number}", std::process::id())))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Opens the store, by this clock.
    pub(crate) async fn open(&self, clock: SharedClock) -> DeadLetters {
        match self {
            Self::Sqlite(folder) => DeadLetters::new(sqlite(folder, clock).await),
            Self::Postgres(schema) => DeadLetters::new(postgres(schema, clock).await),
        }
    }

    /// Returns a consumer of the broker whose dead letters come into the store.
    pub(crate) async fn consumer(&self, broker: &MemoryBroker) -> Consumer {
        let clock = SystemClock::shared();
        match self {
            Self::Sqlite(folder) => consumer(broker, sqlite(folder, clock).await),
            Self::Postgres(schema) => consumer(broker, postgres(schema, clock).await),
        }
    }

    /// Leaves nothing behind.
    pub(crate) async fn remove(self) {
        let Self::Postgres(schema) = self else { return };
        let mut conn = PgConnection::connect(server()).await.unwrap();
        conn.execute("SET client_min_messages = warning").await.unwrap();
        let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
        conn.execute(AssertSqlSafe(drop)).await.unwrap();
    }
}

async fn sqlite(folder: &TempDir, clock: SharedClock) -> SqliteStore {
    SqliteStore::builder().path(folder.path().join("dlq.db")).clock(clock).open().await.unwrap()
}

async fn postgres(schema: &str, clock: SharedClock) -> PostgresStore {
    let builder = PostgresStore::builder(server()).schema(schema).max_connections(4);
    let builder = builder.statement_timeout(PATIENCE).acquire_timeout(PATIENCE);
    builder.clock(clock).open().await.unwrap()
}

/// Returns a consumer whose handler takes payments of a number of cents. It sends letters back to the broker, too.
fn consumer(broker: &MemoryBroker, store: impl Store + Clone) -> Consumer {
    let charge = handler(CONSUMER, async |delivery: Delivery| {
        let payload = delivery.message().payload().cloned().unwrap_or_default();
        match serde_json::from_slice::<serde_json::Value>(&payload) {
            Ok(payment) if payment["cents"].is_u64() => Ok(()),
            _ => Err(HandlerError::msg("cents are no number").permanent()),
        }
    });
    let mut outboxes = Outboxes::new();
    outboxes.add(MemoryOutbox::new(broker)).unwrap();
    Consumer::builder(broker.source(CONSUMER))
        .handler(charge.derived().build().unwrap())
        .dead_letters(store)
        .build_version("1.4.2")
        .outboxes(outboxes)
        .build()
        .unwrap()
}

/// The server that all tests share.
fn server() -> &'static str {
    static SERVER: OnceLock<Running> = OnceLock::new();
    SERVER
        .get_or_init(|| Service::Postgres.builder().setting("fsync", "off").start().unwrap())
        .url()
}
