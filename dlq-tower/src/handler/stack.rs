use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::Delivery;
use dlq_core::policy::RetryPolicy;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{Handles, InvalidConfig};
use crate::retry::{self, Retry};
use crate::stage::{Done, Setback, Verdict};

/// Reads a key from a delivery.
pub(super) type KeyFn = Arc<dyn Fn(&Delivery) -> Option<Bytes> + Send + Sync>;

/// A handler with its policy: from the function to the retry stage, ready for a router or a consumer. Cheap to clone.
///
/// See the [module docs](super).
#[derive(Clone)]
#[must_use = "a handler does nothing until a consumer runs it"]
pub struct HandlerStack {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) name: Arc<str>,
    pub(super) aliases: Vec<Arc<str>>,
    pub(super) policy: RetryPolicy,
    pub(super) timeout: Option<Duration>,
    pub(super) concurrency: Option<usize>,
    pub(super) order_by: Option<KeyFn>,
    pub(super) service: Arc<dyn Run>,
}

/// The composed layers, erased.
pub(super) trait Run: Send + Sync {
    fn run(self: Arc<Self>, delivery: Delivery) -> StackFuture;
}

/// A composed service, to be cloned for each message; or rather for each of those that are in hand at once.
pub(super) struct Composed<S: Service<Delivery>> {
    retry: Retry<S>,
    /// What messages have left behind that are done, each with its clone of the service.
    spares: Mutex<Vec<Pin<Box<Handling<S>>>>>,
}

/// How many spares are kept.
const SPARES: usize = 64;

pin_project! {
    /// A message in hand, and whose spare its place becomes.
    struct Handling<S: Service<Delivery>> {
        #[pin]
        handling: retry::ResponseFuture<S>,
        // None while it is a spare.
        home: Option<Arc<Composed<S>>>,
    }
}

impl<S: Service<Delivery>> Composed<S> {
    pub(super) fn new(retry: Retry<S>) -> Self {
        Self { retry, spares: Mutex::default() }
    }

    fn spares(&self) -> MutexGuard<'_, Vec<Pin<Box<Handling<S>>>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Run for Composed<S>
where
    S: Service<Delivery, Response = Done, Error = Setback, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    fn run(self: Arc<Self>, delivery: Delivery) -> StackFuture {
        // A handler at its limit makes its own message wait, not those behind it (G4).
        let spare = self.spares().pop();
        let handling = match spare {
            Some(mut spare) => {
                let this = spare.as_mut().project();
                this.handling.restart(delivery);
                *this.home = Some(self);
                spare
            }
            None => Box::pin(Handling { handling: self.retry.handle(delivery), home: Some(self) }),
        };
        StackFuture(Some(handling))
    }
}

/// A message in hand, erased.
trait Handle: Future<Output = Result<Verdict, Infallible>> + Send {
    /// Leaves its place, whose message is done, to another message.
    fn leave(self: Pin<Box<Self>>);
}

impl<S> Future for Handling<S>
where
    S: Service<Delivery, Response = Done, Error = Setback>,
{
    type Output = Result<Verdict, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().handling.poll(cx)
    }
}

impl<S> Handle for Handling<S>
where
    S: Service<Delivery, Response = Done, Error = Setback, Future: Send> + Send + Sync,
{
    fn leave(mut self: Pin<Box<Self>>) {
        if let Some(home) = self.as_mut().project().home.take() {
            let mut spares = home.spares();
            if spares.len() < SPARES {
                spares.push(self);
            }
        }
    }
}

impl HandlerStack {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// The handler's stable name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The names it had before.
    #[must_use]
    pub fn aliases(&self) -> &[Arc<str>] {
        &self.shared.aliases
    }

    /// How it is retried, all overrides applied.
    pub fn policy(&self) -> &RetryPolicy {
        &self.shared.policy
    }

    /// How long an attempt may take.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.shared.timeout
    }

    /// How many attempts run at once.
    #[must_use]
    pub fn concurrency(&self) -> Option<usize> {
        self.shared.concurrency
    }

    /// Whether both are clones of one handler.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Service<Delivery> for HandlerStack {
    type Response = Verdict;
    type Error = Infallible;
    type Future = StackFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> StackFuture {
        let Shared { name, policy, service, .. } = &*self.shared;
        let delivery = delivery.with_max_attempts(policy.max_attempts());
        // A letter that died under a former name is handled, and if need be dies, under the present one.
        let delivery = match delivery.consumer_shared() {
            known if Arc::ptr_eq(known, name) || known == name => delivery,
            _ => delivery.with_consumer(Arc::clone(name)),
        };
        Arc::clone(service).run(delivery)
    }
}

impl Handles for HandlerStack {
    fn names(&self) -> Vec<Arc<str>> {
        std::iter::once(&self.shared.name).chain(&self.shared.aliases).cloned().collect()
    }

    fn name_for(&self, _: &Delivery) -> Arc<str> {
        Arc::clone(&self.shared.name)
    }

    fn order_key(&self, delivery: &Delivery) -> Option<Bytes> {
        self.shared.order_by.as_ref().and_then(|key| key(delivery))
    }

    fn is_ordered(&self) -> bool {
        self.shared.order_by.is_some()
    }
}

impl fmt::Debug for HandlerStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerStack")
            .field("name", &self.shared.name)
            .field("aliases", &self.shared.aliases)
            .field("policy", &self.shared.policy)
            .field("timeout", &self.shared.timeout)
            .field("concurrency", &self.shared.concurrency)
            .field("is_ordered", &self.is_ordered())
            .finish_non_exhaustive()
    }
}

/// A message on its way through a handler's stack, from its first attempt to the verdict.
#[must_use = "a future does nothing until it is polled"]
pub struct StackFuture(Option<Pin<Box<dyn Handle>>>);

impl Future for StackFuture {
    type Output = Result<Verdict, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let handling = self.0.as_mut().expect("a future is not polled after it has completed");
        let verdict = ready!(handling.as_mut().poll(cx));
        // A service that failed is not used again.
        if let Some(handling) = self.0.take()
            && matches!(verdict, Ok(Verdict::Done(_)))
        {
            handling.leave();
        }
        Poll::Ready(verdict)
    }
}

impl fmt::Debug for StackFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackFuture").finish_non_exhaustive()
    }
}

/// What a router takes: a [`HandlerStack`], or a [`HandlerBuilder`](super::HandlerBuilder) to be built.
pub trait IntoStack<Args> {
    /// The stack.
    ///
    /// # Errors
    ///
    /// When the builder's settings contradict each other.
    fn into_stack(self) -> Result<HandlerStack, InvalidConfig>;
}

impl IntoStack<()> for HandlerStack {
    fn into_stack(self) -> Result<HandlerStack, InvalidConfig> {
        Ok(self)
    }
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<HandlerStack>();
};
