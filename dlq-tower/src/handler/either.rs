//! A layer that may be left out, without a box.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dlq_core::Delivery;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::stage::{Done, Setback};

/// A service inside a layer, or as it is.
#[derive(Clone, Debug)]
pub(super) enum Either<A, B> {
    With(A),
    Without(B),
}

/// Applies the layer if there is one.
pub(super) fn optional<L: Layer<S>, S>(layer: Option<L>, service: S) -> Either<L::Service, S> {
    match layer {
        Some(layer) => Either::With(layer.layer(service)),
        None => Either::Without(service),
    }
}

impl<A, B> Service<Delivery> for Either<A, B>
where
    A: Service<Delivery, Response = Done, Error = Setback>,
    B: Service<Delivery, Response = Done, Error = Setback>,
{
    type Response = Done;
    type Error = Setback;
    type Future = EitherFuture<A::Future, B::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        match self {
            Self::With(service) => service.poll_ready(cx),
            Self::Without(service) => service.poll_ready(cx),
        }
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        match self {
            Self::With(service) => EitherFuture::With { future: service.call(delivery) },
            Self::Without(service) => EitherFuture::Without { future: service.call(delivery) },
        }
    }
}

pin_project! {
    #[project = EitherProj]
    pub(super) enum EitherFuture<A, B> {
        // The layer's.
        With { #[pin] future: A },
        // The service's own.
        Without { #[pin] future: B },
    }
}

impl<A, B> Future for EitherFuture<A, B>
where
    A: Future,
    B: Future<Output = A::Output>,
{
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        match self.project() {
            EitherProj::With { future } => future.poll(cx),
            EitherProj::Without { future } => future.poll(cx),
        }
    }
}
