use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::metrics::IntoF64;
use dlq_core::Disposition;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::recorder::Handles;
use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement, reading, with_reading};

pin_project! {
    /// A message in flight, counted when it is settled.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        handles: Arc<Handles>,
        // None until it is first polled, when work on it begins.
        began: Option<Instant>,
    }
}

/// The time since an instant, read only where somebody records it.
struct Since(Instant);

impl IntoF64 for Since {
    fn into_f64(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(inner: F, handles: Arc<Handles>) -> Self {
        Self { inner, handles, began: None }
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
        let (began, polled) = match *this.began {
            Some(began) => (began, this.inner.poll(cx)),
            None => {
                let now = *this.began.insert(reading());
                (now, with_reading(now, || this.inner.poll(cx)))
            }
        };
        let outcome = ready!(polled);
        this.handles.duration.record(Since(began));
        Poll::Ready(match outcome {
            Ok(response) => {
                let settlement = response.into_settlement();
                match settlement.disposition() {
                    Disposition::Succeeded => this.handles.success.increment(1),
                    Disposition::Duplicate => this.handles.duplicate.increment(1),
                    Disposition::Dead(_) => this.handles.dlq.increment(1),
                    // A message that comes again is counted when it ends, so each is counted once.
                    _ => {}
                }
                Ok(settlement)
            }
            Err(error) => Err(error.into_route_error()),
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("began", &self.began).finish_non_exhaustive()
    }
}
