use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlq_core::Delivery;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;
use tower_service::Service;

use super::ResponseFuture;
use crate::stage::{ClassifiedError, Done, IsDone, Setback};

/// How long a message is deferred for when the semaphore was closed under it.
const CLOSED: Duration = Duration::from_secs(1);

/// A service of which only so many attempts run at once. See the [module docs](super).
#[derive(Debug)]
pub struct Concurrency<S> {
    inner: S,
    // None for as many as there are.
    permits: Option<PollSemaphore>,
    // Taken by `poll_ready`, moved into the future by `call`.
    permit: Option<OwnedSemaphorePermit>,
}

impl<S> Concurrency<S> {
    #[inline]
    pub(super) fn new(inner: S, permits: Arc<Semaphore>) -> Self {
        Self { inner, permits: Some(PollSemaphore::new(permits)), permit: None }
    }

    /// The service of a stack without the layer.
    pub(crate) fn without(inner: S) -> Self {
        Self { inner, permits: None, permit: None }
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

impl<S> Service<Delivery> for Concurrency<S>
where
    S: Service<Delivery>,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    type Response = Done;
    type Error = Setback;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if let (Some(permits), None) = (&mut self.permits, &self.permit) {
            let Some(permit) = ready!(permits.poll_acquire(cx)) else {
                let why = "the semaphore of attempts is closed";
                return Poll::Ready(Err(Setback::Deferred { after: CLOSED, why }));
            };
            self.permit = Some(permit);
        }
        self.inner.poll_ready(cx).map_err(ClassifiedError::into_setback)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let permit = self.permit.take();
        let is_ready = permit.is_some() || self.permits.is_none();
        assert!(is_ready, "a service is polled ready before it is called");
        ResponseFuture::new(self.inner.call(delivery), permit)
    }
}

impl<S: Clone> Clone for Concurrency<S> {
    /// The clone shares the limit and starts without a permit.
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), permits: self.permits.clone(), permit: None }
    }
}
