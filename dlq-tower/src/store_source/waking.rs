use std::sync::Arc;

use dlq_core::{BoxRetryQueue, DelayedRetry, RetryQueue, StoreError};
use tokio::sync::Notify;

/// A retry queue in the store that tells the store source of each record, so that it is taken when it is due and not at
/// the next poll.
#[derive(Debug)]
pub(crate) struct WakingRetryQueue {
    inner: BoxRetryQueue,
    waker: Arc<Notify>,
}

impl WakingRetryQueue {
    pub(crate) fn new(inner: impl RetryQueue, waker: Arc<Notify>) -> Self {
        Self { inner: BoxRetryQueue::new(inner), waker }
    }
}

impl RetryQueue for WakingRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        self.inner.enqueue(delayed_retry).await?;
        // The record is durable by now. A source that was woken earlier would not find it.
        self.waker.notify_one();
        Ok(())
    }
}
