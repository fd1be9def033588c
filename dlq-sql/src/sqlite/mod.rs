//! [`SqliteStore`]: dead letters in a file, without a server.
//!
//! ```
//! use dlq_core::{DeadLetters, Filter};
//! use dlq_sql::sqlite::SqliteStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("dlq.db");
//! let store = SqliteStore::open(path).await?;
//! let letters = DeadLetters::new(store);
//! assert_eq!(letters.count(Filter::new()).await?, 0);
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! The same answers as the store in memory (`dlq-letters`), by the clock of the machine, and durability: a call that writes returns once its transaction is
//! flushed to the disk (write-ahead log, `synchronous = FULL`), so that what was confirmed survives the end of the
//! process and a power cut. Any number of processes on one machine may open the file at the same time, read, write and
//! claim; a letter is claimed by one of them. The file must be on a local disk: a write-ahead log does not work across
//! machines.
//!
//! # How it works
//!
//! One thread owns the connection that writes, a few others own connections that read. Calls that wait to write at the
//! same time share a transaction and its flush, each in a savepoint, so that one that fails does not fail the others.
//! Readers never wait for the writer. No thread of the async runtime is blocked, except by dropping the last handle,
//! which waits for the call under way.
//!
//! # On failure
//!
//! | what happens | what the caller sees | what is stored |
//! |---|---|---|
//! | another process holds the lock longer than the busy timeout | `Unavailable` | as before |
//! | the disk or the quota is full, the file is read-only, there is no memory | `Unavailable` | as before |
//! | a table is gone | `NotFound` | as before |
//! | a letter is larger than SQLite takes, or a constraint keeps it out | `Refused`: another letter is taken | as before |
//! | the process dies before a call returned | nothing | all of the call, or nothing of it |
//! | the thread that writes panics (a bug) | `Unexpected`, also for later calls: open the store again | as before |
//! | the file is damaged | `Corrupt` | see [`SqliteStore::verify`] |
//!
//! # The tables
//!
//! One row per letter in `dlq_events`, among whose columns are `event_id` (the producer's), `subject`, `event_type`,
//! `data` (bytes), `error`, `status`, `retry_count`, `retry_after`, `created_at`, `updated_at` and `last_retry_at`.
//! Times are whole nanoseconds since the Unix epoch; the view `dlq_events_readable` shows them as RFC 3339, ids as
//! hexadecimal digits and payloads as text or JSON where they are:
//!
//! ```sql
//! SELECT created_at, consumer, error, data_json FROM dlq_events_readable WHERE status = 'pending' ORDER BY created_at;
//! ```
//!
//! `dlq_operations` and `dlq_operation_items` hold bulk replays, `dlq_audit` what operators did, `audit_log` the
//! processing audit. A file of an earlier version is migrated when it is opened. Write only through the store: it keeps counts and claims consistent.
//!
//! # Cost
//!
//! Putting, claiming and finishing cost a few indexed writes per letter, and a flush per transaction: hand over many at
//! once. A page costs the same at any depth. Counts and statistics by status, subject, reason, cause, class and consumer
//! come from a table of counts; other filters, groups and searches in error texts read an index or every letter.

mod audit;
mod backend;
mod binder;
mod check;
mod codec;
mod config;
mod dedup;
mod due;
mod error;
mod filter;
mod idempotency;
mod letters;
mod load;
mod marks;
mod migrate;
mod names;
mod open;
mod operations;
mod plan;
mod query;
mod schema;
mod select;
mod unit;
mod vitals;
mod worker;
mod write;

pub use config::SqliteBuilder;
pub use idempotency::SqliteIdempotency;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlq_core::{SharedClock, StoreError, Timestamp};
use rusqlite::Connection;

use crate::error::Result;
use names::Names;
use unit::Unit;
use worker::{Readers, Writer};

/// A store in a file. Cheap to clone; clones share the connections. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct SqliteStore {
    inner: Arc<Inner>,
    clock: SharedClock,
}

/// State that clones share. The readers are joined before the writer, which closes the file.
#[derive(Debug)]
struct Inner {
    readers: Option<Readers>,
    writer: Writer,
    names: Arc<Names>,
    /// The file's absolute path; `None` in memory.
    path: Option<PathBuf>,
    /// A bound on the file's size.
    max_pages: Option<u32>,
}

impl SqliteStore {
    /// Opens the file at `path`, which is created where it is missing, with the settings of [`SqliteBuilder`].
    ///
    /// # Errors
    ///
    /// As for [`SqliteBuilder::open`].
    pub async fn open(path: impl AsRef<Path>) -> std::result::Result<Self, StoreError> {
        Self::builder().path(path.as_ref()).open().await
    }

    /// A store that is gone with its last handle; for tests and trials.
    ///
    /// # Errors
    ///
    /// When there is no memory or no thread for it.
    pub async fn in_memory() -> std::result::Result<Self, StoreError> {
        Self::builder().open().await
    }

    /// Settings to open a store with.
    pub fn builder() -> SqliteBuilder {
        SqliteBuilder::default()
    }

    /// Sets the clock by which this handle tells the time. Defaults to the one the store was opened with.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Idempotency in the same file.
    #[must_use]
    pub fn idempotency(&self) -> SqliteIdempotency {
        SqliteIdempotency::new(self.clone())
    }

    /// The place of the tables: equal for all that were opened for one table of one file.
    fn identity(&self) -> String {
        let Inner { path, names, .. } = &*self.inner;
        match path {
            Some(path) => format!("sqlite {} {}", names.letters, path.display()),
            // No other store has this address while this one lives.
            None => format!("sqlite in memory {:p}", Arc::as_ptr(&self.inner)),
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Runs `work` in a transaction and returns once it is durable. It may be run more than once.
    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Unit<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.inner.writer.run(work).await
    }

    /// Runs `look` on one state of what is stored.
    async fn read<T: Send + 'static>(
        &self,
        look: impl Fn(&Connection, &Names) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match &self.inner.readers {
            Some(readers) => {
                let names = Arc::clone(&self.inner.names);
                readers.run(move |conn| look(conn, &names)).await
            }
            // A database in memory has one connection, on which reads take turns with writes.
            None => self.inner.writer.run(move |unit| look(unit.conn(), unit.names())).await,
        }
    }
}

const _: () = {
    const fn store<S: dlq_core::store::Store + dlq_core::CrashMarks + Clone>() {}
    store::<SqliteStore>();
};
