use std::sync::Arc;
use std::task::{Context, Poll};

use dlq_core::Delivery;
use tower_service::Service;

use super::ResponseFuture;
use super::route::Inner;
use crate::consumer::hand;
use crate::stage::{IsVerdict, Never, RouteError, Settlement};

/// A stack whose dead letters are routed. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct DeadLetter<S> {
    inner: S,
    shared: Arc<Inner>,
}

impl<S> DeadLetter<S> {
    #[inline]
    pub(super) fn new(inner: S, shared: Arc<Inner>) -> Self {
        Self { inner, shared }
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

impl<S> Service<Delivery> for DeadLetter<S>
where
    S: Service<Delivery>,
    S::Response: IsVerdict,
    S::Error: Never,
{
    type Response = Settlement;
    type Error = RouteError;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Never::never)
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        // What was decided and not written comes first. It is written again, and neither decided nor run anew (G3).
        if let Some(known) = self.shared.unfinished.of(&delivery) {
            return ResponseFuture::again(known, delivery, Arc::clone(&self.shared));
        }
        if let Some(refused) = hand::refuses(&delivery) {
            return ResponseFuture::refused(refused, delivery, Arc::clone(&self.shared));
        }
        let inner = self.inner.call(delivery.clone());
        ResponseFuture::new(inner, delivery, Arc::clone(&self.shared))
    }
}
