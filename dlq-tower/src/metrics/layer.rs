use tower_layer::Layer;

use super::{Metrics, Recorder};

/// Counts messages and times them. See the [module docs](super).
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct MetricsLayer {
    recorder: Recorder,
}

impl MetricsLayer {
    /// Counts with a recorder of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the recorder. Defaults to one of its own.
    pub fn recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }
}

impl<S> Layer<S> for MetricsLayer {
    type Service = Metrics<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Metrics::new(inner, self.recorder.clone())
    }
}
