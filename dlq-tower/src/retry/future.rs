use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlq_core::{Delivery, History};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower_service::Service;

use super::decide::{Inner, Step};
use super::in_process::{InProcessDelay, stopped};
use super::service::unready;
use crate::consumer::hand;
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, IsDone, Verdict};

pin_project! {
    /// A message in flight, from its first attempt to the verdict.
    #[project = Projection]
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<S>
    where
        S: Service<Delivery>,
    {
        service: S,
        // The next attempt, or the one that runs. None once the verdict was given.
        delivery: Option<Delivery>,
        shared: Arc<Inner>,
        // None until an attempt has failed here.
        history: Option<History>,
        // It was logged that it waits for its key.
        has_waited: bool,
        // Listened to while the message waits. Boxed, since most messages never wait.
        stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
        #[pin]
        state: State<S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The verdict stands.
        Decided { verdict: Option<Verdict> },
        // An attempt runs.
        Running { #[pin] attempt: F },
        // Between two attempts: holds a slot, and no permit; no turn to run either, once `rest` is done.
        Holding { #[pin] delay: Sleep, slot: Option<InProcessDelay>, rest: Option<Resting> },
        // Its key is in flight: holds a slot, and neither permit nor turn. `ended` is None once it seems to be free or done.
        Awaiting { ended: Option<Ended>, slot: Option<InProcessDelay>, rest: Option<Resting> },
        // The service has to become ready for the attempt that is due. While it is not, there is no turn to run either.
        Waiting { slot: Option<InProcessDelay>, rest: Option<Resting>, rests: bool },
        // The service is ready, and something runs that must not run beside this.
        Resuming { turn: Resuming, slot: Option<InProcessDelay> },
    }
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;
type Resting = Pin<Box<dyn Future<Output = ()> + Send>>;
type Resuming = Pin<Box<dyn Future<Output = Result<(), Duration>> + Send>>;

impl<S: Service<Delivery>> ResponseFuture<S> {
    #[inline]
    fn new(service: S, delivery: Delivery, shared: Arc<Inner>, state: State<S::Future>) -> Self {
        Self {
            service,
            delivery: Some(delivery),
            shared,
            history: None,
            has_waited: false,
            stop: None,
            state,
        }
    }

    pub(super) fn decided(
        verdict: Verdict,
        service: S,
        delivery: Delivery,
        shared: Arc<Inner>,
    ) -> Self {
        Self::new(service, delivery, shared, State::Decided { verdict: Some(verdict) })
    }

    #[inline]
    pub(super) fn running(mut service: S, delivery: Delivery, shared: Arc<Inner>) -> Self {
        let state = State::Running { attempt: service.call(delivery.clone()) };
        Self::new(service, delivery, shared, state)
    }

    /// Handles `delivery` as soon as the service is ready, which need not be so now.
    pub(super) fn waiting(service: S, delivery: Delivery, shared: Arc<Inner>) -> Self {
        let state = due(&shared, &delivery);
        Self::new(service, delivery, shared, state)
    }

    /// Handles another message, once the verdict on the last one was given.
    #[inline]
    pub(crate) fn restart(self: Pin<&mut Self>, delivery: Delivery) {
        let mut this = self.project();
        this.state.set(due(this.shared, &delivery));
        *this.delivery = Some(delivery);
    }

    /// The same after a message that [`poll_kept`](Self::poll_kept) was polled for: begins in the attempt that it left.
    #[inline]
    pub(crate) fn again(mut self: Pin<&mut Self>, cx: &mut Context<'_>, delivery: Delivery)
    where
        S: Reuse,
    {
        let mut this = self.as_mut().project();
        if let StateProj::Running { attempt } = this.state.as_mut().project()
            && !this.shared.is_refused(&delivery)
            && let Poll::Ready(Ok(())) = this.service.poll_ready(cx)
        {
            this.service.again(attempt, delivery.clone());
            *this.delivery = Some(delivery);
        } else {
            self.restart(delivery);
        }
    }

    /// The same as `poll`, and keeps an attempt that succeeded, in which nothing of the message is left.
    #[inline]
    pub(crate) fn poll_kept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict>
    where
        S: Reuse<Response: IsDone, Error: ClassifiedError>,
    {
        let mut this = self.project();
        let verdict = ready!(this.verdict(cx));
        this.forget();
        let Verdict::Done(done) = verdict else {
            this.state.set(State::Decided { verdict: None });
            return Poll::Ready(verdict);
        };
        Poll::Ready(Verdict::Done(done))
    }
}

/// Returns the first state of a message whose service is not known to be ready.
#[inline]
fn due<F>(shared: &Inner, delivery: &Delivery) -> State<F> {
    match shared.refuse(delivery) {
        None => State::Waiting { slot: None, rest: None, rests: false },
        verdict => State::Decided { verdict },
    }
}

impl<S> Future for ResponseFuture<S>
where
    S: Service<Delivery>,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    type Output = Result<Verdict, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let verdict = ready!(this.verdict(cx));
        this.state.set(State::Decided { verdict: None });
        this.forget();
        Poll::Ready(Ok(verdict))
    }
}

impl<S: Service<Delivery>> Projection<'_, S> {
    /// Lets go of what is left of the message when the verdict is given.
    #[inline]
    fn forget(&mut self) {
        *self.delivery = None;
        *self.history = None;
        *self.has_waited = false;
        *self.stop = None;
    }
}

impl<S> Projection<'_, S>
where
    S: Service<Delivery>,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    #[inline]
    fn verdict(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        let this = self;
        let delivery = this.delivery.as_mut();
        let delivery = delivery.expect("a future is not polled after it has completed");
        loop {
            match this.state.as_mut().project() {
                StateProj::Decided { verdict } => {
                    let verdict = verdict.take();
                    return Poll::Ready(verdict.expect("the verdict is taken once"));
                }
                StateProj::Running { attempt } => {
                    let setback = match ready!(attempt.poll(cx)) {
                        Ok(done) => return Poll::Ready(Verdict::Done(done.into_done())),
                        Err(error) => error.into_setback(),
                    };
                    // The attempt's permit and lease go with its future, before anything is waited for.
                    this.state.set(State::Decided { verdict: None });
                    let delay = match this.shared.after(setback, delivery, this.history) {
                        Step::Over(verdict) => return Poll::Ready(verdict),
                        Step::Again(delay) => delay,
                        Step::Wait(in_flight) => {
                            let Some(slot) = this.shared.slot_to_wait(delivery) else {
                                let (after, why) = (in_flight.remaining(), in_flight.why());
                                let verdict = this.shared.defer(after, why, delivery, this.history);
                                return Poll::Ready(verdict);
                            };
                            if !std::mem::replace(this.has_waited, true) {
                                this.shared.waits(&in_flight, delivery);
                            }
                            let (ended, slot) = (Some(in_flight.ended()), Some(slot));
                            this.state.set(State::Awaiting {
                                ended,
                                slot,
                                rest: hand::rest(delivery),
                            });
                            continue;
                        }
                    };
                    // A short delay without a free slot goes to the retry queue as well, so that what
                    // waits here is bounded (G4).
                    let slot = (delay <= this.shared.policy.max_in_process_delay())
                        .then(|| this.shared.slots.take(delivery))
                        .flatten();
                    if slot.is_none() {
                        let verdict = this.shared.postpone(delay, delivery, this.history);
                        return Poll::Ready(verdict);
                    }
                    let rest = hand::rest(delivery);
                    this.state.set(State::Holding { delay: sleep(delay), slot, rest });
                }
                StateProj::Holding { delay, slot, rest } => {
                    // On a stop the message waits elsewhere for what is left, and not for the whole delay again.
                    let left = delay.deadline().saturating_duration_since(Instant::now());
                    if rest.as_mut().is_some_and(|rest| rest.as_mut().poll(cx).is_ready()) {
                        *rest = None;
                    }
                    // The mark of the last attempt has to be gone before the next one writes its own.
                    if delay.poll(cx).is_pending() || rest.is_some() {
                        ready!(poll_stop(this.stop, delivery, cx));
                        let verdict = this.shared.postpone(left, delivery, this.history);
                        return Poll::Ready(verdict);
                    }
                    let slot = slot.take();
                    this.state.set(State::Waiting { slot, rest: None, rests: true });
                }
                StateProj::Awaiting { ended, slot, rest } => {
                    if rest.as_mut().is_some_and(|rest| rest.as_mut().poll(cx).is_ready()) {
                        *rest = None;
                    }
                    if ended.as_mut().is_some_and(|ended| ended.as_mut().poll(cx).is_ready()) {
                        *ended = None;
                    }
                    if ended.is_some() || rest.is_some() {
                        ready!(poll_stop(this.stop, delivery, cx));
                        let (now, why) = (Duration::ZERO, "the consumer stops");
                        let verdict = this.shared.defer(now, why, delivery, this.history);
                        return Poll::Ready(verdict);
                    }
                    let slot = slot.take();
                    this.state.set(State::Waiting { slot, rest: None, rests: true });
                }
                StateProj::Waiting { slot, rest, rests } => {
                    if rest.as_mut().is_some_and(|rest| rest.as_mut().poll(cx).is_ready()) {
                        *rest = None;
                    }
                    match this.service.poll_ready(cx) {
                        Poll::Ready(Ok(())) if rest.is_none() => {
                            if let Some(turn) = hand::resume(delivery) {
                                // Who waits for a turn still waits in the process, so that the slot is kept
                                // until the attempt begins.
                                let slot = slot.take();
                                this.state.set(State::Resuming { turn, slot });
                                continue;
                            }
                            let attempt = this.service.call(delivery.clone());
                            this.state.set(State::Running { attempt });
                            continue;
                        }
                        Poll::Ready(Err(error)) => {
                            let (after, why) = unready(&error.into_setback());
                            let verdict = this.shared.defer(after, why, delivery, this.history);
                            return Poll::Ready(verdict);
                        }
                        // Who has what it waits for may itself wait for a turn.
                        Poll::Pending if !*rests => {
                            *rests = true;
                            *rest = hand::rest(delivery);
                            if rest.is_some() {
                                continue;
                            }
                        }
                        _ => {}
                    }
                    ready!(poll_stop(this.stop, delivery, cx));
                    let (now, why) = (Duration::ZERO, "the consumer stops");
                    let verdict = this.shared.defer(now, why, delivery, this.history);
                    return Poll::Ready(verdict);
                }
                StateProj::Resuming { turn, .. } => {
                    let (after, why) = match turn.as_mut().poll(cx) {
                        Poll::Ready(Ok(())) => {
                            let attempt = this.service.call(delivery.clone());
                            this.state.set(State::Running { attempt });
                            continue;
                        }
                        Poll::Ready(Err(after)) => (after, "its crash mark could not be written"),
                        Poll::Pending => {
                            ready!(poll_stop(this.stop, delivery, cx));
                            (Duration::ZERO, "the consumer stops")
                        }
                    };
                    let verdict = this.shared.defer(after, why, delivery, this.history);
                    return Poll::Ready(verdict);
                }
            }
        }
    }
}

/// Ready when the consumer stops, if it is known when that is.
fn poll_stop(
    stop: &mut Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    delivery: &Delivery,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if stop.is_none() {
        *stop = stopped(delivery).map(Box::pin);
    }
    stop.as_mut().map_or(Poll::Pending, |stop| stop.as_mut().poll(cx))
}

impl<S: Service<Delivery>> fmt::Debug for ResponseFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("delivery", &self.delivery)
            .field("failed_so_far", &self.history.as_ref().map(History::len))
            .finish_non_exhaustive()
    }
}
