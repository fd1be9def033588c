use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dlq_core::Delivery;
use pin_project_lite::pin_project;

use super::permits::{Permit, Taker};
use crate::stage::{ClassifiedError, Done, IsDone, Setback, classified};

pin_project! {
    /// A run with its permit.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // None where there is no limit.
        permit: Option<Permit>,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(inner: F, permit: Option<Permit>) -> Self {
        Self { inner, permit }
    }

    /// Begins anew with the permit of `taker` and the run that `call` begins in the future inside.
    #[inline]
    pub(super) fn again(
        self: Pin<&mut Self>,
        taker: Option<&mut Taker>,
        delivery: Delivery,
        call: impl FnOnce(Pin<&mut F>, Delivery),
    ) {
        let this = self.project();
        if let (Some(taker), Some(permit)) = (taker, this.permit) {
            taker.hand_to(permit);
        }
        call(this.inner, delivery);
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
        let this = self.project();
        let outcome = ready!(this.inner.poll(cx));
        // The permit goes back with the attempt, and not with the future, which may be kept to begin the next message in.
        if let Some(permit) = this.permit {
            permit.release();
        }
        Poll::Ready(classified(outcome))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
