use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::idempotency::{Idempotency as Store, IdempotencyClaim, Release};
use dlq_core::{Delivery, StoreError, StoreErrorKind};

use super::answers::Answers;
use super::claimed::{Claimed, Owed};
use super::layer::Inner;
use crate::catch_panic::discard;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Maintenance of a layer's keys besides claiming them: their counts start over once a letter is durable, attempts that
/// an outage has failed are taken back, keys that have been kept long enough are forgotten, and abandoned claims are
/// given back before the process ends. Cheap to clone.
///
/// Made by [`IdempotencyLayer::key_janitor`](super::IdempotencyLayer::key_janitor), done by the consumer.
#[derive(Clone, Debug)]
pub struct KeyJanitor(Arc<dyn Keys>);

trait Keys: fmt::Debug + Send + Sync {
    fn purges_itself(&self) -> bool;
    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;
    fn drained(&self) -> BoxFuture<'_, ()>;
    fn answers(&self) -> &Answers;
    fn release<'a>(
        &'a self,
        delivery: &'a Delivery,
        release: Release,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>>;
}

#[derive(Debug)]
struct Kept<I>(Arc<Inner<I>>);

impl<I: Store> Keys for Kept<I> {
    fn purges_itself(&self) -> bool {
        self.0.store.purges_itself()
    }

    fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.0.store.purge(limit))
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.tasks.wait())
    }

    fn answers(&self) -> &Answers {
        &self.0.answers
    }

    fn release<'a>(
        &'a self,
        delivery: &'a Delivery,
        release: Release,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>> {
        let Self(shared) = self;
        Box::pin(async move {
            // Where the function panics nothing was ever claimed.
            let key = catch_unwind(AssertUnwindSafe(|| (shared.key)(delivery)));
            let Some(key) = key.unwrap_or_else(|payload| {
                discard(move || drop(payload));
                None
            }) else {
                return Ok(None);
            };
            let consumer = Arc::clone(shared.consumer(delivery));
            // Counts are changed under a claim, so that no run of another message with the key is cut into.
            match shared.store.claim(consumer, key, shared.lease).await? {
                IdempotencyClaim::Done { .. } => Ok(None),
                IdempotencyClaim::InFlight { remaining } => Ok(Some(shared.at_most(remaining))),
                IdempotencyClaim::New { token, .. } => {
                    let claimed = Claimed::new(Arc::clone(shared), token, None);
                    let is_told = claimed.settle(Owed::Release(release)).await;
                    // What was not heard is told again by a task; attempts must not be taken back twice.
                    if is_told || matches!(release, Release::Forgiven(_)) {
                        return Ok(None);
                    }
                    let lost = StoreError::new(StoreErrorKind::Unavailable, "change counts");
                    Err(lost.with_detail("the release of the key was not recorded"))
                }
            }
        })
    }
}

impl KeyJanitor {
    pub(super) fn new<I: Store>(shared: Inner<I>) -> Self {
        Self(Arc::new(Kept(Arc::new(shared))))
    }

    /// Returns true if the store forgets keys by itself.
    pub(crate) fn purges_itself(&self) -> bool {
        self.0.purges_itself()
    }

    /// Tells `listener` whether keys can be claimed: of each error, and of the first answer after one.
    pub(crate) fn told_to(&self, listener: impl Fn(Option<&StoreError>) + Send + Sync + 'static) {
        self.0.answers().told_to(listener);
    }

    /// Forgets keys that have been kept long enough, at most `limit`; returns how many.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the keys forgotten or not.
    pub async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.0.purge(limit).await
    }

    /// Lets the counts of the message's key start over, since its letter is durable: the next message with the key is
    /// another one, and must not die of the attempts and crashes of this one (G3). A consumer does it for each letter,
    /// before it tells the broker; so has whoever runs a stack without one. Asking again changes nothing.
    ///
    /// `None` when it is done. While the key is in flight nothing is changed, and the answer is how long that lasts at
    /// most: whoever is at it goes on with the counts.
    ///
    /// # Errors
    ///
    /// When the store does not answer. Where it did not confirm the last word, the key may be in flight until the lease of
    /// this claim ends, with the counts it had.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the counts as they were or not.
    pub async fn start_over(&self, delivery: &Delivery) -> Result<Option<Duration>, StoreError> {
        self.release(delivery, Release::Dead).await
    }

    /// Claims the message's key, and releases it so.
    pub(crate) async fn release(
        &self,
        delivery: &Delivery,
        release: Release,
    ) -> Result<Option<Duration>, StoreError> {
        self.0.release(delivery, release).await
    }

    /// Waits until the claims of handlers that were dropped midway have been given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn drained(&self) {
        self.0.drained().await;
    }
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<KeyJanitor>();
};
