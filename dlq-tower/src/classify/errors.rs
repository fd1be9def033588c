use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::{BoxError, Classifier, Delivery, Timestamp};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::layer::Inner;
use crate::stage::{Done, IsDone, LayerClock, Run, Setback};

/// Classifies the errors of a layer that is not of this crate; those of the handler inside pass through unchanged.
///
/// It stands around the layer, in one [`HandlerBuilder::layer`](crate::handler::HandlerBuilder::layer) with it: the
/// outermost comes first in a tuple, and in a `tower::ServiceBuilder`. Without it, an error that a layer boxes is transient,
/// and a layer with an error type of its own does not compile.
///
/// ```
/// use std::time::Duration;
///
/// use dlq_tower::classify::ClassifyErrorsLayer;
/// use dlq_tower::core::{BoxError, ErrorClass};
/// use dlq_tower::handler::handler;
/// use tower::timeout::{TimeoutLayer, error::Elapsed};
///
/// async fn charge() {}
///
/// let judge = |error: &BoxError| match error.is::<Elapsed>() {
///     true => ErrorClass::Transient,
///     false => ErrorClass::Permanent,
/// };
/// let stack = handler("payments.charge", charge)
///     .layer((ClassifyErrorsLayer::new(judge), TimeoutLayer::new(Duration::from_secs(10))))
///     .build()?;
/// # let _ = stack;
/// # Ok::<(), dlq_tower::handler::InvalidConfig>(())
/// ```
///
/// An error is the handler's if it is a [`Setback`] or has one among its sources, boxed or not.
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ClassifyErrorsLayer<C, E = BoxError> {
    shared: Arc<Inner<C>>,
    error: PhantomData<fn(&E)>,
}

impl<C, E> ClassifyErrorsLayer<C, E> {
    /// Judges errors by `classifier`: a closure that returns a [`Classification`](dlq_core::Classification) or an
    /// [`ErrorClass`](dlq_core::ErrorClass), or any [`Classifier`].
    pub fn new(classifier: C) -> Self
    where
        C: Classifier<E>,
    {
        let shared = Inner { classifier, clock: LayerClock::default(), location: None };
        Self { shared: Arc::new(shared), error: PhantomData }
    }
}

impl<C, E> Clone for ClassifyErrorsLayer<C, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), error: PhantomData }
    }
}

impl<C, E> fmt::Debug for ClassifyErrorsLayer<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifyErrorsLayer")
            .field("classifier", &std::any::type_name::<C>())
            .finish()
    }
}

impl<S, C, E> Layer<S> for ClassifyErrorsLayer<C, E> {
    type Service = ClassifyErrors<S, C, E>;

    fn layer(&self, inner: S) -> Self::Service {
        ClassifyErrors { inner, shared: Arc::clone(&self.shared), error: PhantomData }
    }
}

/// A service whose errors are classified where they are not the handler's. See [`ClassifyErrorsLayer`].
pub struct ClassifyErrors<S, C, E = BoxError> {
    inner: S,
    shared: Arc<Inner<C>>,
    error: PhantomData<fn(&E)>,
}

impl<S: Clone, C, E> Clone for ClassifyErrors<S, C, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared), error: PhantomData }
    }
}

impl<S: fmt::Debug, C, E> fmt::Debug for ClassifyErrors<S, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifyErrors").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, C, E> Service<Delivery> for ClassifyErrors<S, C, E>
where
    S: Service<Delivery, Error = E>,
    S::Response: IsDone,
    E: Into<BoxError> + 'static,
    C: Classifier<E>,
{
    type Response = Done;
    type Error = Setback;
    type Future = ClassifyErrorsFuture<S::Future, C, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        self.inner.poll_ready(cx).map_err(|error| {
            // There is no message yet, the service itself is out of order.
            self.shared.setback(error, None)
        })
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let run = Run::begin(&delivery);
        let inner = self.inner.call(delivery);
        ClassifyErrorsFuture { inner, shared: Arc::clone(&self.shared), run, error: PhantomData }
    }
}

pin_project! {
    /// An attempt, with the errors of its layers classified.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ClassifyErrorsFuture<F, C, E> {
        #[pin]
        inner: F,
        shared: Arc<Inner<C>>,
        run: Run,
        error: PhantomData<fn(&E)>,
    }
}

impl<F, C, R, E> Future for ClassifyErrorsFuture<F, C, E>
where
    F: Future<Output = Result<R, E>>,
    R: IsDone,
    E: Into<BoxError> + 'static,
    C: Classifier<E>,
{
    type Output = Result<Done, Setback>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.inner.poll(cx)) {
            Ok(response) => Ok(response.into_done()),
            Err(error) => Err(this.shared.setback(error, Some(*this.run))),
        })
    }
}

impl<F, C, E> fmt::Debug for ClassifyErrorsFuture<F, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifyErrorsFuture").field("run", &self.run).finish_non_exhaustive()
    }
}

impl<C> Inner<C> {
    /// The setback that an error is or carries; any other is judged as a failure of `run`.
    #[cold]
    fn setback<E>(&self, error: E, run: Option<Run>) -> Setback
    where
        C: Classifier<E>,
        E: Into<BoxError> + 'static,
    {
        // Before it is judged: of the handler's own errors the classifier knows nothing.
        let any: &dyn Any = &error;
        let boxed = any.downcast_ref::<BoxError>().and_then(|error| inside(&**error));
        if let Some(setback) = any.downcast_ref::<Setback>().or(boxed) {
            return setback.clone();
        }
        let judged = self.classifier.classify(&error);
        let cause = self.classifier.cause(&error);
        // A box does not tell the type of what is in it.
        let is_boxed = any.is::<BoxError>();
        let error_type = if is_boxed { "unknown" } else { self.classifier.type_name(&error) };
        let group = self.classifier.group(&error).map(|text| dlq_core::bounded(&text));
        let error: BoxError = error.into();
        // A layer's own error type shows its sources only as an error, so it is looked into once more after the
        // conversion.
        if let Some(setback) = inside(&*error) {
            return setback.clone();
        }
        let mut failure = dlq_core::Failure::of_type(judged, error_type, &*error).with_cause(cause);
        failure.group = group;
        match run {
            Some(run) => run.failed(failure, self.clock.now()),
            None => Setback::Failed(Box::new(dlq_core::Attempt {
                number: 0,
                generation: 0,
                failure: failure.timed(Timestamp::EPOCH, std::time::Duration::ZERO),
            })),
        }
    }
}

/// The handler's own setback, if `error` is it or has it among its sources.
fn inside<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Setback> {
    std::iter::successors(Some(error), |&error| error.source())
        // A chain may be made to have no end.
        .take(64)
        .find_map(|error| error.downcast_ref())
}
