use std::time::Duration;

use dlq_core::{Delivery, ErrorClass};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::stage::Setback;
use dlq_tower::timeout::TimeoutLayer;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn run(_: impl Service<Delivery>) {}

fn main() {
    run(ServiceBuilder::new()
        .layer(ClassifyLayer::new(|_: &Setback| ErrorClass::Transient))
        .layer(TimeoutLayer::new(Duration::from_secs(1)))
        .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
        .service(service_fn(handle)));
}
