use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use dlq_core::Delivery;
use tower_service::Service;

use super::ResponseFuture;
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, LayerClock, Setback};

/// A service whose attempts are cut off in time. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    inner: S,
    // None for as long as it likes.
    limit: Option<Duration>,
    clock: LayerClock,
}

impl<S> Timeout<S> {
    #[inline]
    pub(super) fn new(inner: S, limit: Duration, clock: LayerClock) -> Self {
        Self { inner, limit: Some(limit), clock }
    }

    /// The service of a stack without the layer.
    pub(crate) fn without(inner: S) -> Self {
        Self { inner, limit: None, clock: LayerClock::default() }
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

impl<S> Service<Delivery> for Timeout<S>
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
        self.inner.poll_ready(cx).map_err(ClassifiedError::into_setback)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let (number, generation) = (delivery.attempt(), delivery.generation());
        let inner = self.inner.call(delivery);
        ResponseFuture::new(inner, self.limit, number, generation, self.clock.clone())
    }
}

impl<S> Reuse for Timeout<S>
where
    S: Reuse,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    #[inline]
    fn again(&mut self, done: Pin<&mut Self::Future>, delivery: Delivery) {
        done.again(delivery, |inner, delivery| self.inner.again(inner, delivery));
    }
}
