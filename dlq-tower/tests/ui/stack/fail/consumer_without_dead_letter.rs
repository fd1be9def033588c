use dlq_core::{Delivery, ErrorClass};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::IsSettlement;
use tower::{Service, ServiceBuilder, service_fn};

async fn handle(_: Delivery) -> Result<(), std::io::Error> {
    Ok(())
}

fn run(_: impl Service<Delivery, Response: IsSettlement>) {}

fn main() {
    run(ServiceBuilder::new()
        .layer(RetryLayer::never())
        .layer(ClassifyLayer::new(|_: &std::io::Error| ErrorClass::Transient))
        .service(service_fn(handle)));
}
