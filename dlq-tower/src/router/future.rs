use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::handler::StackFuture;
use crate::stage::Verdict;

/// A message on its way through the handler that takes it, if there is one.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct RouteFuture(Route);

#[derive(Debug)]
enum Route {
    // A handler has it.
    Handled(StackFuture),
    // No handler takes it.
    Decided(Option<Verdict>),
}

impl RouteFuture {
    pub(super) fn handled(future: StackFuture) -> Self {
        Self(Route::Handled(future))
    }

    pub(super) fn decided(verdict: Verdict) -> Self {
        Self(Route::Decided(Some(verdict)))
    }
}

impl Future for RouteFuture {
    type Output = Result<Verdict, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Route::Handled(future) => Pin::new(future).poll(cx),
            Route::Decided(verdict) => Poll::Ready(Ok(verdict
                .take()
                .expect("a future is not polled after it has completed"))),
        }
    }
}
