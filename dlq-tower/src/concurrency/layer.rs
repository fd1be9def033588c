use std::sync::Arc;

use tower_layer::Layer;

use super::Concurrency;
use super::permits::Permits;

/// Limits how many attempts run at once. See the [module docs](super).
///
/// The limit belongs to the layer: all services that it and its clones are applied to share it, and so do their clones.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ConcurrencyLayer {
    permits: Arc<Permits>,
}

impl ConcurrencyLayer {
    /// At most `limit` attempts run at once; 0 is taken as 1, since nothing would ever run.
    pub fn new(limit: usize) -> Self {
        Self { permits: Arc::new(Permits::new(limit)) }
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Concurrency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Concurrency::new(inner, Arc::clone(&self.permits))
    }
}
