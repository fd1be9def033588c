use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::sync::OwnedSemaphorePermit;

use crate::stage::{ClassifiedError, Done, IsDone, Setback};

pin_project! {
    /// One run, with its permit.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(inner: F, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { inner, permit }
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
        *this.permit = None;
        Poll::Ready(outcome.map(IsDone::into_done).map_err(ClassifiedError::into_setback))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
