use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlq_core::Delivery;
use tower_service::Service;

use super::ResponseFuture;
use super::decide::Inner;
use crate::stage::{ClassifiedError, IsDone, Setback, Verdict};

/// Time for which a message is deferred when the service inside cannot become ready.
const UNREADY: Duration = Duration::from_secs(1);

/// A service that is retried. See the [module docs](super).
#[derive(Debug)]
pub struct Retry<S> {
    inner: S,
    shared: Arc<Inner>,
    // Why `inner` could not become ready. This service itself cannot fail, so its next message is deferred instead.
    unready: Option<Verdict>,
}

impl<S> Retry<S> {
    #[inline]
    pub(super) fn new(inner: S, shared: Arc<Inner>) -> Self {
        Self { inner, shared, unready: None }
    }

    /// Handles `delivery` as soon as the service inside is ready, which need not be so now.
    #[inline]
    pub(crate) fn handle(&self, delivery: Delivery) -> ResponseFuture<S>
    where
        S: Service<Delivery> + Clone,
    {
        ResponseFuture::waiting(self.inner.clone(), delivery, Arc::clone(&self.shared))
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the layer.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

/// Returns the time to wait, and the reason, when a service could not become ready: no handler has run, so nothing is counted.
pub(crate) fn unready(setback: &Setback) -> (Duration, &'static str) {
    if let Setback::Deferred { after, why } = *setback {
        return (after, why);
    }
    tracing::error!(error = %setback, "a handler cannot become ready; its messages are deferred");
    (UNREADY, "the handler is not ready")
}

impl<S> Service<Delivery> for Retry<S>
where
    S: Service<Delivery> + Clone,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    type Response = Verdict;
    type Error = Infallible;
    type Future = ResponseFuture<S>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if let Err(error) = ready!(self.inner.poll_ready(cx)) {
            let (after, why) = unready(&error.into_setback());
            // An error here would end the whole stack, though only the next message is concerned.
            self.unready = Some(Verdict::Defer { after, why });
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        // The one that is ready goes, with the permit it may hold; the clone may have to become ready first.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        // The handler may want to know which run is the last.
        let delivery = delivery.with_max_attempts(shared.policy.max_attempts());
        let unready = self.unready.take();
        match shared.refuse(&delivery).or(unready) {
            Some(verdict) => ResponseFuture::decided(verdict, ready, delivery, shared),
            None => ResponseFuture::running(ready, delivery, shared),
        }
    }
}

impl<S: Clone> Clone for Retry<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared), unready: None }
    }
}
