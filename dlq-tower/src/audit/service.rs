use std::task::{Context, Poll};

use dlq_core::store::ProcessedEvent;
use dlq_core::{Delivery, SharedClock};
use tokio::sync::mpsc::Sender;
use tower_service::Service;

use super::ResponseFuture;
use super::future::Note;
use crate::stage::{IsRouteError, IsSettlement, RouteError, Settlement};

/// A stack whose messages are noted. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct Audit<S> {
    inner: S,
    rows: Option<Sender<ProcessedEvent>>,
    clock: SharedClock,
}

impl<S> Audit<S> {
    pub(super) fn new(inner: S, rows: Option<Sender<ProcessedEvent>>, clock: SharedClock) -> Self {
        Self { inner, rows, clock }
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

impl<S> Service<Delivery> for Audit<S>
where
    S: Service<Delivery>,
    S::Response: IsSettlement,
    S::Error: IsRouteError,
{
    type Response = Settlement;
    type Error = RouteError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(IsRouteError::into_route_error)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let note = self
            .rows
            .as_ref()
            .map(|rows| Note::new(delivery.clone(), rows.clone(), self.clock.clone()));
        ResponseFuture::new(self.inner.call(delivery), note)
    }
}
