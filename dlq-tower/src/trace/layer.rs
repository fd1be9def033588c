use tower_layer::Layer;

use super::Trace;

/// Puts each message into a span. See the [module docs](super).
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct TraceLayer(());

impl TraceLayer {
    /// Puts each message into a span.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Trace::new(inner)
    }
}
