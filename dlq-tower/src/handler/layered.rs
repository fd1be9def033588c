//! Layers of the user around a handler's function: what is erased, and who waits until it is ready.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlq_core::{Delivery, ErrorClass, Timestamp};
use pin_project_lite::pin_project;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower_layer::Layer;
use tower_service::Service;

use crate::catch_panic::failure_of;
use crate::retry::{stopped, unready};
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, Run, Setback, classified};

/// The service that a layer of [`HandlerBuilder::layer`](super::HandlerBuilder::layer) or
/// [`RouterBuilder::layer`](crate::router::RouterBuilder::layer) wraps: one attempt of a handler, with its error
/// classified. Its type is the same for every handler.
pub struct HandlerService(Box<dyn Erased>);

trait Erased: Send + Sync {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>>;
    fn call(&mut self, delivery: Delivery) -> AttemptFuture;
    fn boxed_clone(&self) -> Box<dyn Erased>;
}

impl<S> Erased for S
where
    S: Service<Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
    S::Response: IsDone,
    S::Error: ClassifiedError,
{
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        Service::poll_ready(self, cx).map_err(ClassifiedError::into_setback)
    }

    fn call(&mut self, delivery: Delivery) -> AttemptFuture {
        let attempt = Service::call(self, delivery);
        // This is the box that layers cost for each attempt. Without layers a handler is not erased.
        AttemptFuture(Box::pin(async move { classified(attempt.await) }))
    }

    fn boxed_clone(&self) -> Box<dyn Erased> {
        Box::new(self.clone())
    }
}

impl HandlerService {
    pub(super) fn new<S>(service: S) -> Self
    where
        S: Service<Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
        S::Response: IsDone,
        S::Error: ClassifiedError,
    {
        Self(Box::new(service))
    }
}

impl Service<Delivery> for HandlerService {
    type Response = Done;
    type Error = Setback;
    type Future = AttemptFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> AttemptFuture {
        self.0.call(delivery)
    }
}

impl Clone for HandlerService {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

impl fmt::Debug for HandlerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerService").finish_non_exhaustive()
    }
}

/// An attempt of a [`HandlerService`].
#[must_use = "a future does nothing until it is polled"]
pub struct AttemptFuture(Pin<Box<dyn Future<Output = Result<Done, Setback>> + Send>>);

impl Future for AttemptFuture {
    type Output = Result<Done, Setback>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for AttemptFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptFuture").finish_non_exhaustive()
    }
}

type Wrap = Arc<dyn Fn(HandlerService) -> HandlerService + Send + Sync>;

/// Layers in the order in which they were given: a later one wraps the earlier.
#[derive(Clone, Default)]
pub(crate) struct Layers(Vec<Wrap>);

impl Layers {
    pub(crate) fn push<L>(&mut self, layer: L)
    where
        L: Layer<HandlerService> + Send + Sync + 'static,
        L::Service: Service<Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
        <L::Service as Service<Delivery>>::Response: IsDone,
        <L::Service as Service<Delivery>>::Error: ClassifiedError,
    {
        self.0.push(Arc::new(move |service| HandlerService::new(layer.layer(service))));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these with `outer` around them.
    pub(super) fn within(&self, outer: &Self) -> Self {
        Self(self.0.iter().chain(&outer.0).cloned().collect())
    }

    /// Returns `service` with all layers around it, called once it is ready.
    pub(super) fn around(&self, service: HandlerService) -> HandlerService {
        self.0.iter().fold(service, |service, wrap| wrap(service))
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layers").field(&self.0.len()).finish()
    }
}

/// Waits within each attempt until the service inside is ready, so that a layer that makes its caller wait holds up its
/// own messages only, and neither a panic nor an error of its readiness leaves the stack.
#[derive(Clone, Debug)]
pub(super) struct WhenReady<S> {
    inner: S,
    class: ErrorClass,
}

impl<S> WhenReady<S> {
    /// A panic of `inner` while it is polled ready is a failure of this class.
    pub(super) fn new(inner: S, class: ErrorClass) -> Self {
        Self { inner, class }
    }
}

impl<S> Service<Delivery> for WhenReady<S>
where
    S: Service<Delivery, Response = Done, Error = Setback> + Clone,
{
    type Response = Done;
    type Error = Setback;
    type Future = WhenReadyFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> WhenReadyFuture<S> {
        // A clone for each attempt: what a service is granted when it is ready belongs to one caller (tower's
        // contract), and attempts run beside each other.
        let service = self.inner.clone();
        let state = State::Waiting { service, delivery: Some(delivery), stop: None };
        WhenReadyFuture { state, class: self.class }
    }
}

impl<S> Reuse for WhenReady<S>
where
    S: Service<Delivery, Response = Done, Error = Setback> + Clone,
{
    fn again(&mut self, mut done: Pin<&mut Self::Future>, delivery: Delivery) {
        done.set(self.call(delivery));
    }
}

pin_project! {
    /// An attempt, begun when its service is ready.
    pub(super) struct WhenReadyFuture<S: Service<Delivery>> {
        #[pin]
        state: State<S>,
        class: ErrorClass,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S: Service<Delivery>> {
        // The service is not ready yet. What it has been granted goes with it.
        Waiting {
            service: S,
            delivery: Option<Delivery>,
            stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
        },
        // The attempt runs.
        Running { #[pin] attempt: S::Future },
        // It has ended.
        Over,
    }
}

impl<S> Future for WhenReadyFuture<S>
where
    S: Service<Delivery, Response = Done, Error = Setback>,
{
    type Output = Result<Done, Setback>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let outcome = match this.state.as_mut().project() {
                StateProj::Running { attempt } => {
                    let outcome = std::task::ready!(attempt.poll(cx));
                    this.state.set(State::Over);
                    return Poll::Ready(outcome);
                }
                StateProj::Over => unreachable!("a future is not polled after it has completed"),
                StateProj::Waiting { service, delivery, stop } => {
                    // The readiness of a user's layer is polled outside the panic guard, and a panic
                    // must fail its message only.
                    match catch_unwind(AssertUnwindSafe(|| service.poll_ready(cx))) {
                        Ok(Poll::Ready(Ok(()))) => {
                            let delivery = delivery.take().expect("it is taken once");
                            let attempt = service.call(delivery);
                            this.state.set(State::Running { attempt });
                            continue;
                        }
                        Ok(Poll::Ready(Err(setback))) => {
                            let (after, why) = unready(&setback);
                            Setback::Deferred { after, why }
                        }
                        Ok(Poll::Pending) => {
                            // It is made only where the service is not ready at once, which is rare.
                            if stop.is_none() {
                                *stop = delivery.as_ref().and_then(stopped).map(Box::pin);
                            }
                            let is_over = |stop: &mut Pin<Box<WaitForCancellationFutureOwned>>| {
                                stop.as_mut().poll(cx).is_ready()
                            };
                            if !stop.as_mut().is_some_and(is_over) {
                                return Poll::Pending;
                            }
                            Setback::Deferred { after: Duration::ZERO, why: "the consumer stops" }
                        }
                        Err(payload) => {
                            let delivery = delivery.as_ref().expect("it is taken once");
                            let failure = failure_of(payload, *this.class);
                            // The retry stage sets when.
                            Run::begin(delivery).failed(failure, Timestamp::EPOCH)
                        }
                    }
                }
            };
            // The place in a line or the permit that the service may hold is given back before anything else is done.
            this.state.set(State::Over);
            return Poll::Ready(Err(outcome));
        }
    }
}

impl<S: Service<Delivery>> fmt::Debug for WhenReadyFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WhenReadyFuture").finish_non_exhaustive()
    }
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<HandlerService>();
};
