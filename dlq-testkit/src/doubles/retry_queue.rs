use std::sync::atomic::{AtomicU32, Ordering};

use dlq_core::{DelayedRetry, History, RetryQueue, StoreError, Timestamp};

/// Defect of a [`FaultyRetryQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryQueueFault {
    /// Records come at once, whatever they are due.
    Early,
    /// Writing the same record again makes another one.
    Repeats,
    /// Attempts start over at each hop (against G3).
    ForgetsAttempts,
    /// Records are confirmed and not written (against G1).
    Loses,
    /// Everybody hears of a record.
    TellsOthers,
}

/// A retry queue that breaks a promise.
#[derive(Debug)]
pub struct FaultyRetryQueue<L> {
    inner: L,
    fault: Option<RetryQueueFault>,
    written: AtomicU32,
}

impl<L> FaultyRetryQueue<L> {
    /// Breaks a promise of `inner`; none, when there is no fault.
    #[must_use]
    pub fn new(inner: L, fault: Option<RetryQueueFault>) -> Self {
        Self { inner, fault, written: AtomicU32::new(0) }
    }
}

impl<L: RetryQueue> RetryQueue for FaultyRetryQueue<L> {
    async fn enqueue(&self, mut delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let written = self.written.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            None => {}
            Some(RetryQueueFault::Early) => delayed_retry.due = Timestamp::EPOCH,
            Some(RetryQueueFault::Repeats) => {
                // Another hop by its number, and so another record.
                delayed_retry.delivery = delayed_retry.delivery.with_delayed_retries(100 + written);
            }
            Some(RetryQueueFault::ForgetsAttempts) => {
                (delayed_retry.attempts, delayed_retry.history) = (0, History::new());
            }
            Some(RetryQueueFault::Loses) => return Ok(()),
            Some(RetryQueueFault::TellsOthers) => {
                // These are all the consumers that the checks of a retry queue know.
                for other in ["billing", "shipping"] {
                    let consumer = other.into();
                    self.inner.enqueue(DelayedRetry { consumer, ..delayed_retry.clone() }).await?;
                }
                return Ok(());
            }
        }
        self.inner.enqueue(delayed_retry).await
    }
}
