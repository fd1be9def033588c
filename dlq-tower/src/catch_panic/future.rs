use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use dlq_core::{Cause, Delivery, ErrorClass, Failure};
use pin_project_lite::pin_project;

use crate::stage::{ClassifiedError, Done, IsDone, LayerClock, Run, Setback, classified};

type Payload = Box<dyn Any + Send>;

pin_project! {
    /// A run whose panic is a failure.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
        run: Run,
        class: ErrorClass,
        clock: LayerClock,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The service inside runs.
        Running { #[pin] inner: F },
        // It panicked before it returned a future.
        Panicked { payload: Option<Payload> },
        // It panicked, and what was left of it is dropped.
        Gone,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(
        called: Result<F, Payload>,
        run: Run,
        class: ErrorClass,
        clock: LayerClock,
    ) -> Self {
        let state = match called {
            Ok(inner) => State::Running { inner },
            Err(payload) => State::Panicked { payload: Some(payload) },
        };
        Self { state, run, class, clock }
    }

    /// Begins anew, with the run that `call` begins in the future inside.
    #[inline]
    pub(super) fn again(
        self: Pin<&mut Self>,
        delivery: Delivery,
        call: impl FnOnce(Pin<&mut F>, Delivery),
    ) {
        let mut this = self.project();
        let StateProj::Running { inner } = this.state.as_mut().project() else {
            unreachable!("a run that succeeded did not panic")
        };
        let (run, called) = Run::around(delivery, |delivery| {
            catch_unwind(AssertUnwindSafe(|| call(inner, delivery)))
        });
        *this.run = run;
        if let Err(payload) = called {
            discard(|| this.state.set(State::Gone));
            this.state.set(State::Panicked { payload: Some(payload) });
        }
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
        let payload = match this.state.as_mut().project() {
            StateProj::Running { inner } => {
                // The assertion is safe: after a panic the future is dropped and never polled again.
                match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
                    Ok(Poll::Pending) => return Poll::Pending,
                    Ok(Poll::Ready(outcome)) => {
                        return Poll::Ready(classified(outcome));
                    }
                    Err(payload) => payload,
                }
            }
            StateProj::Panicked { payload } => {
                payload.take().expect("a future is not polled after it has completed")
            }
            StateProj::Gone => unreachable!("a future is not polled after it has completed"),
        };
        // What a panicked future still holds may panic again when it is dropped; one failure is enough.
        discard(|| this.state.set(State::Gone));
        let failure = failure_of(payload, *this.class);
        Poll::Ready(Err(this.run.failed(failure, this.clock.now())))
    }
}

/// The failure that a panic is.
pub(crate) fn failure_of(payload: Payload, class: ErrorClass) -> Failure {
    let message = text_of(&*payload);
    // The payload is a value of the user's, whose destructor may panic as well.
    discard(move || drop(payload));
    Failure::new(class, Cause::Panic, "panic", &message)
}

/// Runs a destructor that may panic. The payload of such a panic is leaked, since dropping it may panic in turn.
pub(crate) fn discard(drop: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(drop)) {
        std::mem::forget(payload);
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked with a value that is not text".to_owned())
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("run", &self.run).finish_non_exhaustive()
    }
}
