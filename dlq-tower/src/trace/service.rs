use std::task::{Context, Poll};

use dlq_core::Delivery;
use tower_service::Service;
use tracing::Span;
use tracing::field::{Empty, display};

use super::{ResponseFuture, TraceContext};
use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement};

/// A stack whose messages are traced. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Trace<S> {
    inner: S,
}

impl<S> Trace<S> {
    #[inline]
    pub(super) fn new(inner: S) -> Self {
        Self { inner }
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

impl<S> Service<Delivery> for Trace<S>
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
        let span = span_of(&delivery);
        let inner = span.in_scope(|| self.inner.call(delivery));
        ResponseFuture::new(inner, span)
    }
}

fn span_of(delivery: &Delivery) -> Span {
    let message = delivery.message();
    let span = tracing::info_span!(
        "message",
        otel.kind = "consumer",
        consumer = delivery.consumer(),
        subject = message.subject(),
        event = message.event(),
        message_id = message.id(),
        origin = %delivery.origin(),
        attempt = delivery.attempt(),
        deliveries = delivery.deliveries(),
        generation = delivery.generation(),
        trace_id = Empty,
        parent_id = Empty,
        outcome = Empty,
    );
    // The headers are searched and the ids formatted only for a span that somebody listens to.
    if !span.is_disabled()
        && let Some(parent) = TraceContext::from_headers(message.headers()).parent()
    {
        span.record("trace_id", display(parent.trace_id()));
        span.record("parent_id", display(parent.parent_id()));
    }
    span
}
