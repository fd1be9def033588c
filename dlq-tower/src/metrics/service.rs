use std::task::{Context, Poll};

use dlq_core::Delivery;
use tower_service::Service;

use super::{Recorder, ResponseFuture};
use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement};

/// A stack whose messages are counted. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Metrics<S> {
    inner: S,
    recorder: Recorder,
}

impl<S> Metrics<S> {
    #[inline]
    pub(super) fn new(inner: S, recorder: Recorder) -> Self {
        Self { inner, recorder }
    }

    /// The stack inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The stack inside, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The stack inside, without the layer.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Service<Delivery> for Metrics<S>
where
    S: Service<Delivery>,
    S::Response: IsSettlement,
    S::Error: IsRouteError,
{
    type Response = Settlement;
    type Error = RouteError;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(IsRouteError::into_route_error)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let handles = self.recorder.handles(delivery.message().subject_shared());
        ResponseFuture::new(self.inner.call(delivery), handles)
    }
}
