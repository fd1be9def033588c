use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dlq_core::Disposition;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement};

pin_project! {
    /// A message in flight, in its span.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        span: Span,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(inner: F, span: Span) -> Self {
        Self { inner, span }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: IsSettlement,
    E: IsRouteError,
{
    type Output = Result<Settlement, RouteError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        let outcome =
            ready!(this.inner.poll(cx)).map(R::into_settlement).map_err(E::into_route_error);
        // Even a span that nobody listens to would look the field up by its name.
        if !this.span.is_disabled() {
            this.span.record("outcome", word(&outcome));
        }
        Poll::Ready(outcome)
    }
}

fn word(outcome: &Result<Settlement, RouteError>) -> &'static str {
    match outcome {
        Ok(settlement) => match settlement.disposition() {
            Disposition::Succeeded => "succeeded",
            Disposition::Duplicate => "duplicate",
            Disposition::Dead(_) => "dead",
            Disposition::DelayedRetry { .. } => "escalated",
            Disposition::Deferred { .. } => "deferred",
            _ => "unknown",
        },
        Err(_) => "unsettled",
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("span", &self.span).finish_non_exhaustive()
    }
}
