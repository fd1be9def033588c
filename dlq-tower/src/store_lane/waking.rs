use std::sync::Arc;

use dlq_core::{BoxRetryLane, Escalation, RetryLane, StoreError};
use tokio::sync::Notify;

/// A retry lane in the store that tells the store lane of each record, so that it is taken when it is due and not at
/// the next poll.
#[derive(Debug)]
pub(crate) struct WakingLane {
    inner: BoxRetryLane,
    waker: Arc<Notify>,
}

impl WakingLane {
    pub(crate) fn new(inner: impl RetryLane, waker: Arc<Notify>) -> Self {
        Self { inner: BoxRetryLane::new(inner), waker }
    }
}

impl RetryLane for WakingLane {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        self.inner.escalate(escalation).await?;
        self.waker.notify_one();
        Ok(())
    }
}
