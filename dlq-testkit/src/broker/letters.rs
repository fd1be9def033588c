use std::future::Future;
use std::sync::Arc;

use dlq_core::log::{Log, Range};
use dlq_core::store::{Group, Letters, Stats};
use dlq_core::{DeadLetter, Filter, LetterId, Page, PageRequest, StoreError};
use dlq_letters::log::Reading;

/// The letters of a log, which is read for each call: as they are then.
#[derive(Clone, Debug)]
pub struct LogLetters<L>(Arc<L>);

impl<L: Log + Clone> LogLetters<L> {
    /// Makes letters of a log.
    pub fn new(log: L) -> Self {
        Self(Arc::new(log))
    }

    /// Returns the log.
    #[must_use]
    pub fn log(&self) -> &L {
        &self.0
    }

    fn read(&self) -> impl Future<Output = Result<Reading<L>, StoreError>> + Send + use<L> {
        Reading::of(L::clone(&self.0), Range::all())
    }
}

impl<L: Log + Clone> Letters for LogLetters<L> {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.read().await?.get(id).await
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        self.read().await?.get_all(ids).await
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        self.read().await?.with_prefix(digits, limit).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.read().await?.list(filter, page).await
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.read().await?.count(filter).await
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        self.read().await?.groups(filter, limit).await
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.read().await?.stats(filter).await
    }
}
