use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::{BoxError, Classifier};
use pin_project_lite::pin_project;

use super::layer::Shared;
use crate::stage::{Done, IsHandled, Run, Setback};

pin_project! {
    /// One run of a handler, classified.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F, C> {
        #[pin]
        handler: F,
        shared: Arc<Shared<C>>,
        run: Run,
    }
}

impl<F, C> ResponseFuture<F, C> {
    #[inline]
    pub(super) fn new(handler: F, shared: Arc<Shared<C>>, run: Run) -> Self {
        Self { handler, shared, run }
    }
}

impl<F, C, R, E> Future for ResponseFuture<F, C>
where
    F: Future<Output = Result<R, E>>,
    R: IsHandled,
    E: Into<BoxError>,
    C: Classifier<E>,
{
    type Output = Result<Done, Setback>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.handler.poll(cx)) {
            Ok(_) => Ok(Done::Succeeded),
            Err(error) => Err(this.run.failed(this.shared.failure(error), this.shared.clock.now())),
        })
    }
}

impl<F, C> fmt::Debug for ResponseFuture<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("run", &self.run).finish_non_exhaustive()
    }
}
