//! Stands between dead-letter routing and the handler, and decides before anything is written: whether a failure is an
//! outage's, and whether a postponed message has to wait here for the sake of order.

use std::convert::Infallible;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::Delivery;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::hand::{HAND, Hand};
use crate::stage::Verdict;

/// A handler whose verdicts are looked at before they are carried out.
#[derive(Clone, Debug)]
pub(super) struct Guard<H>(H);

impl<H> Guard<H> {
    pub(super) fn new(handler: H) -> Self {
        Self(handler)
    }
}

impl<H> Service<Delivery> for Guard<H>
where
    H: Service<Delivery, Response = Verdict, Error = Infallible>,
{
    type Response = Verdict;
    type Error = Infallible;
    type Future = ResponseFuture<H::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let refuses = |hand: &Arc<Hand>| {
            let verdict = hand.refuses(&delivery)?;
            // It ends the run, and says nothing of an outage.
            let _ = hand.passes(&verdict);
            Some(verdict)
        };
        let state = match HAND.try_with(refuses).ok().flatten() {
            Some(verdict) => State::Ruling { ruling: Box::pin(future::ready(verdict)) },
            None => State::Handling { inner: self.0.call(delivery) },
        };
        ResponseFuture { state }
    }
}

pin_project! {
    pub(super) struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The handler decides.
        Handling { #[pin] inner: F },
        // It failed of what may pass; whether that counts is being decided.
        Ruling { ruling: Pin<Box<dyn Future<Output = Verdict> + Send>> },
    }
}

impl<F: Future<Output = Result<Verdict, Infallible>>> Future for ResponseFuture<F> {
    type Output = Result<Verdict, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let Ok(verdict) = match this.state.as_mut().project() {
                StateProj::Ruling { ruling } => return ruling.as_mut().poll(cx).map(Ok),
                StateProj::Handling { inner } => ready!(inner.poll(cx)),
            };
            let looks = |hand: &Arc<Hand>| (!hand.passes(&verdict)).then(|| Arc::clone(hand));
            let Some(hand) = HAND.try_with(looks).ok().flatten() else {
                return Poll::Ready(Ok(verdict));
            };
            let ruling = Box::pin(hand.rule(verdict));
            // What the message held while it was handled is given back before anything is waited for.
            this.state.set(State::Ruling { ruling });
        }
    }
}
