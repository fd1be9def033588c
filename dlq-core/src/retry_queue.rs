//! [`RetryQueue`]: where a message waits for its next attempt when the wait is too long for the process.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Delivery, History, StoreError, Timestamp};

/// A message on its way to a slower retry stage.
#[derive(Clone, Debug)]
#[must_use]
pub struct DelayedRetry {
    /// The delivery whose attempt failed.
    pub delivery: Delivery,
    /// The consumer that will try again; nobody else may hear of it.
    pub consumer: Arc<str>,
    /// When the next attempt may run.
    pub due: Timestamp,
    /// Every attempt so far.
    pub history: History,
    /// Handler runs so far in this generation.
    pub attempts: u32,
}

/// Takes messages that wait for their next attempt, durably, and hands them to the same consumer when they are due.
///
/// A transport's retry topics or delayed stream; a due row in a store.
pub trait RetryQueue: fmt::Debug + Send + Sync + 'static {
    /// Writes the retry record and returns once it is durable. Writing the same one again changes nothing.
    ///
    /// In a store the record is a row that is `retrying`, of the generation that its death would have, claimed by its
    /// consumer when it is due. A record that knows of more attempts updates one that nobody has claimed; a death of the
    /// same generation is never taken back by a record.
    ///
    /// # Errors
    ///
    /// When it is not known to be durable; the caller then settles nothing. `Refused` when the queue can never hold this
    /// message, for one that is too large: it does not wait any more then, and dies.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the record is durable. Writing it again is safe.
    fn enqueue(
        &self,
        delayed_retry: DelayedRetry,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<L: RetryQueue> RetryQueue for Arc<L> {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        (**self).enqueue(delayed_retry).await
    }
}

trait DynRetryQueue: fmt::Debug + Send + Sync {
    fn enqueue_dyn(
        &self,
        delayed_retry: DelayedRetry,
    ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>>;
}

impl<L: RetryQueue> DynRetryQueue for L {
    fn enqueue_dyn(
        &self,
        delayed_retry: DelayedRetry,
    ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        Box::pin(self.enqueue(delayed_retry))
    }
}

/// Any retry queue, erased.
#[derive(Clone, Debug)]
pub struct BoxRetryQueue(Arc<dyn DynRetryQueue>);

impl BoxRetryQueue {
    /// Erases `queue`.
    #[must_use]
    pub fn new(queue: impl RetryQueue) -> Self {
        Self(Arc::new(queue))
    }
}

impl RetryQueue for BoxRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        self.0.enqueue_dyn(delayed_retry).await
    }
}
