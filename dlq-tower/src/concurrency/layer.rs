use std::sync::Arc;

use tokio::sync::Semaphore;
use tower_layer::Layer;

use super::Concurrency;

/// Limits how many attempts run at once. See the [module docs](super).
///
/// The limit belongs to the layer: all services it is applied to share it, and so do their clones.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ConcurrencyLayer {
    permits: Arc<Semaphore>,
}

impl ConcurrencyLayer {
    /// At most `limit` attempts run at once; 0 is taken as 1, since nothing would ever run.
    pub fn new(limit: usize) -> Self {
        Self::shared(Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Each attempt takes a permit of `permits`, which others may use as well.
    pub fn shared(permits: Arc<Semaphore>) -> Self {
        Self { permits }
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Concurrency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Concurrency::new(inner, Arc::clone(&self.permits))
    }
}
