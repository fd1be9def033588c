use std::time::Duration;

use dlq_core::SharedClock;
use tower_layer::Layer;

use super::Timeout;
use crate::stage::LayerClock;

/// Limits how long an attempt may take. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct TimeoutLayer {
    limit: Duration,
    clock: LayerClock,
}

impl TimeoutLayer {
    /// Each attempt may take `limit`, counted from when it first waits.
    pub fn new(limit: Duration) -> Self {
        Self { limit, clock: LayerClock::default() }
    }

    /// Sets the clock that says at what time an attempt failed. The limit itself is measured by tokio's timer. Defaults to the
    /// machine's clock.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock.into();
        self
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout::new(inner, self.limit, self.clock.clone())
    }
}
