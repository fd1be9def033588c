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

/// Makes a service of a function of [extractors](crate::extract) and its state, for a stack that is composed by hand.
/// [`handler`](super::handler()) composes one with everything around it.
///
/// Its errors are [`Failed`]: arguments that cannot be taken, or the function's own. [`Judge`](super::Judge) judges the
/// former, and leaves the latter to a classifier.
///
/// ```
/// use std::sync::Arc;
///
/// use dlq_tower::classify::ClassifyLayer;
/// use dlq_tower::core::{Delivery, ErrorClass, Message, Origin, Position};
/// use dlq_tower::extract::{Json, State};
/// use dlq_tower::handler::{Judge, service};
/// use dlq_tower::stage::Done;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// async fn charge(Json(cents): Json<u64>, State(limit): State<u64>) -> Result<(), std::io::Error> {
///     if cents <= limit { Ok(()) } else { Err(std::io::Error::other("too much")) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let charge = ServiceBuilder::new()
///     .layer(ClassifyLayer::new(Judge(|_: &std::io::Error| ErrorClass::Permanent)))
///     .service(service(charge, Arc::new(100)));
///
/// let origin = Origin::new("memory", "payments", Position::Offset(1));
/// let delivery = Delivery::new(Message::new("payments", "5"), origin);
/// assert_eq!(charge.oneshot(delivery).await, Ok(Done::Succeeded));
/// # }
/// ```
pub fn service<H, S, Args>(
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
