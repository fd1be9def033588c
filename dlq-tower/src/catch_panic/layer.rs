use dlq_core::policy::PanicPolicy;
use dlq_core::{ErrorClass, SharedClock};
use tower_layer::Layer;

use super::CatchPanic;
use crate::stage::LayerClock;

/// Turns panics into failures. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct CatchPanicLayer {
    policy: PanicPolicy,
    clock: LayerClock,
}

impl CatchPanicLayer {
    /// Catches panics, as permanent failures.
    pub fn new() -> Self {
        Self { policy: PanicPolicy::Permanent, clock: LayerClock::default() }
    }

    /// Sets whether a panic is retried. Defaults to [`PanicPolicy::Permanent`].
    pub fn policy(mut self, policy: PanicPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the clock that failures are timed by. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock.into();
        self
    }

    /// The class of a panic.
    pub(crate) fn class(&self) -> ErrorClass {
        match self.policy {
            PanicPolicy::Retry => ErrorClass::Transient,
            _ => ErrorClass::Permanent,
        }
    }
}

impl Default for CatchPanicLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CatchPanic::new(inner, self.class(), self.clock.clone())
    }
}
