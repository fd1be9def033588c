use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlq_core::{Attempt, Cause, Delivery, ErrorClass, Failure};
use pin_project_lite::pin_project;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep};

use crate::catch_panic::discard;
use crate::stage::{ClassifiedError, Done, IsDone, LayerClock, Setback, classified};

pin_project! {
    /// A run, cut off in time.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        // None once it was cut off.
        #[pin]
        inner: Option<F>,
        // Armed when the service inside first waits. Unconstrained, so that a service that uses up the task's budget
        // cannot keep its own timer from firing.
        #[pin]
        timer: Option<Unconstrained<Sleep>>,
        limit: Option<Duration>,
        number: u32,
        generation: u32,
        clock: LayerClock,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(
        inner: F,
        limit: Option<Duration>,
        number: u32,
        generation: u32,
        clock: LayerClock,
    ) -> Self {
        Self { inner: Some(inner), timer: None, limit, number, generation, clock }
    }

    /// Begins anew, with the run that `call` begins in the future inside.
    #[inline]
    pub(super) fn again(
        self: Pin<&mut Self>,
        delivery: Delivery,
        call: impl FnOnce(Pin<&mut F>, Delivery),
    ) {
        let this = self.project();
        (*this.number, *this.generation) = (delivery.attempt(), delivery.generation());
        let inner = this.inner.as_pin_mut().expect("a run that succeeded was not cut off");
        call(inner, delivery);
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: IsDone,
    E: ClassifiedError,
{
    type Output = Result<Done, Setback>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let inner = this.inner.as_mut().as_pin_mut();
        let inner = inner.expect("a future is not polled after it has completed");
        // The run is polled first: one that ends at its limit has ended in time.
        if let Poll::Ready(outcome) = inner.poll(cx) {
            // The next run in this future has its whole time again.
            this.timer.set(None);
            return Poll::Ready(classified(outcome));
        }
        let Some(limit) = *this.limit else { return Poll::Pending };
        if this.timer.is_none() {
            this.timer.set(Some(unconstrained(sleep(limit))));
        }
        let timer = this.timer.as_mut().as_pin_mut().expect("the timer was armed above");
        ready!(timer.poll(cx));
        // What was cut off may panic when it is dropped; one failure is enough.
        discard(|| this.inner.set(None));
        let message = format!("the handler ran longer than its timeout of {limit:?}");
        // Transient, since a later attempt may be faster.
        let failure = Failure::new(ErrorClass::Transient, Cause::Timeout, "timeout", &message)
            .timed(this.clock.now(), limit);
        Poll::Ready(Err(Setback::Failed(Box::new(Attempt {
            number: *this.number,
            generation: *this.generation,
            failure,
        }))))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("limit", &self.limit)
            .field("attempt", &self.number)
            .finish_non_exhaustive()
    }
}
