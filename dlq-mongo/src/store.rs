use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::StoreError;
use tokio::time::Instant;

use crate::commit::COMMIT_TIMEOUT;
use crate::db::Db;
use crate::error::{During, Result};
use crate::{MongoBuilder, MongoIdempotency};

/// Time between two looks for commits that somebody left behind.
const SWEEP: Duration = Duration::from_secs(5);

/// Age of pieces of letters from which they are looked at.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// A store of dead letters in MongoDB. Clones share their connections; see the [crate](crate).
#[derive(Clone, Debug)]
pub struct MongoStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    db: Db,
    identity: String,
    swept: Mutex<Instant>,
}

impl MongoStore {
    /// Begins to describe a store at this URL, `mongodb://HOST/DATABASE`. The database is `dlq` where the URL names none.
    pub fn builder(url: impl Into<String>) -> MongoBuilder {
        MongoBuilder::new(url.into())
    }

    /// Opens the store at this URL, and makes its indexes.
    ///
    /// # Errors
    ///
    /// See [`MongoBuilder::open`].
    pub async fn open(url: impl Into<String>) -> std::result::Result<Self, StoreError> {
        Self::builder(url).open().await
    }

    pub(crate) fn new(db: Db, identity: String) -> Self {
        Self { inner: Arc::new(Inner { db, identity, swept: Mutex::new(Instant::now()) }) }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn identity(&self) -> &str {
        &self.inner.identity
    }

    /// The idempotency keys beside the letters, in the same database.
    #[must_use]
    pub fn idempotency(&self) -> MongoIdempotency {
        MongoIdempotency::of(self.clone())
    }

    /// Finishes or takes back what processes that died left behind: commits, and pieces of large letters. Claims do so by
    /// themselves every few seconds. Returns the number of commits and pieces.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest for the next time.
    pub async fn sweep(&self) -> std::result::Result<u64, StoreError> {
        self.sweep_all().await.during("sweep the store")
    }

    async fn sweep_all(&self) -> Result<u64> {
        let commits = self.db().sweep_commits().await?;
        let before = self.db().server_now().await?.before(OLD);
        Ok(commits + self.db().sweep_parts(before).await?)
    }

    /// Ends commits that were left behind, unless that was done a moment ago.
    pub(crate) async fn sweep_now_and_then(&self) -> Result<()> {
        let is_time = {
            let mut swept = self.inner.swept.lock().unwrap_or_else(PoisonError::into_inner);
            let is_time = swept.elapsed() >= SWEEP;
            if is_time {
                // The time is set before the sweep, so that of many claims at once only one sweeps.
                *swept = Instant::now();
            }
            is_time
        };
        if is_time { self.db().sweep_commits().await.map(drop) } else { Ok(()) }
    }
}

const _: () =
    assert!(SWEEP.as_secs() >= COMMIT_TIMEOUT.as_secs(), "what is under way is left alone");

const _: () = {
    const fn store<S: dlq_core::Store + dlq_core::CrashMarks + Clone>() {}
    store::<MongoStore>();
};
