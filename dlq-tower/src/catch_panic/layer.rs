use dlq_core::policy::PanicPolicy;
use dlq_core::{SharedClock, SystemClock};
use tower_layer::Layer;

use super::CatchPanic;

/// Turns panics into failures. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct CatchPanicLayer {
    policy: PanicPolicy,
    clock: SharedClock,
}

impl CatchPanicLayer {
    /// Catches panics, as permanent failures.
    pub fn new() -> Self {
        Self { policy: PanicPolicy::Permanent, clock: SystemClock::shared() }
    }

    /// Sets whether a panic is retried. Defaults to [`PanicPolicy::Permanent`].
    pub fn policy(mut self, policy: PanicPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the clock that failures are timed by. Defaults to the machine's.
    pub fn with_clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
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
        CatchPanic::new(inner, self.policy, self.clock.clone())
    }
}
