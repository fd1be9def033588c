use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    BoxIdempotency, Idempotency as Store, IdempotencyClaim, IdempotencyToken, Release,
};
use dlq_core::{Delivery, ErrorClass, StoreError, StoreErrorKind, Timestamp};
use futures_util::FutureExt as _;
use tower_service::Service;

use super::ResponseFuture;
use super::claimed::{Claimed, Owed};
use super::future::Waiting;
use super::layer::Shared;
use crate::catch_panic::failure_of;
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, Run, Setback};

/// How long a message is deferred for when the store does not answer.
const NO_ANSWER: Duration = Duration::from_secs(1);

/// A service that handles a message once per key. See the [module docs](super).
#[derive(Debug)]
pub struct Idempotency<S, I = BoxIdempotency> {
    inner: S,
    // None where no message has a key.
    shared: Option<Arc<Shared<I>>>,
}

impl<S, I> Idempotency<S, I> {
    #[inline]
    pub(super) fn new(inner: S, shared: Arc<Shared<I>>) -> Self {
        Self { inner, shared: Some(shared) }
    }

    /// The service of a stack without the layer.
    pub(crate) fn without(inner: S) -> Self {
        Self { inner, shared: None }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the layer.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, I> Service<Delivery> for Idempotency<S, I>
where
    I: Store,
    S: Service<Delivery> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    type Response = Done;
    type Error = Setback;
    type Future = ResponseFuture<S::Future, I>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ClassifiedError::into_setback)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        match self.open(delivery) {
            Ok((delivery, token)) => {
                let claimed = self.shared.as_ref().zip(token);
                let claimed =
                    claimed.map(|(shared, token)| Claimed::new(Arc::clone(shared), token));
                ResponseFuture::running(self.inner.call(delivery), claimed)
            }
            Err(waiting) => ResponseFuture::waiting(waiting),
        }
    }
}

impl<S, I> Reuse for Idempotency<S, I>
where
    Self: Service<Delivery, Future = ResponseFuture<S::Future, I>>,
    I: Store,
    S: Reuse + Clone + Send + 'static,
    S::Future: Send,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    #[inline]
    fn again(&mut self, mut done: Pin<&mut Self::Future>, delivery: Delivery) {
        let Some((inner, claimed)) = done.as_mut().run() else {
            return done.set(self.call(delivery));
        };
        match self.open(delivery) {
            Ok((delivery, token)) => {
                match (self.shared.as_ref().zip(token), claimed) {
                    (Some((_, token)), Some(claimed)) => claimed.again(token),
                    (Some((shared, token)), claimed) => {
                        *claimed = Some(Claimed::new(Arc::clone(shared), token));
                    }
                    (None, _) => {}
                }
                self.inner.again(inner, delivery);
            }
            Err(waiting) => done.set(ResponseFuture::waiting(waiting)),
        }
    }
}

impl<S, I> Idempotency<S, I>
where
    I: Store,
    S: Service<Delivery> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    /// What is to be run at once, under a claim if there is a key; else what is to be waited for.
    #[inline]
    fn open(
        &mut self,
        delivery: Delivery,
    ) -> Result<(Delivery, Option<IdempotencyToken>), Waiting> {
        let Some(shared) = &self.shared else { return Ok((delivery, None)) };
        // The function is the user's, and stands outside the panic guard.
        let key = match catch_unwind(AssertUnwindSafe(|| (shared.key)(&delivery))) {
            Ok(Some(key)) => key,
            Ok(None) => return Ok((delivery, None)),
            Err(payload) => {
                let failure = failure_of(payload, ErrorClass::Permanent);
                // The retry stage sets when.
                let setback = Run::begin(&delivery).failed(failure, Timestamp::EPOCH);
                return Err(Box::pin(ready(Err(setback))));
            }
        };
        if !shared.store.is_immediate() {
            let clone = self.inner.clone();
            let ready = std::mem::replace(&mut self.inner, clone);
            return Err(Box::pin(once(Arc::clone(shared), ready, delivery, key)));
        }
        let consumer = Arc::clone(shared.consumer(&delivery));
        let claim = shared.store.claim(consumer, key, shared.lease).now_or_never();
        match shared.claimed(delivery, claim.unwrap_or_else(|| Err(not_immediate()))) {
            Ok((delivery, token)) => Ok((delivery, Some(token))),
            Err(unclaimed) => Err(Box::pin(unclaimed.end(Arc::clone(shared)))),
        }
    }
}

impl<S: Clone, I> Clone for Idempotency<S, I> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

/// Runs the service inside for whoever holds the claim of `key`.
async fn once<S, I>(
    shared: Arc<Shared<I>>,
    mut service: S,
    delivery: Delivery,
    key: Bytes,
) -> Result<Done, Setback>
where
    I: Store,
    S: Service<Delivery>,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    let consumer = Arc::clone(shared.consumer(&delivery));
    let claim = shared.store.claim(consumer, key, shared.lease).await;
    match shared.claimed(delivery, claim) {
        Ok((delivery, token)) => {
            let claimed = Claimed::new(shared, token);
            ResponseFuture::running(service.call(delivery), Some(claimed)).await
        }
        Err(unclaimed) => unclaimed.end(shared).await,
    }
}

/// Why a message is not to be run, with a claim that is of no use then.
struct Unclaimed {
    outcome: Result<Done, Setback>,
    token: Option<IdempotencyToken>,
}

impl Unclaimed {
    fn of(outcome: Result<Done, Setback>) -> Self {
        Self { outcome, token: None }
    }

    /// The claim is in hand from the start, so that it is given back also where nobody waits for the end.
    fn end<I: Store>(
        self,
        shared: Arc<Shared<I>>,
    ) -> impl Future<Output = Result<Done, Setback>> + Send {
        let claimed = self.token.map(|token| Claimed::new(shared, token));
        async move {
            if let Some(claimed) = claimed {
                claimed.settle(Owed::Release(Release::Unused)).await;
            }
            self.outcome
        }
    }
}

fn not_immediate() -> StoreError {
    let error = StoreError::new(StoreErrorKind::Unexpected, "claim a key");
    error.with_detail("the store says that it is immediate, but did not answer at once")
}

impl<I: Store> Shared<I> {
    #[inline]
    fn consumer<'a>(&'a self, delivery: &'a Delivery) -> &'a Arc<str> {
        self.consumer.as_ref().unwrap_or(delivery.consumer_shared())
    }

    /// What is to be run under `claim`, if it is to be.
    #[inline]
    fn claimed(
        &self,
        delivery: Delivery,
        claim: Result<IdempotencyClaim, StoreError>,
    ) -> Result<(Delivery, IdempotencyToken), Unclaimed> {
        let (token, attempts, crashes) = match claim {
            Ok(IdempotencyClaim::New { token, attempts, crashes }) => (token, attempts, crashes),
            Ok(IdempotencyClaim::Done { .. }) => return Err(Unclaimed::of(Ok(Done::Duplicate))),
            Ok(IdempotencyClaim::InFlight { remaining }) => {
                let why = "in flight elsewhere";
                return Err(Unclaimed::of(Err(Setback::Deferred { after: remaining, why })));
            }
            Err(error) => {
                let consumer = &**self.consumer(&delivery);
                tracing::warn!(consumer, %error, "a key could not be claimed");
                let why = "the idempotency store does not answer";
                return Err(Unclaimed::of(Err(Setback::Deferred { after: NO_ANSWER, why })));
            }
        };
        match continued(delivery, attempts, crashes, self.max_crashes) {
            Ok(delivery) => Ok((delivery, token)),
            Err(setback) => Err(Unclaimed { outcome: Err(setback), token: Some(token) }),
        }
    }
}

/// The delivery with the counts that the claim remembers, unless it crashed too often to be run.
///
/// A key counts across deaths, runs included that no letter knows of because the process died before they were
/// recorded. What it says is therefore of no use to a message that came back from the dead, which would else die of
/// attempts of an earlier life (G3): its letter counts for it.
#[inline]
fn continued(
    delivery: Delivery,
    attempts: u32,
    crashes: u32,
    max_crashes: u32,
) -> Result<Delivery, Setback> {
    if delivery.generation() > 0 || delivery.replays() > 0 {
        return Ok(delivery);
    }
    if max_crashes > 0 && crashes >= max_crashes {
        return Err(Setback::Crashed { crashes });
    }
    let attempt = delivery.attempt().max(attempts.saturating_add(1));
    let delivery = delivery.with_attempt(attempt);
    if crashes <= delivery.crashes() {
        return Ok(delivery);
    }
    Ok(delivery.with_crashes(crashes))
}

#[cfg(test)]
mod tests {
    use dlq_core::{
        Attempt, Cause, Death, ErrorClass, Failure, History, LetterId, Message, Origin, Position,
    };

    use super::*;

    fn delivery(runs: &[(u32, u32)], generation: u32) -> Delivery {
        let mut history = History::new();
        for &(generation, number) in runs {
            let failure = Failure::new(ErrorClass::Transient, Cause::Error, "E", "down");
            history.push(Attempt { number, generation, failure });
        }
        let death = Death { letter: LetterId::from_bytes([1; 16]), generation };
        Delivery::new(Message::new("s", ""), Origin::new("memory", "s", Position::Offset(1)))
            .with_history(history)
            .with_death(death)
    }

    #[test]
    fn a_claim_continues_the_count_of_a_first_life_only() {
        let attempt = |delivery, attempts| continued(delivery, attempts, 0, 5).unwrap().attempt();
        assert_eq!(attempt(delivery(&[], 0), 0), 1);
        assert_eq!(attempt(delivery(&[], 0), 2), 3, "two runs that the broker knows nothing of");
        assert_eq!(attempt(delivery(&[(0, 1)], 0).with_attempt(2), 1), 2);
        let twice_dead = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)];
        assert_eq!(attempt(delivery(&twice_dead, 2), 5), 1, "earlier lives do not count");
        assert_eq!(attempt(delivery(&twice_dead, 2), 6), 1, "nor runs of theirs that were lost");
        assert_eq!(attempt(delivery(&twice_dead, 1).with_attempt(3), 5), 3, "the letter counts");
    }

    #[test]
    fn crashes_kill_a_first_life_and_not_a_replay() {
        assert_eq!(continued(delivery(&[], 0), 0, 4, 5).unwrap().crashes(), 4);
        let crashed = continued(delivery(&[], 0), 0, 5, 5).unwrap_err();
        assert_eq!(crashed, Setback::Crashed { crashes: 5 });
        assert_eq!(continued(delivery(&[], 0), 0, 9, 0).unwrap().crashes(), 9);
        assert_eq!(continued(delivery(&[(0, 1)], 1), 1, 5, 5).unwrap().crashes(), 0);
    }
}
