use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use dlq_core::{Delivery, ErrorClass};
use tower_service::Service;

use super::ResponseFuture;
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, LayerClock, Run, Setback};

/// A service whose panics are failures. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct CatchPanic<S> {
    inner: S,
    class: ErrorClass,
    clock: LayerClock,
}

impl<S> CatchPanic<S> {
    #[inline]
    pub(super) fn new(inner: S, class: ErrorClass, clock: LayerClock) -> Self {
        Self { inner, class, clock }
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

impl<S> Service<Delivery> for CatchPanic<S>
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
        let (run, called) = Run::around(delivery, |delivery| {
            catch_unwind(AssertUnwindSafe(|| self.inner.call(delivery)))
        });
        ResponseFuture::new(called, run, self.class, self.clock.clone())
    }
}

impl<S> Reuse for CatchPanic<S>
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
