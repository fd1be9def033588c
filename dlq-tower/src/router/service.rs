use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::{Attempt, Cause, DeliveredFrom, Delivery, ErrorClass, Failure, Reason};
use tower_service::Service;

use super::table::Table;
use super::{RouteFuture, RouterBuilder};
use crate::handler::{FunctionId, HandlerStack, Handles};
use crate::idempotency::KeyJanitor;
use crate::stage::{GivenUp, LayerClock, Verdict};

/// Time for which a letter of a handler that is not here is left alone.
const ELSEWHERE: Duration = Duration::from_secs(60);

/// Hands each message to the handler that takes it. Cheap to clone. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a router does nothing until a consumer runs it"]
pub struct Router {
    shared: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) name: Arc<str>,
    pub(super) handlers: Vec<HandlerStack>,
    pub(super) by_name: HashMap<Arc<str>, usize>,
    pub(super) events: Table,
    pub(super) subjects: Table,
    pub(super) fallback: Option<usize>,
}

/// Handler that takes a message.
enum Taker<'a> {
    Handler(&'a HandlerStack),
    /// No handler: the message is rejected.
    Nobody,
    /// A handler that is not here.
    Elsewhere,
    /// A handler that is not here, to which a letter was sent back.
    Gone,
}

impl Router {
    pub(super) fn of(shared: Inner) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Begins a router, without routes.
    #[expect(clippy::new_ret_no_self, reason = "routes are checked once, together, by `build`")]
    pub fn new() -> RouterBuilder {
        RouterBuilder::new()
    }

    /// The name under which messages that no handler takes are kept.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The handlers, each once, in order of declaration.
    pub fn handlers(&self) -> impl Iterator<Item = &HandlerStack> {
        self.shared.handlers.iter()
    }
}

impl Inner {
    fn taker(&self, delivery: &Delivery) -> Taker<'_> {
        let handler = |number: usize| Taker::Handler(&self.handlers[number]);
        if matches!(delivery.delivered_from(), DeliveredFrom::Store | DeliveredFrom::Retry) {
            if let Some(&number) = self.by_name.get(delivery.consumer()) {
                return handler(number);
            }
            // What the router itself gave up is routed anew; a letter of anybody else's is not ours to run.
            let is_other = delivery.consumer() != &*self.name;
            if delivery.delivered_from() == DeliveredFrom::Store && is_other {
                return Taker::Elsewhere;
            }
            // A retry of a handler that was renamed goes by its subject. A letter is for the handler that failed.
            let is_letter = delivery.replays() > 0 && delivery.delayed_retries() == 0;
            if is_letter && is_other {
                return Taker::Gone;
            }
        }
        let message = delivery.message();
        // The event comes first, because it says more than the subject, under which events of many types may travel.
        let by_event = message.event().and_then(|event| self.events.find(event));
        let found = by_event.or_else(|| self.subjects.find(message.subject())).or(self.fallback);
        found.map_or(Taker::Nobody, handler)
    }
}

/// The end of a message that no handler takes. None ran, so that no attempt is counted; the letter says why all the same.
fn rejected(delivery: &Delivery, name: Arc<str>, group: &str, error: &str) -> Verdict {
    let mut failure = Failure::new(ErrorClass::Permanent, Cause::Malformed, group, error);
    // Messages of many subjects are one mistake.
    failure.group = Some(group.to_owned());
    let mut given_up = GivenUp::unattempted(delivery, name, Reason::Rejected);
    given_up.cause = Some(failure.cause);
    given_up.history.push(Attempt {
        number: delivery.attempt(),
        generation: delivery.generation(),
        failure: failure.timed(LayerClock::default().now(), Duration::ZERO),
    });
    Verdict::Dead(Box::new(given_up))
}

impl Service<Delivery> for Router {
    type Response = Verdict;
    type Error = Infallible;
    type Future = RouteFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Handlers are always ready: one at its limit makes its own messages wait, not those of others (G4).
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> RouteFuture {
        match self.shared.taker(&delivery) {
            Taker::Handler(handler) => RouteFuture::handled(handler.clone().call(delivery)),
            Taker::Nobody => {
                let name = Arc::clone(&self.shared.name);
                tracing::error!(
                    router = &*name,
                    subject = delivery.message().subject(),
                    event = delivery.message().event(),
                    "no route takes a message; it is rejected"
                );
                let message = delivery.message();
                let event = message.event().map(|event| format!(" and the event `{event}`"));
                let error = format!(
                    "no route of `{name}` takes the subject `{}`{}",
                    message.subject(),
                    event.unwrap_or_default()
                );
                RouteFuture::decided(rejected(&delivery, name, "no route", &error))
            }
            Taker::Gone => {
                let name = Arc::clone(delivery.consumer_shared());
                tracing::error!(
                    router = &*self.shared.name,
                    consumer = &*name,
                    "no handler here has the name of the one that a letter was sent back to; it dies once more"
                );
                let error = format!(
                    "no handler of `{}` has the name `{name}`, to which the letter of the subject `{}` was sent back",
                    self.shared.name,
                    delivery.message().subject()
                );
                RouteFuture::decided(rejected(&delivery, name, "no handler", &error))
            }
            // The letter is deferred, and neither counted nor given up: another process may have the handler (G10).
            Taker::Elsewhere => {
                tracing::warn!(
                    router = &*self.shared.name,
                    consumer = delivery.consumer(),
                    "no handler here has the name of a letter's consumer; it is left alone"
                );
                let why = "its handler is not here";
                RouteFuture::decided(Verdict::Defer { after: ELSEWHERE, why })
            }
        }
    }
}

impl Handles for Router {
    fn names(&self) -> Vec<Arc<str>> {
        // The router's own name comes first: letters of messages that it rejected are claimed under it and routed anew.
        let own = std::iter::once(Arc::clone(&self.shared.name));
        own.chain(self.shared.handlers.iter().flat_map(Handles::names)).collect()
    }

    fn name_for(&self, delivery: &Delivery) -> Arc<str> {
        match self.shared.taker(delivery) {
            Taker::Handler(handler) => handler.name_for(delivery),
            Taker::Nobody => Arc::clone(&self.shared.name),
            Taker::Elsewhere | Taker::Gone => Arc::clone(delivery.consumer_shared()),
        }
    }

    fn order_key(&self, delivery: &Delivery) -> Option<Bytes> {
        match self.shared.taker(delivery) {
            Taker::Handler(handler) => handler.order_key(delivery),
            Taker::Nobody | Taker::Elsewhere | Taker::Gone => None,
        }
    }

    fn is_ordered(&self) -> bool {
        self.shared.handlers.iter().any(Handles::is_ordered)
    }

    fn uses_retry_queue(&self) -> Vec<Arc<str>> {
        self.shared.handlers.iter().flat_map(Handles::uses_retry_queue).collect()
    }

    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)> {
        self.shared.handlers.iter().flat_map(Handles::functions).collect()
    }

    fn summary(&self) -> String {
        let handlers: Vec<_> = self.shared.handlers.iter().map(Handles::summary).collect();
        format!("{} ({})", self.shared.name, handlers.join("; "))
    }

    fn key_janitors(&self) -> Vec<KeyJanitor> {
        self.shared.handlers.iter().flat_map(Handles::key_janitors).collect()
    }

    fn key_janitors_for(&self, delivery: &Delivery) -> Vec<KeyJanitor> {
        match self.shared.taker(delivery) {
            Taker::Handler(handler) => handler.key_janitors_for(delivery),
            Taker::Nobody | Taker::Elsewhere | Taker::Gone => Vec::new(),
        }
    }
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<Router>();
};
