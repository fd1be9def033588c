use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{SharedClock, StoreError, SystemClock};

use super::names::DEFAULT_TABLE;
use super::open::{Location, Tuning};
use super::worker::{Readers, Writer};
use super::{Inner, SqliteStore};
use crate::error::{During, Result};

/// The size of a page where SQLite is not told otherwise; the file is measured in these.
const PAGE: u64 = 4096;

/// Builder of a [`SqliteStore`].
///
/// ```
/// use dlq_sql::sqlite::SqliteStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("dlq.db");
/// let store = SqliteStore::builder().path(path).dedup(true).open().await?;
/// # drop(store);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct SqliteBuilder {
    pub(super) path: Option<PathBuf>,
    create: bool,
    pub(super) table: String,
    clock: SharedClock,
    dedup: Option<bool>,
    pub(super) busy_timeout: Duration,
    readers: usize,
    max_size: Option<u64>,
    pub(super) migrate: bool,
}

impl Default for SqliteBuilder {
    fn default() -> Self {
        Self {
            path: None,
            create: true,
            table: DEFAULT_TABLE.to_owned(),
            clock: SystemClock::shared(),
            dedup: None,
            busy_timeout: Duration::from_secs(5),
            readers: 2,
            max_size: None,
            migrate: true,
        }
    }
}

impl SqliteBuilder {
    /// Sets the path of the file. Defaults to none: the store is in memory and is gone with its last handle.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets whether a missing file is created. Defaults to yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the name of the table of letters: letters, digits and underscores, at most 48 of them. Several stores may
    /// share a file under different names; the other tables of each are named after it. Defaults to `dlq_events`, with
    /// `audit_log` and `dlq_…` beside it.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// Sets the clock by which the store tells the time. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets whether letters of the same original message are kept as one. Kept in the file, for everyone who opens it.
    /// Letters that are there already stay as they are; [`Maintenance::deduplicate`](dlq_core::store::Maintenance::deduplicate)
    /// collapses them. Defaults to what the file says; a new file says no.
    pub fn dedup(mut self, dedup: bool) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Sets how long a call waits for the lock that another process holds before it fails as `Unavailable`. Defaults to
    /// five seconds.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets how many connections read beside the one that writes; 0 reads on that one. Defaults to two.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// Sets the largest size of the file in bytes. A write that would go past it fails as `Unavailable`, as on a full
    /// disk; nothing is evicted. Defaults to no bound.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }

    /// Opens the store. Creates the tables where they are missing and migrates older ones; safe when many do it at once.
    ///
    /// # Errors
    ///
    /// - `NotFound`: there is no such file, and it is not to be created.
    /// - `Incompatible`: the file is not a dlq database, or of a newer version of the schema.
    /// - `InvalidConfig`: the table's name is not a plain identifier, or the file system keeps no write-ahead log.
    /// - `Unavailable`: the file cannot be opened or is read-only, or another process holds its lock.
    /// - `Corrupt`: the file is damaged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future waits for the threads that it started and leaves nothing behind but, perhaps, the file.
    pub async fn open(self) -> std::result::Result<SqliteStore, StoreError> {
        self.start().await.during("open the store")
    }

    async fn start(self) -> Result<SqliteStore> {
        let names = Arc::new(self.names()?);
        let path = self.path.clone();
        let place = match self.path {
            Some(path) => Location::File { path, create: self.create },
            None => Location::Memory,
        };
        let tuning = Tuning {
            busy_timeout: bounded(self.busy_timeout),
            migrate: self.migrate,
            // SQLite counts at most 2^32 - 2 pages, and takes 0 for a question.
            max_pages: self
                .max_size
                .map(|bytes| u32::try_from(bytes / PAGE).unwrap_or(u32::MAX - 1).max(1)),
        };
        // The writer is opened first: it makes file and tables, without which a reader cannot be opened.
        let writer = Writer::start(place.clone(), tuning, Arc::clone(&names)).await?;
        // A database in memory belongs to its one connection.
        let readers = match self.readers {
            count if count > 0 && path.is_some() => {
                Some(Readers::start(count, &place, tuning).await?)
            }
            _ => None,
        };
        // The file is there by now. Where its path cannot be resolved, the one that was given tells it apart.
        let path = path.map(|path| std::fs::canonicalize(&path).unwrap_or(path));
        let inner = Inner { readers, writer, names, path, max_pages: tuning.max_pages };
        let store = SqliteStore { inner: Arc::new(inner), clock: self.clock };
        // The switch is set before anybody has the store, so that nothing is put through it under the old setting.
        if let Some(dedup) = self.dedup {
            store.write(move |unit| super::dedup::switch(unit.conn(), unit.names(), dedup)).await?;
        }
        Ok(store)
    }
}

/// The longest that SQLite can be told.
pub(super) fn bounded(timeout: Duration) -> Duration {
    // The library panics past 2^31 milliseconds, which are some 24 days; nobody waits for a day.
    timeout.min(Duration::from_secs(86_400))
}
