use dlq_letters::memory::MemoryStore;
use dlq_core::{Delivery, ErrorClass};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn run(_: impl Service<Delivery>) {}

fn main() {
    run(ServiceBuilder::new()
        .layer(DeadLetterLayer::new(MemoryStore::new()))
        .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
        .service(service_fn(handle)));
}
