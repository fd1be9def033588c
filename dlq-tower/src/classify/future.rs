use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::{BoxError, Classifier};
use pin_project_lite::pin_project;

use super::layer::Inner;
use crate::stage::{Done, IsHandled, Run, Setback};

pin_project! {
    /// A classified run of a handler.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F, C> {
        // None once it has completed.
        #[pin]
        handler: Option<F>,
        shared: Arc<Inner<C>>,
        run: Run,
    }
}

impl<F, C> ResponseFuture<F, C> {
    #[inline]
    pub(super) fn new(handler: F, shared: Arc<Inner<C>>, run: Run) -> Self {
        Self { handler: Some(handler), shared, run }
    }

    /// Begins anew, with another run.
    #[inline]
    pub(super) fn again(self: Pin<&mut Self>, handler: F, run: Run) {
        let mut this = self.project();
        *this.run = run;
        this.handler.set(Some(handler));
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
        let mut this = self.project();
        let handler = this.handler.as_mut().as_pin_mut();
        let handler = handler.expect("a future is not polled after it has completed");
        let outcome = ready!(handler.poll(cx));
        // What the handler holds goes with its run: the future may be kept to begin the next message in.
        this.handler.set(None);
        Poll::Ready(match outcome {
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
