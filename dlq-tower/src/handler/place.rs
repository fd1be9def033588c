//! Places of a handler's messages: each is handled in a place of its own, which it leaves to a later one when it is
//! done.
//!
//! A place is one allocation with one clone of the composed layers and the future of their last run, so that there are as
//! many as messages in flight at once, not as many as messages. What a place held of its message is dropped before it is
//! left. A message that is dropped midway, fails for good or panics takes its place with it.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use crossbeam_utils::atomic::AtomicCell;
use dlq_core::Delivery;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::retry::{self, Retry};
use crate::reuse::Reuse;
use crate::stage::{Done, Setback, Verdict};

/// Number of free places that are kept.
// After a burst no more memory than this is kept. Whatever is beyond it is allocated anew.
const FREE: usize = 64;

/// The composed layers, erased.
pub(super) trait Run: Send + Sync {
    fn run(self: Arc<Self>, delivery: Delivery) -> StackFuture;
}

/// The composed layers, and the places that messages have left.
pub(super) struct Composed<S: Service<Delivery>> {
    retry: Retry<S>,
    /// The last that was left: taken and left again by one atomic step each, however many others there are.
    last: AtomicCell<Option<Pin<Box<FutureSlot<S>>>>>,
    free: Mutex<Vec<Pin<Box<FutureSlot<S>>>>>,
}

pin_project! {
    struct FutureSlot<S: Service<Delivery>> {
        #[pin]
        handling: retry::ResponseFuture<S>,
        // The message that came after another, until it is first polled.
        next: Option<Delivery>,
        // Where it is left. None while it is free, or it would keep what keeps it.
        of: Option<Arc<Composed<S>>>,
    }
}

impl<S: Service<Delivery>> Composed<S> {
    pub(super) fn new(retry: Retry<S>) -> Self {
        Self { retry, last: AtomicCell::default(), free: Mutex::default() }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Pin<Box<FutureSlot<S>>>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Run for Composed<S>
where
    S: Reuse
        + Service<Delivery, Response = Done, Error = Setback, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    fn run(self: Arc<Self>, delivery: Delivery) -> StackFuture {
        let free = self.last.take().or_else(|| self.free().pop());
        // A handler at its limit makes its own message wait, not those behind it (G4).
        let place = match free {
            Some(mut place) => {
                let this = place.as_mut().project();
                *this.next = Some(delivery);
                *this.of = Some(self);
                place
            }
            None => {
                let handling = self.retry.handle(delivery);
                Box::pin(FutureSlot { handling, next: None, of: Some(self) })
            }
        };
        StackFuture(Some(place))
    }
}

/// A place with a message in it, erased.
trait Taken: Future<Output = Verdict> + Send {
    /// Leaves it, when the message is done.
    fn leave(self: Pin<Box<Self>>);
}

impl<S> Future for FutureSlot<S>
where
    S: Reuse + Service<Delivery, Response = Done, Error = Setback>,
{
    type Output = Verdict;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        let mut this = self.project();
        if let Some(delivery) = this.next.take() {
            // Begun here and not in `run`, because the service inside may have to be polled ready, which needs a
            // context.
            this.handling.as_mut().again(cx, delivery);
        }
        this.handling.poll_kept(cx)
    }
}

impl<S> Taken for FutureSlot<S>
where
    S: Reuse + Service<Delivery, Response = Done, Error = Setback, Future: Send> + Send + Sync,
{
    fn leave(mut self: Pin<Box<Self>>) {
        if let Some(of) = self.as_mut().project().of.take() {
            // The place that was left last is taken first, since its memory is most likely in the cache still.
            let Some(earlier) = of.last.swap(Some(self)) else { return };
            let mut free = of.free();
            if free.len() < FREE {
                free.push(earlier);
            }
        }
    }
}

/// A message on its way through a handler's stack, from its first attempt to the verdict.
#[must_use = "a future does nothing until it is polled"]
pub struct StackFuture(Option<Pin<Box<dyn Taken>>>);

impl Future for StackFuture {
    type Output = Result<Verdict, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let place = self.0.as_mut().expect("a future is not polled after it has completed");
        let verdict = ready!(place.as_mut().poll(cx));
        let place = self.0.take();
        let Verdict::Done(done) = verdict else { return Poll::Ready(Ok(verdict)) };
        // A service may have failed where the message is not done: it is not used again.
        if let Some(place) = place {
            place.leave();
        }
        Poll::Ready(Ok(Verdict::Done(done)))
    }
}

impl fmt::Debug for StackFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackFuture").finish_non_exhaustive()
    }
}
