//! Every layer, in the right order.

use std::time::Duration;

use dlq_core::idempotency::{BoxIdempotency, memory::MemoryIdempotency};
use dlq_core::{Delivery, ErrorClass, RetryPolicy};
use dlq_letters::memory::MemoryStore;
use dlq_tower::catch_panic::CatchPanicLayer;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::metrics::MetricsLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::{IsSettlement, RouteError};
use dlq_tower::timeout::TimeoutLayer;
use dlq_tower::trace::TraceLayer;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn consumer(
    _: impl Service<Delivery, Response: IsSettlement, Error = RouteError, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static,
) {
}

fn main() {
    let keys = BoxIdempotency::new(MemoryIdempotency::new());
    consumer(
        ServiceBuilder::new()
            .layer(TraceLayer::new())
            .layer(MetricsLayer::new())
            .layer(DeadLetterLayer::new(MemoryStore::new()).retry_queue(MemoryStore::new()))
            .layer(RetryLayer::new(RetryPolicy::new()))
            .layer(ConcurrencyLayer::new(8))
            .layer(IdempotencyLayer::new(keys, |delivery| delivery.message().key().cloned()))
            .layer(TimeoutLayer::new(Duration::from_secs(10)))
            .layer(CatchPanicLayer::new())
            .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
            .service(service_fn(handle)),
    );
}
