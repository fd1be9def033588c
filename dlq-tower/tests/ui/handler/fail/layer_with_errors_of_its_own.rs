use std::task::{Context, Poll};

use dlq_tower::core::Delivery;
use dlq_tower::handler::{HandlerService, handler};
use dlq_tower::stage::Done;
use tower::{Service, layer::layer_fn};

#[derive(Clone)]
struct Gate;

impl Service<Delivery> for Gate {
    type Response = Done;
    type Error = std::fmt::Error;
    type Future = std::future::Ready<Result<Done, std::fmt::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::fmt::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Delivery) -> Self::Future {
        std::future::ready(Err(std::fmt::Error))
    }
}

async fn book() {}

fn main() {
    let _ = handler("books.book", book).layer(layer_fn(|_: HandlerService| Gate));
}
