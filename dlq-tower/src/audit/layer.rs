use dlq_core::store::ProcessedEvent;
use dlq_core::{SharedClock, SystemClock};
use tokio::sync::mpsc::Sender;
use tower_layer::Layer;

use super::Audit;

/// Notes what becomes of messages. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct AuditLayer {
    rows: Option<Sender<ProcessedEvent>>,
    clock: SharedClock,
}

impl AuditLayer {
    pub(super) fn new(rows: Sender<ProcessedEvent>) -> Self {
        Self { rows: Some(rows), clock: SystemClock::shared() }
    }

    /// A layer that notes nothing.
    pub fn off() -> Self {
        Self { rows: None, clock: SystemClock::shared() }
    }

    /// Sets the clock that rows are timed by. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }
}

impl<S> Layer<S> for AuditLayer {
    type Service = Audit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Audit::new(inner, self.rows.clone(), self.clock.clone())
    }
}
