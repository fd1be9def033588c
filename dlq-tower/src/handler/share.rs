use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use dlq_core::{BoxError, Delivery};
use tower_layer::Layer;
use tower_service::Service;

use super::HandlerService;
use super::layered::AttemptFuture;
use crate::concurrency::{Permits, Taker};
use crate::stage::{ClassifiedError, Done, IsDone, Setback};

/// The handler whose attempt a shared service is doing. Travels with the delivery.
struct Attempted(HandlerService);

/// Makes one service of a layer for all handlers and attempts that it is applied to, so that what the layer counts is
/// counted for all of them together. For services that cannot be cloned, such as that of `tower::limit::RateLimitLayer`.
///
/// The service stands behind a lock. Whoever waits until it is ready holds the lock, and others wait in the order in which
/// they came; an attempt that is dropped while it waits gives up its place. Clones of the layer share the service.
///
/// ```
/// use std::time::Duration;
///
/// use dlq_tower::handler::{ShareLayer, handler};
/// use tower::limit::RateLimitLayer;
///
/// async fn charge() {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlq_tower::handler::InvalidConfig> {
/// // Ten attempts a second; further ones wait for their turn.
/// let stack = handler("payments.charge", charge)
///     .layer(ShareLayer::new(RateLimitLayer::new(10, Duration::from_secs(1))))
///     .build()?;
/// # let _ = stack;
/// # Ok(()) }
/// ```
///
/// The layer must hand on the delivery that it was given, or a clone of it.
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ShareLayer<S> {
    shared: Arc<Inner<S>>,
}

struct Inner<S> {
    service: Mutex<S>,
    /// A single permit, for the attempt that waits until the service is ready.
    turn: Arc<Permits>,
}

impl<S> Inner<S> {
    fn service(&self) -> MutexGuard<'_, S> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> ShareLayer<S> {
    /// Makes the one service of `layer`.
    pub fn new<L: Layer<Chosen, Service = S>>(layer: L) -> Self {
        // A lock of the standard library: it is held for a poll or a call, and never across an await.
        let service = Mutex::new(layer.layer(Chosen(())));
        Self { shared: Arc::new(Inner { service, turn: Arc::new(Permits::new(1)) }) }
    }
}

impl<S> Clone for ShareLayer<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for ShareLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<HandlerService> for ShareLayer<S> {
    type Service = Share<S>;

    fn layer(&self, handler: HandlerService) -> Share<S> {
        let turn = Taker::new(Arc::clone(&self.shared.turn));
        Share { shared: Arc::clone(&self.shared), turn, handler }
    }
}

/// The service that a [`ShareLayer`] gives its layer: the handler of whichever message is being handled.
#[derive(Debug)]
pub struct Chosen(());

impl Service<Delivery> for Chosen {
    type Response = Done;
    type Error = Setback;
    type Future = ChosenFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        // Which handler it is turns out with the call.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> ChosenFuture {
        ChosenFuture(match delivery.extension::<Attempted>() {
            Some(Attempted(handler)) => Choice::Waiting(handler.clone(), Some(delivery)),
            None => Choice::Nobody,
        })
    }
}

/// An attempt of the handler that a message is for.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct ChosenFuture(Choice);

#[derive(Debug)]
enum Choice {
    /// The handler is not ready yet: layers inside may make it wait.
    Waiting(HandlerService, Option<Delivery>),
    /// It runs.
    Running(AttemptFuture),
    /// It is not known which handler it is.
    Nobody,
}

impl Future for ChosenFuture {
    type Output = Result<Done, Setback>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Choice::Waiting(handler, delivery) => {
                    ready!(handler.poll_ready(cx))?;
                    let delivery = delivery.take().expect("it is taken once");
                    self.0 = Choice::Running(handler.call(delivery));
                }
                Choice::Running(attempt) => return Pin::new(attempt).poll(cx),
                Choice::Nobody => {
                    let error = "cannot tell whose attempt this is: a layer inside `ShareLayer` hands on a delivery that it was \
                                 not given; change a clone of the one that it was";
                    return Poll::Ready(Err(BoxError::from(error).into()));
                }
            }
        }
    }
}

/// A handler behind the one service of a [`ShareLayer`].
#[derive(Debug)]
pub struct Share<S> {
    shared: Arc<Inner<S>>,
    turn: Taker,
    handler: HandlerService,
}

impl<S> fmt::Debug for Inner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<S> Clone for Share<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            turn: self.turn.clone(),
            handler: self.handler.clone(),
        }
    }
}

impl<S> Service<Delivery> for Share<S>
where
    S: Service<Delivery>,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The turn comes first: the service is ready for one caller, and another's call in between would use that up.
        ready!(self.turn.poll(cx));
        self.shared.service().poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> S::Future {
        // The one service does not know whose attempt it does, so the delivery brings its handler along.
        let delivery = delivery.with_extension(Arc::new(Attempted(self.handler.clone())));
        let attempt = self.shared.service().call(delivery);
        // The turn covers the wait and the call, not the attempt: others may become ready while it runs.
        self.turn.hand_over().release();
        attempt
    }
}
