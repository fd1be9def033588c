use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::idempotency::{Idempotency, IdempotencyToken, Release};
use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::layer::Shared;
use crate::stage::{Done, Setback};

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

impl Owed {
    /// What a run owes that ended so.
    pub(super) fn after(outcome: &Result<Done, Setback>) -> Self {
        match outcome {
            Ok(_) => Self::Completion,
            Err(Setback::Failed(_)) => Self::Release(Release::Failed),
            Err(Setback::Crashed { .. } | Setback::Deferred { .. }) => {
                Self::Release(Release::Unused)
            }
        }
    }
}

/// A claim in our hands. Dropped before it is settled, it is settled all the same: in place with an
/// immediate store, else by a task of its own.
#[derive(Debug)]
pub(super) struct Claimed<I: Idempotency> {
    shared: Arc<Shared<I>>,
    // None once it is settled.
    token: Option<IdempotencyToken>,
    owed: Owed,
}

impl<I: Idempotency> Claimed<I> {
    #[inline]
    pub(super) fn new(shared: Arc<Shared<I>>, token: IdempotencyToken) -> Self {
        Self { shared, token: Some(token), owed: Owed::Release(Release::Unused) }
    }

    /// Takes another claim in hand, once the last one is settled.
    #[inline]
    pub(super) fn again(&mut self, token: IdempotencyToken) {
        self.owed = Owed::Release(Release::Unused);
        self.token = Some(token);
    }

    /// Extends the claim for as long as it is polled.
    pub(super) fn keep(&self) -> impl Future<Output = Infallible> + Send + use<I> {
        let (shared, token) = (Arc::clone(&self.shared), self.token.clone());
        async move {
            let Some(token) = token else { return std::future::pending().await };
            loop {
                tokio::time::sleep((shared.lease / 3).max(SHORTEST)).await;
                match shared.store.extend(token.clone(), shared.lease).await {
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
    }

    /// Tells the store how the run ended.
    pub(super) async fn settle(mut self, owed: Owed) {
        // Owed before it is tried: a caller that is dropped here leaves it to the task.
        self.owed = owed;
        if let Some(token) = &self.token {
            settle(&self.shared, token.clone(), owed).await;
            self.token = None;
        }
    }

    /// The same in place, with a store that is [immediate](Idempotency::is_immediate); `false` where that is to be
    /// waited for.
    #[inline]
    pub(super) fn settle_now(&mut self, owed: Owed) -> bool {
        if self.token.is_some() && !self.shared.store.is_immediate() {
            return false;
        }
        self.owed = owed;
        self.end();
        true
    }

    /// Settles it without waiting.
    #[inline]
    fn end(&mut self) {
        let Some(token) = self.token.take() else { return };
        let Shared { store, keep, .. } = &*self.shared;
        if !store.is_immediate() {
            return self.leave(token);
        }
        let settled = match self.owed {
            Owed::Completion => store.complete(token, *keep).now_or_never(),
            Owed::Release(release) => store.release(token, release).now_or_never(),
        };
        // One that does not answer after all leaves the key to its lease.
        self.shared.settled(self.owed, settled.unwrap_or(Ok(false)));
    }
}

async fn settle<I: Idempotency>(shared: &Shared<I>, token: IdempotencyToken, owed: Owed) {
    let settled = match owed {
        Owed::Completion => shared.store.complete(token, shared.keep).await,
        Owed::Release(release) => shared.store.release(token, release).await,
    };
    shared.settled(owed, settled);
}

impl<I> Shared<I> {
    /// Says what is amiss with the end of a claim.
    #[inline]
    fn settled(&self, owed: Owed, settled: Result<bool, StoreError>) {
        let consumer = self.consumer.as_deref();
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
}

impl<I: Idempotency> Drop for Claimed<I> {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

impl<I: Idempotency> Claimed<I> {
    /// Leaves it to a task.
    #[cold]
    fn leave(&self, token: IdempotencyToken) {
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!(consumer = &*token.consumer, "a claim is left to its lease: no runtime");
            return;
        };
        let (shared, owed) = (Arc::clone(&self.shared), self.owed);
        let settling = async move {
            // Past its lease the claim is over anyway.
            let _ = tokio::time::timeout(shared.lease, settle(&shared, token, owed)).await;
        };
        self.shared.tasks.spawn_on(settling, &runtime);
    }
}
