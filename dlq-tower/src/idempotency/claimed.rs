use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::idempotency::{Idempotency, IdempotencyToken, Release};
use tokio::runtime::Handle;

use super::layer::Shared;

/// The shortest time between two extensions.
const SHORTEST: Duration = Duration::from_millis(10);

/// What is still to be told to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    /// The handler succeeded.
    Completion,
    /// The key is free again.
    Release(Release),
}

/// A claim in our hands. Dropped before it is settled, it is settled by a task of its own.
#[derive(Debug)]
pub(super) struct Claimed<I: Idempotency> {
    shared: Arc<Shared<I>>,
    token: Option<IdempotencyToken>,
    owed: Owed,
}

impl<I: Idempotency> Claimed<I> {
    pub(super) fn new(shared: Arc<Shared<I>>, token: IdempotencyToken) -> Self {
        Self { shared, token: Some(token), owed: Owed::Release(Release::Unused) }
    }

    /// Extends the claim for as long as it is polled.
    pub(super) async fn keep(&self) -> Infallible {
        let Some(token) = &self.token else { return std::future::pending().await };
        loop {
            tokio::time::sleep((self.shared.lease / 3).max(SHORTEST)).await;
            match self.shared.store.extend(token.clone(), self.shared.lease).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(
                        consumer = &*token.consumer,
                        "a claim was lost while its handler runs: the message may run elsewhere as well"
                    );
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::warn!(consumer = &*token.consumer, %error, "a claim could not be extended");
                }
            }
        }
    }

    /// Tells the store how the run ended.
    pub(super) async fn settle(mut self, owed: Owed) {
        // Owed before it is tried: a caller that is dropped here leaves it to the task.
        self.owed = owed;
        if let Some(token) = &self.token {
            settle(&self.shared, token, owed).await;
            self.token = None;
        }
    }
}

async fn settle<I: Idempotency>(shared: &Shared<I>, token: &IdempotencyToken, owed: Owed) {
    let consumer = &*token.consumer;
    let settled: Result<bool, StoreError> = match owed {
        Owed::Completion => shared.store.complete(token.clone(), shared.keep).await,
        Owed::Release(release) => shared.store.release(token.clone(), release).await,
    };
    match settled {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            consumer,
            ?owed,
            "a claim had been lost when its handler ended: the message may have run elsewhere as well"
        ),
        Err(error) => tracing::error!(
            consumer, ?owed, %error,
            "the end of a claim could not be recorded: its key stays claimed until the lease ends"
        ),
    }
}

impl<I: Idempotency> Drop for Claimed<I> {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!(consumer = &*token.consumer, "a claim is left to its lease: no runtime");
            return;
        };
        let (shared, owed) = (Arc::clone(&self.shared), self.owed);
        let settling = async move {
            // Past its lease the claim is over anyway.
            let _ = tokio::time::timeout(shared.lease, settle(&shared, &token, owed)).await;
        };
        self.shared.tasks.spawn_on(settling, &runtime);
    }
}
