use std::fmt;
use std::sync::Arc;

use dlq_core::{Classification, Classifier, SharedClock};
use tower_layer::Layer;

use super::Classify;
use crate::stage::LayerClock;

/// Judges errors by their own [`Classify`](dlq_core::Classify) implementation, as `#[derive(Classify)]` writes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Derived;

impl<E: dlq_core::Classify + ?Sized> Classifier<E> for Derived {
    fn classify(&self, error: &E) -> Classification {
        error.classify()
    }

    fn group(&self, error: &E) -> Option<String> {
        error.group()
    }
}

/// State that every clone of one classifying service shares.
pub(super) struct Inner<C> {
    pub(super) classifier: C,
    pub(super) clock: LayerClock,
    pub(super) location: Option<&'static str>,
}

/// Classifies the errors of a handler. See the [module docs](super).
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ClassifyLayer<C> {
    classifier: C,
    clock: LayerClock,
    location: Option<&'static str>,
}

impl<C> ClassifyLayer<C> {
    /// Judges errors by `classifier`: a closure that returns a [`Classification`] or an
    /// [`ErrorClass`](dlq_core::ErrorClass), or any [`Classifier`].
    pub fn new(classifier: C) -> Self {
        Self { classifier, clock: LayerClock::default(), location: None }
    }

    /// Sets the clock that failures are timed by. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock.into();
        self
    }

    /// Sets where the handler stands in the source, for failures that do not say where they arose. Defaults to
    /// nothing.
    pub fn location(mut self, location: &'static str) -> Self {
        self.location = Some(location);
        self
    }
}

impl ClassifyLayer<Derived> {
    /// Judges errors by their own [`Classify`](dlq_core::Classify) implementation.
    pub fn derived() -> Self {
        Self::new(Derived)
    }
}

impl<C: Clone> Clone for ClassifyLayer<C> {
    fn clone(&self) -> Self {
        Self {
            classifier: self.classifier.clone(),
            clock: self.clock.clone(),
            location: self.location,
        }
    }
}

impl<C> fmt::Debug for ClassifyLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifyLayer")
            .field("classifier", &std::any::type_name::<C>())
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}

impl<S, C: Clone> Layer<S> for ClassifyLayer<C> {
    type Service = Classify<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Arc::new(Inner {
            classifier: self.classifier.clone(),
            clock: self.clock.clone(),
            location: self.location,
        });
        Classify::new(inner, shared)
    }
}
