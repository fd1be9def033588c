use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use dlq_core::Delivery;
use tower_service::Service;

use super::{Failed, HandlerFn};

/// A function with its state, as a service.
#[derive(Clone)]
struct Function<F>(F);

impl<F, Fut, E> Service<Delivery> for Function<F>
where
    F: Fn(Delivery) -> Fut,
    Fut: Future<Output = Result<(), Failed<E>>>,
{
    type Response = ();
    type Error = Failed<E>;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Fut {
        (self.0)(delivery)
    }
}

/// `handler` with `state`, as a service.
pub(super) fn function<H, S, Args>(
    handler: H,
    state: Arc<S>,
) -> impl Service<Delivery, Response = (), Error = Failed<H::Error>, Future: Send + 'static>
+ Clone
+ Send
+ Sync
+ 'static
where
    H: HandlerFn<S, Args>,
    S: Send + Sync + 'static,
    Args: 'static,
{
    Function(move |delivery| handler.run(delivery, &state))
}
