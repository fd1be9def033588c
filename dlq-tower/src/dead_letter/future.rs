use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dlq_core::{Delivery, Disposition};
use pin_project_lite::pin_project;

use super::route::Inner;
use super::unfinished::{Routing as Known, Undone};
use crate::consumer::hand::{self, Hand};
use crate::stage::{IsVerdict, Never, RouteError, Settlement, Verdict};

type Routing = Pin<Box<dyn Future<Output = Result<Settlement, RouteError>> + Send>>;
type Ruling = Pin<Box<dyn Future<Output = Verdict> + Send>>;

pin_project! {
    /// A message in flight, from its first attempt to the settlement.
    #[must_use = "a future does nothing until it is polled"]
    pub struct ResponseFuture<F> {
        delivery: Delivery,
        shared: Arc<Inner>,
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The stack inside decides.
        Handling { #[pin] inner: F },
        // It failed of what may pass; whether that counts is being decided.
        Ruling { ruling: Ruling },
        // What it decided is being written.
        Routing { routing: Routing },
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(inner: F, delivery: Delivery, shared: Arc<Inner>) -> Self {
        Self { delivery, shared, state: State::Handling { inner } }
    }

    /// A message that must not run.
    #[cold]
    pub(super) fn refused(verdict: Verdict, delivery: Delivery, shared: Arc<Inner>) -> Self {
        let ruling: Ruling = Box::pin(future::ready(verdict));
        Self { delivery, shared, state: State::Ruling { ruling } }
    }

    /// A message that was decided about before, and is not run again.
    #[cold]
    pub(super) fn again(known: Known, delivery: Delivery, shared: Arc<Inner>) -> Self {
        tracing::debug!(origin = %delivery.origin(), "a message is routed again, and not run again");
        hand::routed_again(&delivery, known.convicted);
        let routing: Routing = match known.verdict {
            Undone::Dead(given_up) => {
                let confirmed = known.confirmed;
                Box::pin(Arc::clone(&shared).bury(delivery.clone(), given_up, confirmed))
            }
            Undone::Retry(postponed) => {
                Box::pin(Arc::clone(&shared).postpone(delivery.clone(), postponed))
            }
        };
        Self { delivery, shared, state: State::Routing { routing } }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: IsVerdict,
    E: Never,
{
    type Output = Result<Settlement, RouteError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let verdict = match this.state.as_mut().project() {
                StateProj::Routing { routing } => return routing.as_mut().poll(cx),
                StateProj::Ruling { ruling } => ready!(ruling.as_mut().poll(cx)),
                StateProj::Handling { inner } => {
                    let verdict = match ready!(inner.poll(cx)) {
                        Ok(response) => response.into_verdict(),
                        Err(error) => error.never(),
                    };
                    // Before anything is written: a failure may be an outage's, or have to wait here for the sake of order.
                    if hand::of(this.delivery).is_some_and(|hand| !hand.passes(&verdict))
                        && let Some(hand) = this.delivery.extension_shared::<Hand>()
                    {
                        // What the message held while it was handled is given back before anything is waited for.
                        let ruling = Box::pin(hand.rule(verdict));
                        this.state.set(State::Ruling { ruling });
                        continue;
                    }
                    verdict
                }
            };
            let routing: Routing = match verdict {
                Verdict::Done(done) => return Poll::Ready(Ok(Settlement::done(done))),
                Verdict::Defer { after, why } => {
                    tracing::debug!(
                        subject = this.delivery.message().subject(),
                        ?after,
                        why,
                        "deferred"
                    );
                    let deferred = Settlement::new(Disposition::Deferred { after });
                    return Poll::Ready(Ok(deferred));
                }
                Verdict::Dead(given_up) => {
                    let shared = Arc::clone(this.shared);
                    Box::pin(shared.bury(this.delivery.clone(), *given_up, Vec::new()))
                }
                Verdict::Retry(postponed) => {
                    Box::pin(Arc::clone(this.shared).postpone(this.delivery.clone(), *postponed))
                }
            };
            // What the message held while it was handled, such as a place for an in-process delay, is given back before the write.
            this.state.set(State::Routing { routing });
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("delivery", &self.delivery).finish_non_exhaustive()
    }
}
