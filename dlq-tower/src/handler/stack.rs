use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::Delivery;
use dlq_core::policy::{RetryPolicy, WaitsIn};
use tower_service::Service;

use super::layered::Layers;
use super::place::Run;
use super::{FunctionId, Handles, InvalidConfig, StackFuture, Taken};
use crate::idempotency::KeyJanitor;
use crate::stage::Verdict;

/// Reads a key from a delivery.
pub(super) type KeyFn = Arc<dyn Fn(&Delivery) -> Option<Bytes> + Send + Sync>;

/// Composes all stages around a handler's function, with these layers.
pub(super) type Compose = Arc<dyn Fn(&Layers) -> Arc<dyn Run> + Send + Sync>;

/// A handler with its policy: from the function to the retry stage, ready for a router or a consumer. Cheap to clone.
///
/// See the [module docs](super).
#[derive(Clone)]
#[must_use = "a handler does nothing until a consumer runs it"]
pub struct HandlerStack {
    shared: Arc<Inner>,
}

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) name: Arc<str>,
    pub(super) aliases: Vec<Arc<str>>,
    pub(super) policy: RetryPolicy,
    pub(super) timeout: Option<Duration>,
    pub(super) concurrency: Option<usize>,
    pub(super) order_by: Option<KeyFn>,
    pub(super) key_janitors: Option<KeyJanitor>,
    pub(super) service: Arc<dyn Run>,
    pub(super) layers: Layers,
    pub(super) compose: Compose,
    pub(super) function: FunctionId,
    /// Prefix of the variables of the environment that it was built with.
    pub(super) variables: Option<String>,
    // Its names, over the store of its keys, and its variables.
    pub(super) _taken: Arc<[Taken]>,
}

impl HandlerStack {
    pub(super) fn new(shared: Inner) -> Self {
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

    /// Returns the retry policy, all overrides applied.
    pub fn policy(&self) -> &RetryPolicy {
        &self.shared.policy
    }

    /// Returns the time limit of an attempt.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.shared.timeout
    }

    /// Returns the number of attempts that run at once.
    #[must_use]
    pub fn concurrency(&self) -> Option<usize> {
        self.shared.concurrency
    }

    /// Prefix of the variables of the environment that it was built with.
    pub(crate) fn variables(&self) -> Option<&str> {
        self.shared.variables.as_deref()
    }

    /// Returns the same handler, with more layers around those that it has.
    pub(crate) fn within(&self, outer: &Layers) -> Self {
        if outer.is_empty() {
            return self.clone();
        }
        let layers = self.shared.layers.within(outer);
        // Layers stand inside the stages, so that all of it is composed anew.
        let service = (self.shared.compose)(&layers);
        Self::new(Inner { service, layers, ..(*self.shared).clone() })
    }

    /// Returns true if both are clones of one handler.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Service<Delivery> for HandlerStack {
    type Response = Verdict;
    type Error = Infallible;
    type Future = StackFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A handler at its limit makes its own message wait within the call, and nobody who comes after it (G4).
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> StackFuture {
        let Inner { name, policy, service, .. } = &*self.shared;
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

    fn uses_retry_queue(&self) -> Vec<Arc<str>> {
        // What has an order key waits in the process, however long.
        let steps = self.shared.policy.schedule().steps;
        // Nor are attempts forgotten that an idempotency key counts.
        let forgets = !self.is_ordered() && self.shared.key_janitors.is_none();
        let uses_retry_queue =
            forgets && steps.iter().any(|step| step.place == WaitsIn::RetryQueue);
        uses_retry_queue.then(|| Arc::clone(&self.shared.name)).into_iter().collect()
    }

    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)> {
        vec![(self.shared.function, self.names())]
    }

    fn summary(&self) -> String {
        let Inner { name, policy, .. } = &*self.shared;
        format!("{name}: {} attempts, {}", policy.max_attempts(), policy.backoff())
    }

    fn key_janitors(&self) -> Vec<KeyJanitor> {
        self.shared.key_janitors.iter().cloned().collect()
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

/// Types that a router takes: a [`HandlerStack`], or a [`HandlerBuilder`](super::HandlerBuilder) to be built.
pub trait IntoStack<Args> {
    /// Returns the handler's stack, and builds it if it is a builder.
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
