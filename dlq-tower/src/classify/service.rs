use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dlq_core::{Attempt, BoxError, Classifier, Delivery, Failure};
use tower_service::Service;

use super::ResponseFuture;
use super::layer::Inner;
use crate::reuse::Reuse;
use crate::stage::{Done, IsHandled, Run, Setback};

/// A handler whose errors are classified. See the [module docs](super).
pub struct Classify<S, C> {
    inner: S,
    shared: Arc<Inner<C>>,
}

impl<S, C> Classify<S, C> {
    #[inline]
    pub(super) fn new(inner: S, shared: Arc<Inner<C>>) -> Self {
        Self { inner, shared }
    }

    /// The handler.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The handler, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The handler, without the layer.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<C> Inner<C> {
    /// Judges `error`, then reads it whole.
    pub(super) fn failure<E>(&self, error: E) -> Failure
    where
        C: Classifier<E>,
        E: Into<BoxError>,
    {
        // All that needs the type of the error is read before the box hides it.
        let judged = self.classifier.classify(&error);
        let cause = self.classifier.cause(&error);
        let error_type = self.classifier.type_name(&error);
        // The error's own words, and so of any length (G8).
        let bounded = |text: Option<String>| text.map(|text| dlq_core::bounded(&text));
        let group = bounded(self.classifier.group(&error));
        let backtrace = bounded(self.classifier.backtrace(&error));
        let location = bounded(self.classifier.location(&error));
        let error: BoxError = error.into();
        let mut failure = Failure::of_type(judged, error_type, &*error).with_cause(cause);
        failure.group = group;
        failure.backtrace = backtrace;
        failure.location = location.or_else(|| self.location.map(str::to_owned));
        failure
    }
}

impl<S, C> Service<Delivery> for Classify<S, C>
where
    S: Service<Delivery>,
    S::Response: IsHandled,
    S::Error: Into<BoxError>,
    C: Classifier<S::Error>,
{
    type Response = Done;
    type Error = Setback;
    type Future = ResponseFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| {
            // Attempt 0: there is no message yet, the handler itself is out of order.
            let failure = self.shared.failure(error);
            Setback::Failed(Box::new(Attempt { number: 0, generation: 0, failure }))
        })
    }

    #[inline]
    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let run = Run::begin(&delivery);
        ResponseFuture::new(self.inner.call(delivery), Arc::clone(&self.shared), run)
    }
}

impl<S, C> Reuse for Classify<S, C>
where
    Self: Service<Delivery, Future = ResponseFuture<S::Future, C>>,
    S: Service<Delivery>,
{
    #[inline]
    fn again(&mut self, done: Pin<&mut Self::Future>, delivery: Delivery) {
        let run = Run::begin(&delivery);
        done.again(self.inner.call(delivery), run);
    }
}

impl<S: Clone, C> Clone for Classify<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Classify<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classify")
            .field("inner", &self.inner)
            .field("classifier", &std::any::type_name::<C>())
            .finish()
    }
}
