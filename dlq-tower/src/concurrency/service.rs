use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::Delivery;
use tower_service::Service;

use super::ResponseFuture;
use super::permits::{Permits, Taker};
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, Setback};

/// A service of which only so many attempts run at once. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Concurrency<S> {
    inner: S,
    // None for as many as there are. A permit is taken by `poll_ready` and handed to the future by `call`.
    permits: Option<Taker>,
}

impl<S> Concurrency<S> {
    #[inline]
    pub(super) fn new(inner: S, permits: Arc<Permits>) -> Self {
        Self { inner, permits: Some(Taker::new(permits)) }
    }

    /// The service of a stack without the layer.
    pub(crate) fn without(inner: S) -> Self {
        Self { inner, permits: None }
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
        if let Some(permits) = &mut self.permits {
            // A permit that is held already is not taken twice, however often this is polled before the call.
            ready!(permits.poll(cx));
        }
        self.inner.poll_ready(cx).map_err(ClassifiedError::into_setback)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let permit = self.permits.as_mut().map(Taker::hand_over);
        ResponseFuture::new(self.inner.call(delivery), permit)
    }
}

impl<S> Reuse for Concurrency<S>
where
    S: Reuse,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    #[inline]
    fn again(&mut self, done: Pin<&mut Self::Future>, delivery: Delivery) {
        let Self { inner, permits } = self;
        let call = |done: Pin<&mut S::Future>, delivery| inner.again(done, delivery);
        done.again(permits.as_mut(), delivery, call);
    }
}
