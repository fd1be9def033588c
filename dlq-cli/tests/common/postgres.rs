//! One server of Postgres for all tests, and a schema for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_services::{Running, Service, ensure_installed, or_skip, wire};
use dlq_sql::postgres::PostgresStore;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A schema that nobody else has. Nothing in it survives a power cut.
#[derive(Debug)]
pub(crate) struct Schema {
    /// The database.
    pub(crate) server: String,
    pub(crate) name: String,
}

impl Schema {
    /// One of this name on the server that all share; `None` where there is none to be had.
    pub(crate) fn new(name: &str) -> Option<Self> {
        static SERVER: OnceLock<Option<Running>> = OnceLock::new();
        let server = SERVER.get_or_init(|| {
            or_skip(Service::Postgres, ensure_installed(Service::Postgres)).ok()?;
            Some(Service::Postgres.builder().setting("fsync", "off").start().unwrap())
        });
        Some(Self::at(server.as_ref()?.url(), name))
    }

    pub(crate) fn at(server: &str, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A server that was given may have those of an earlier run.
        let name = format!("{name}_{}_{number}", std::process::id());
        Self { server: server.to_owned(), name }
    }

    /// The URL of the store in this schema.
    pub(crate) fn url(&self) -> String {
        format!("{}?schema={}", self.server, self.name)
    }

    /// The same for another user.
    pub(crate) fn url_of(&self, login: &str) -> String {
        self.url().replacen("postgres@", &format!("{login}@"), 1)
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        PostgresStore::builder(&self.server)
            .schema(&self.name)
            .max_connections(4)
            .open()
            .await
            .unwrap()
    }
}

impl Schema {
    /// Drops everything in it.
    pub(crate) fn clear(&self) {
        let drop = format!("SET lock_timeout = '2s'; DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        // The server may be gone.
        let _ = wire::postgres::query(&self.server, &drop, PATIENCE);
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        self.clear();
    }
}
