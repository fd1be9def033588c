use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dlq_core::idempotency::Idempotency as Store;
use pin_project_lite::pin_project;

use super::claimed::{Claimed, Owed};
use crate::stage::{ClassifiedError, Done, IsDone, Setback, classified};

type Outcome = Result<Done, Setback>;

/// Future that is awaited in place of a run, or after it.
pub(super) type Waiting = Pin<Box<dyn Future<Output = Outcome> + Send>>;

pin_project! {
    /// A run, at most once per key.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F, I: Store> {
        #[pin]
        state: State<F, I>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, I: Store> {
        // The service inside runs; under a claim, if there is a key. A claim that is settled stays, to be made again.
        Running { #[pin] inner: F, claimed: Option<Claimed<I>>, keep: Option<Keep> },
        // The store is waited for, before the run or after it.
        Waiting { outcome: Waiting },
    }
}

/// Extends the claim while the service inside waits.
type Keep = Pin<Box<dyn Future<Output = Infallible> + Send>>;

impl<F, I: Store> ResponseFuture<F, I> {
    #[inline]
    pub(super) fn running(inner: F, claimed: Option<Claimed<I>>) -> Self {
        Self { state: State::Running { inner, claimed, keep: None } }
    }

    pub(super) fn waiting(outcome: Waiting) -> Self {
        Self { state: State::Waiting { outcome } }
    }

    /// The parts of a run that succeeded, to begin anew with; nothing where there was no run.
    #[inline]
    pub(super) fn run(self: Pin<&mut Self>) -> Option<(Pin<&mut F>, &mut Option<Claimed<I>>)> {
        match self.project().state.project() {
            StateProj::Running { inner, claimed, .. } => Some((inner, claimed)),
            StateProj::Waiting { .. } => None,
        }
    }
}

impl<F, I, R, E> Future for ResponseFuture<F, I>
where
    I: Store,
    F: Future<Output = Result<R, E>>,
    R: IsDone,
    E: ClassifiedError,
{
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let (outcome, owed, claimed) = match state.as_mut().project() {
            StateProj::Waiting { outcome } => return outcome.as_mut().poll(cx),
            StateProj::Running { inner, claimed, keep } => match inner.poll(cx) {
                Poll::Ready(outcome) => {
                    // No extension is sent once the run has ended.
                    *keep = None;
                    let outcome = classified(outcome);
                    let owed = Owed::after(&outcome);
                    // An immediate store is told in place. The claim stays there, so that the next run
                    // in this future reuses it.
                    match claimed.take_if(|claimed| !claimed.settle_now(owed)) {
                        Some(claimed) => (outcome, owed, claimed),
                        None => return Poll::Ready(outcome),
                    }
                }
                // The service inside first: one that is done at once needs no timer.
                Poll::Pending => {
                    if let Some(claimed) = claimed {
                        let keep = keep.get_or_insert_with(|| Box::pin(claimed.keep()));
                        let _never_ready = keep.as_mut().poll(cx);
                    }
                    return Poll::Pending;
                }
            },
        };
        let outcome = async move {
            // After a success the key is done before the broker is told. A process that dies in between leaves a duplicate,
            // and not a second run.
            claimed.settle(owed).await;
            outcome
        };
        state.set(State::Waiting { outcome: Box::pin(outcome) });
        match state.project() {
            StateProj::Waiting { outcome } => outcome.as_mut().poll(cx),
            StateProj::Running { .. } => unreachable!("set above"),
        }
    }
}

impl<F, I: Store> fmt::Debug for ResponseFuture<F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = matches!(self.state, State::Waiting { .. });
        f.debug_struct("ResponseFuture").field("waiting", &waiting).finish_non_exhaustive()
    }
}
