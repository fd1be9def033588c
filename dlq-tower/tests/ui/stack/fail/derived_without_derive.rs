use dlq_core::Delivery;
use dlq_tower::classify::ClassifyLayer;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn run(_: impl Service<Delivery>) {}

fn main() {
    run(ServiceBuilder::new().layer(ClassifyLayer::derived()).service(service_fn(handle)));
}
