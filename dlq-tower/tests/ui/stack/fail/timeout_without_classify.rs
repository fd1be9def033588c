use std::time::Duration;

use dlq_core::Delivery;
use dlq_tower::timeout::TimeoutLayer;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn run(_: impl Service<Delivery>) {}

fn main() {
    run(ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_secs(1)))
        .service(service_fn(handle)));
}
