use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency, IdempotencyToken, Proof, Release};
use dlq_core::{Delivery, StoreError, StoreErrorKind};
use tokio::runtime::Handle;

use super::layer::Inner;
use crate::backoff::Growing;
use crate::consumer::hand::Hand;
use crate::retry;
use crate::stage::{Done, Setback};

/// The shortest time between two extensions.
const SHORTEST: Duration = Duration::from_millis(10);

/// Pause between two tries to record the end of a run.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Call that the store is still owed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    /// The handler succeeded.
    Completion,
    /// The key is free again.
    Release(Release),
}

impl Owed {
    /// Returns the call that is owed after a run.
    #[inline]
    pub(super) fn after(outcome: &Result<Done, Setback>) -> Self {
        match outcome {
            Ok(_) => Self::Completion,
            Err(setback) => Self::Release(released(setback)),
        }
    }
}

/// Returns the way to release the key after `setback`. Only a permanent failure is known here to be the end: any other
/// death is, once its letter is durable, and then the counts start over.
#[cold]
fn released(setback: &Setback) -> Release {
    match setback {
        Setback::Failed(attempt) if retry::is_permanent(&attempt.failure) => Release::Dead,
        Setback::Failed(_) => Release::Failed,
        Setback::Crashed { .. } | Setback::Deferred { .. } | Setback::InFlight(_) => {
            Release::Unused
        }
    }
}

/// A claim in our hands. Dropped before it is settled, it is settled all the same: in place with an
/// immediate store, else by a task of its own, which tells the store again while that is out for a while.
#[derive(Debug)]
pub(super) struct Claimed<I: Idempotency> {
    shared: Arc<Inner<I>>,
    // None once it is settled; another may be taken in flight then.
    held: Option<Held>,
    owed: Owed,
}

/// Identity of a claim.
#[derive(Debug)]
struct Held {
    // None for the one that the layer names.
    consumer: Option<Arc<str>>,
    key: Bytes,
    proof: Proof,
    /// The run that it is for, where one is.
    hand: Option<Arc<Hand>>,
}

impl Held {
    /// The store knows of the end. Whoever has the message in flight may find that a failure was an outage's.
    #[inline]
    fn recorded(&self, owed: Owed) {
        if let (Owed::Release(Release::Failed), Some(hand)) = (owed, &self.hand) {
            hand.attempt_counted();
        }
    }
}

impl<I: Idempotency> Claimed<I> {
    /// The claim of a run of `delivery`, if it is for one.
    pub(super) fn new(
        shared: Arc<Inner<I>>,
        token: IdempotencyToken,
        delivery: Option<&Delivery>,
    ) -> Self {
        let IdempotencyToken { consumer, key, fence } = token;
        let (proof, hand) =
            (Proof { fence, place: 0 }, delivery.and_then(Delivery::extension_shared));
        let held = Held { consumer: Some(consumer), key, proof, hand };
        Self { shared, held: Some(held), owed: Owed::Release(Release::Unused) }
    }

    /// Takes the claim of `proof` in flight, where another one was settled if there was one.
    #[inline]
    pub(super) fn hold<'a>(
        place: &'a mut Option<Self>,
        shared: &Arc<Inner<I>>,
        delivery: &Delivery,
        key: Bytes,
        proof: Proof,
    ) -> &'a mut Self {
        let this = place.get_or_insert_with(|| Self {
            shared: Arc::clone(shared),
            held: None,
            owed: Owed::Release(Release::Unused),
        });
        let named = || Arc::clone(delivery.consumer_shared());
        let consumer = if shared.consumer.is_some() { None } else { Some(named()) };
        this.owed = Owed::Release(Release::Unused);
        let hand = delivery.extension_shared();
        this.held = Some(Held { consumer, key, proof, hand });
        this
    }

    fn token(&self) -> Option<IdempotencyToken> {
        let Held { key, proof, .. } = self.held.as_ref()?;
        let consumer = Arc::clone(self.consumer()?);
        Some(IdempotencyToken { consumer, key: key.clone(), fence: proof.fence })
    }

    #[inline]
    fn consumer(&self) -> Option<&Arc<str>> {
        self.held.as_ref()?.consumer.as_ref().or(self.shared.consumer.as_ref())
    }

    /// Extends the claim for as long as it is polled.
    pub(super) fn keep(&self) -> impl Future<Output = Infallible> + Send + use<I> {
        let (shared, token) = (Arc::clone(&self.shared), self.token());
        async move {
            let Some(token) = token else { return std::future::pending().await };
            loop {
                // A third of the lease leaves time for two more tries where one fails.
                tokio::time::sleep((shared.lease / 3).max(SHORTEST)).await;
                match shared.store.extend(token.clone(), shared.lease).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::warn!(
                            consumer = &*token.consumer,
                            "a claim was lost while its handler runs: the message may run elsewhere as well"
                        );
                        // The handler goes on, since what it has done cannot be taken back. `settle` finds that
                        // the claim is not its own.
                        return std::future::pending().await;
                    }
                    Err(error) => {
                        tracing::warn!(consumer = &*token.consumer, %error, "a claim could not be extended");
                    }
                }
            }
        }
    }

    /// Tells the store how the run ended; `false` when it is not recorded, which is logged. Where that may pass it is told
    /// again by a task, and nobody waits for it.
    pub(super) async fn settle(mut self, owed: Owed) -> bool {
        // Owed before it is tried: a caller that is dropped here leaves it to the task.
        self.owed = owed;
        let Some(token) = self.token() else { return true };
        let told = tell(&self.shared, token, owed).await;
        if told.is_none() {
            // Dropped with what it owes.
            return false;
        }
        if let (Some(held), Some(true)) = (self.held.take(), told) {
            held.recorded(owed);
        }
        told == Some(true)
    }

    /// The same in place, with a store that is [immediate](Idempotency::immediate); `false` where that is to be waited
    /// for.
    #[inline]
    pub(super) fn settle_now(&mut self, owed: Owed) -> bool {
        self.owed = owed;
        let Some(store) = self.shared.store.immediate() else { return self.held.is_none() };
        if let (Some(consumer), Some(held)) = (self.consumer(), &self.held) {
            let settled = match owed {
                Owed::Completion => {
                    store.complete_now(consumer, &held.key, held.proof, self.shared.keep)
                }
                Owed::Release(release) => {
                    store.release_now(consumer, &held.key, held.proof, release)
                }
            };
            match settled {
                true => held.recorded(owed),
                // The lease had ended, so that another process may have the key. What this run has done stands all the same.
                false => self.shared.unsettled(owed, Ok(false)),
            }
            self.shared.wake(owed, &held.key);
        }
        self.held = None;
        true
    }
}

/// Returns the recorded state; `None` if the call has to be made again.
async fn tell<I: Idempotency>(
    shared: &Inner<I>,
    token: IdempotencyToken,
    owed: Owed,
) -> Option<bool> {
    let key = token.key.clone();
    let settled = match owed {
        Owed::Completion => shared.store.complete(token, shared.keep).await,
        Owed::Release(release) => shared.store.release(token, release).await,
    };
    match settled {
        Ok(true) => {
            shared.wake(owed, &key);
            Some(true)
        }
        Err(error) if error.is_transient() => {
            let consumer = shared.consumer.as_deref();
            tracing::warn!(consumer, ?owed, %error, "the end of a claim is not recorded yet");
            None
        }
        settled => {
            shared.unsettled(owed, settled);
            shared.wake(owed, &key);
            Some(false)
        }
    }
}

impl<I> Inner<I> {
    /// Wakes those who wait for a key, unless its message is to be retried, which they would only get ahead of. The last
    /// failure of a message wakes them when its counts start over.
    #[inline]
    fn wake(&self, owed: Owed, key: &Bytes) {
        if !matches!(owed, Owed::Release(Release::Failed)) {
            self.waiters.wake(key);
        }
    }

    /// Says what is amiss with the end of a claim that is not recorded.
    #[cold]
    fn unsettled(&self, owed: Owed, why: Result<bool, StoreError>) {
        let consumer = self.consumer.as_deref();
        match why {
            Ok(_) => tracing::warn!(
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
        if self.held.is_some() && !self.settle_now(self.owed) {
            self.leave();
        }
    }
}

impl<I: Idempotency> Claimed<I> {
    /// Leaves it to a task.
    #[cold]
    fn leave(&self) {
        let Some(token) = self.token() else { return };
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!(consumer = &*token.consumer, "a claim is left to its lease: no runtime");
            return;
        };
        let (shared, owed) = (Arc::clone(&self.shared), self.owed);
        let settling = async move {
            let mut pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
            let told = async {
                while tell(&shared, token.clone(), owed).await.is_none() {
                    tokio::time::sleep(pause.next()).await;
                }
            };
            // Past its lease the claim is over anyway.
            if tokio::time::timeout(shared.lease, told).await.is_err() {
                let unheard = StoreError::new(StoreErrorKind::Unavailable, "end a claim");
                shared.unsettled(owed, Err(unheard.with_detail("not within its lease")));
            }
        };
        // The task is tracked, so that an orderly stop can wait until the claim is given back: see `KeyJanitor::drained`.
        self.shared.tasks.spawn_on(settling, &runtime);
    }
}
