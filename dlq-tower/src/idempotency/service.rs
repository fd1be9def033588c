use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    BoxIdempotency, Idempotency as Store, IdempotencyClaim, ImmediateClaim, KeyState, Release,
};
use dlq_core::{Delivery, ErrorClass, StoreError, Timestamp};
use tower_service::Service;

use super::ResponseFuture;
use super::claimed::{Claimed, Owed};
use super::future::Waiting;
use super::layer::Inner;
use crate::backoff::Growing;
use crate::catch_panic::failure_of;
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, InFlight, IsDone, Run, Setback};

/// Time for which a message is deferred when the store does not answer.
const NO_ANSWER: Duration = Duration::from_secs(1);

/// Pause between two questions whether a key is still in flight elsewhere: the first and the longest.
const FIRST_ASK: Duration = Duration::from_millis(100);
const LAST_ASK: Duration = Duration::from_secs(5);

/// A service that handles a message once per key. See the [module docs](super).
#[derive(Debug)]
pub struct Idempotency<S, I = BoxIdempotency> {
    inner: S,
    // None where no message has a key.
    shared: Option<Arc<Inner<I>>>,
}

impl<S, I> Idempotency<S, I> {
    #[inline]
    pub(super) fn new(inner: S, shared: Arc<Inner<I>>) -> Self {
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
        let mut claimed = None;
        match self.open(delivery, &mut claimed) {
            Ok(delivery) => ResponseFuture::running(self.inner.call(delivery), claimed),
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
        match self.open(delivery, claimed) {
            Ok(delivery) => self.inner.again(inner, delivery),
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
    /// Begins the run that is possible at once, with its claim in `claimed` if there is a key; else returns the future
    /// to wait for.
    #[inline]
    fn open(
        &mut self,
        delivery: Delivery,
        claimed: &mut Option<Claimed<I>>,
    ) -> Result<Delivery, Waiting> {
        let Some(shared) = &self.shared else { return Ok(delivery) };
        // The function is the user's, and stands outside the panic guard.
        let key = match catch_unwind(AssertUnwindSafe(|| (shared.key)(&delivery))) {
            Ok(Some(key)) => key,
            // A message without a key is handled as often as it comes; that is the caller's choice.
            Ok(None) => return Ok(delivery),
            Err(payload) => {
                let failure = failure_of(payload, ErrorClass::Permanent);
                // The retry stage sets when.
                let setback = Run::begin(&delivery).failed(failure, Timestamp::EPOCH);
                return Err(Box::pin(ready(Err(setback))));
            }
        };
        // Former names are looked up through the store's futures.
        let immediate = if shared.former.is_empty() { shared.store.immediate() } else { None };
        let Some(store) = immediate else {
            // The service that is ready goes into the future, with the permit that it may hold. Its clone may not be
            // ready.
            let clone = self.inner.clone();
            let ready = std::mem::replace(&mut self.inner, clone);
            return Err(Box::pin(once(Arc::clone(shared), ready, delivery, key)));
        };
        let admitted = match store.claim_now(shared.consumer(&delivery), &key, shared.lease) {
            ImmediateClaim::New { proof, attempts, crashes } => {
                Claimed::hold(claimed, shared, &delivery, key, proof);
                continued(delivery, attempts, crashes, shared.max_crashes).map_err(Err)
            }
            ImmediateClaim::Done { .. } => Err(Ok(Done::Duplicate)),
            ImmediateClaim::InFlight { remaining } => {
                let consumer = Arc::clone(shared.consumer(&delivery));
                Err(Err(shared.in_flight(consumer, key, remaining, "in flight elsewhere")))
            }
        };
        admitted.map_err(|outcome| {
            if let Some(claimed) = claimed {
                claimed.settle_now(UNUSED);
            }
            Box::pin(ready(outcome)) as Waiting
        })
    }
}

impl<S: Clone, I> Clone for Idempotency<S, I> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

/// Runs the service inside for whoever holds the claim of `key`.
async fn once<S, I>(
    shared: Arc<Inner<I>>,
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
    // Former names come before the claim: a key that is done under one of them must not be run again.
    let former = shared.former_state(&key).await;
    if let Some(outcome) = former.unwrap_or_else(|error| Some(shared.no_answer(&consumer, &error)))
    {
        return outcome;
    }
    let claim = shared.store.claim(Arc::clone(&consumer), key.clone(), shared.lease).await;
    if claim.is_ok() {
        shared.answers.works();
    }
    let (token, attempts, crashes) = match claim {
        Ok(IdempotencyClaim::New { token, attempts, crashes }) => (token, attempts, crashes),
        Ok(IdempotencyClaim::InFlight { remaining }) => {
            return Err(shared.in_flight(consumer, key, remaining, "in flight elsewhere"));
        }
        Ok(IdempotencyClaim::Done { .. }) => return Ok(Done::Duplicate),
        Err(error) => return shared.no_answer(&consumer, &error),
    };
    // A claim that is dropped from here on is released unused: a run that is cut off is neither an attempt nor a crash (G3).
    let claimed = Claimed::new(Arc::clone(&shared), token, Some(&delivery));
    match continued(delivery, attempts, crashes, shared.max_crashes) {
        Ok(delivery) => ResponseFuture::running(service.call(delivery), Some(claimed)).await,
        Err(setback) => {
            claimed.settle(UNUSED).await;
            Err(setback)
        }
    }
}

/// Call that is owed for a claim under which nothing was run, since the message crashed too often. The counts stay
/// until its letter is durable, or it would be run again when that cannot be written.
const UNUSED: Owed = Owed::Release(Release::Unused);

impl<I: Store> Inner<I> {
    /// The outcome of a message whose key the store does not tell of.
    #[cold]
    fn no_answer(&self, consumer: &str, error: &StoreError) -> Result<Done, Setback> {
        tracing::warn!(consumer, %error, "a key could not be claimed");
        self.answers.failed(error);
        Err(Setback::Deferred { after: NO_ANSWER, why: "the idempotency store does not answer" })
    }

    #[inline]
    pub(super) fn consumer<'a>(&'a self, delivery: &'a Delivery) -> &'a Arc<str> {
        self.consumer.as_ref().unwrap_or(delivery.consumer_shared())
    }

    /// Returns the time to wait for the holder of a key. If a clock was set back, the holder's lease ends late, while
    /// it goes on and extends it by the new time: asking again costs one call.
    #[inline]
    pub(super) fn at_most(&self, remaining: Duration) -> Duration {
        remaining.min(self.lease)
    }

    /// The outcome of a message whose key is done or in flight under a name that the consumer had before; `None` for one
    /// that is to be claimed.
    async fn former_state(
        self: &Arc<Self>,
        key: &Bytes,
    ) -> Result<Option<Result<Done, Setback>>, StoreError> {
        for former in &*self.former {
            match self.store.look_up(Arc::clone(former), key.clone()).await? {
                KeyState::Free => {}
                KeyState::Done { .. } => return Ok(Some(Ok(Done::Duplicate))),
                KeyState::InFlight { remaining } => {
                    let why = "in flight under a former name";
                    let setback = self.in_flight(Arc::clone(former), key.clone(), remaining, why);
                    return Ok(Some(Err(setback)));
                }
            }
        }
        Ok(None)
    }

    /// The outcome of a message whose key is in flight, by which its end can be waited for.
    #[cold]
    fn in_flight(
        self: &Arc<Self>,
        consumer: Arc<str>,
        key: Bytes,
        remaining: Duration,
        why: &'static str,
    ) -> Setback {
        // A holder that ended just before this is not heard of. The first question to the store finds that out.
        let waiter = self.waiters.join(key.clone());
        let remaining = self.at_most(remaining);
        let shared = Arc::clone(self);
        let ended = move || -> Pin<Box<dyn Future<Output = ()> + Send>> {
            let (shared, waiter) = (Arc::clone(&shared), Arc::clone(&waiter));
            let (consumer, key) = (Arc::clone(&consumer), key.clone());
            Box::pin(async move {
                let (mut pause, mut remaining) = (Growing::new(FIRST_ASK, LAST_ASK), remaining);
                loop {
                    // Where the lease ends the store is asked, and no later: a holder that has died tells nobody.
                    let pause = pause.next().min(remaining.max(FIRST_ASK));
                    tokio::select! {
                        biased;
                        () = waiter.ended() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    match shared.store.look_up(Arc::clone(&consumer), key.clone()).await {
                        Ok(KeyState::InFlight { remaining: left }) => remaining = left,
                        // Where the store does not answer, the claim says so.
                        _ => return,
                    }
                }
            })
        };
        Setback::InFlight(Box::new(InFlight::new(remaining, why, ended)))
    }
}

/// The delivery with the counts that the claim remembers, unless it crashed too often to be run.
///
/// The counts of a key start over when the letter of a message of it is durable, but one that comes back may meet those of
/// a newer message. They are of no use to it, which would else die of attempts of another's life (G3): its letter counts for it.
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
    // Either may know more: the delivery counts attempts made before a key was forgotten, the key those of a process
    // that died.
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
