//! The stack and the names of its handlers, erased.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use dlq_core::{DeliveredFrom, Delivery, ErrorClass, Failure, Recipients};
use futures_util::poll;
use tower_service::Service;

use super::hand;
use crate::InvalidConfig;
use crate::catch_panic::{discard, failure_of};
use crate::handler::{FunctionId, Handles, Taken};
use crate::idempotency::KeyJanitor;
use crate::stage::{IsSettlement, RouteError, Settlement};

pub(super) type Ended = Result<Settlement, RouteError>;
pub(super) type Settling = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// A complete stack: one box per message.
pub(super) trait Stack: Send + Sync {
    fn run(&self, delivery: Delivery) -> Settling;

    /// Makes a runner that handles one message after another.
    fn repeat(&self) -> Box<dyn Repeat>;
}

/// A complete stack that runs for one message after another, as far as it comes without waiting.
pub(super) trait Repeat: Send {
    /// Runs a message and returns its end; or else the rest of it, which has to be polled anew.
    fn step(&mut self, delivery: Delivery, cx: &mut Context<'_>) -> Result<Ended, Settling>;
}

struct Again<S: Service<Delivery>> {
    /// Never polled: what others are cloned from.
    fresh: S,
    stack: S,
    /// Place of the next run: futures are so large that a box for each would not pay.
    place: Pin<Box<Option<S::Future>>>,
}

impl<S> Repeat for Again<S>
where
    S: Service<Delivery, Error = RouteError> + Clone + Send + Sync + 'static,
    S::Response: IsSettlement,
    S::Future: Send,
{
    fn step(&mut self, delivery: Delivery, cx: &mut Context<'_>) -> Result<Ended, Settling> {
        match self.stack.poll_ready(cx) {
            // It stands in some line, where its place goes to this message.
            Poll::Pending => {
                let waiting = mem::replace(&mut self.stack, self.fresh.clone());
                return Err(run(waiting, delivery));
            }
            Poll::Ready(Err(error)) => {
                self.stack = self.fresh.clone();
                return Ok(Err(error));
            }
            Poll::Ready(Ok(())) => {}
        }
        self.place.set(Some(self.stack.call(delivery)));
        match poll_place(self.place.as_mut(), cx) {
            Poll::Ready(ended) => {
                // What the future holds of this message goes before the next one begins.
                self.place.set(None);
                Ok(ended)
            }
            Poll::Pending => {
                let mut place = mem::replace(&mut self.place, Box::pin(None));
                Err(Box::pin(poll_fn(move |cx| poll_place(place.as_mut(), cx))))
            }
        }
    }
}

fn poll_place<F, R>(place: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<Ended>
where
    F: Future<Output = Result<R, RouteError>>,
    R: IsSettlement,
{
    match place.as_pin_mut() {
        Some(future) => future.poll(cx).map_ok(IsSettlement::into_settlement),
        // It is never empty here: `step` fills it before it polls, and a future that has completed is not polled again.
        None => Poll::Pending,
    }
}

impl<S> Stack for S
where
    S: Service<Delivery, Error = RouteError> + Clone + Send + Sync + 'static,
    S::Response: IsSettlement,
    S::Future: Send,
{
    fn run(&self, delivery: Delivery) -> Settling {
        run(self.clone(), delivery)
    }

    fn repeat(&self) -> Box<dyn Repeat> {
        Box::new(Again { fresh: self.clone(), stack: self.clone(), place: Box::pin(None) })
    }
}

fn run<S>(mut service: S, delivery: Delivery) -> Settling
where
    S: Service<Delivery, Error = RouteError> + Send + 'static,
    S::Response: IsSettlement,
    S::Future: Send,
{
    Box::pin(async move {
        ready(&mut service, &delivery).await?;
        service.call(delivery).await.map(IsSettlement::into_settlement)
    })
}

/// Waits until the stack is ready, without a turn to run: who has what it waits for may itself wait for a turn.
async fn ready<S>(service: &mut S, delivery: &Delivery) -> Result<(), S::Error>
where
    S: Service<Delivery>,
{
    let mut ready = poll_fn(|cx| service.poll_ready(cx));
    if let Poll::Ready(ready) = poll!(&mut ready) {
        return ready;
    }
    // For a marked suspect this removes the mark as well: others run now, and may kill the process (G3).
    if let Some(rest) = hand::rest(delivery) {
        rest.await;
    }
    ready.await?;
    if let Some(turn) = hand::resume(delivery)
        && turn.await.is_err()
    {
        hand::put_off(delivery).await;
    }
    Ok(())
}

/// Handlers that the messages are for, and their order.
pub(super) trait Naming: Send + Sync {
    fn names(&self) -> Vec<Arc<str>>;
    fn name_for(&self, delivery: &Delivery) -> Arc<str>;
    fn order_key(&self, delivery: &Delivery) -> Option<Bytes>;
    fn is_ordered(&self) -> bool;
    fn uses_retry_queue(&self) -> Vec<Arc<str>>;
    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)>;
    fn summary(&self) -> String;
    fn key_janitors(&self) -> Vec<KeyJanitor>;
    fn key_janitors_for(&self, delivery: &Delivery) -> Vec<KeyJanitor>;
}

/// Addressees that a source learns.
pub(super) struct Addressees(pub(super) Arc<dyn Naming>);

impl Recipients for Addressees {
    fn names(&self) -> Vec<Arc<str>> {
        self.0.names()
    }

    /// Returns true if the handler that takes the message now is called `name`, or was before.
    fn is_own(&self, name: &str, delivery: &Delivery) -> bool {
        let Some(name) = self.names().into_iter().find(|known| **known == *name) else {
            return false;
        };
        // A retry record is dispatched by its name, and a message of the main stream by what it says. The letter is its
        // own if both lead to one handler.
        let named = delivery.clone().with_consumer(name).with_delivered_from(DeliveredFrom::Retry);
        let for_both = || self.0.name_for(&named) == self.0.name_for(delivery);
        guarded("name_for", delivery, for_both).unwrap_or(false)
    }
}

impl fmt::Debug for Addressees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Addressees").field(&self.names()).finish()
    }
}

/// Names of a [`Handles`].
pub(super) struct HandlerNames<H>(pub(super) H);

impl<H: Handles> Naming for HandlerNames<H> {
    fn names(&self) -> Vec<Arc<str>> {
        self.0.names()
    }

    fn name_for(&self, delivery: &Delivery) -> Arc<str> {
        self.0.name_for(delivery)
    }

    fn order_key(&self, delivery: &Delivery) -> Option<Bytes> {
        self.0.order_key(delivery)
    }

    fn is_ordered(&self) -> bool {
        self.0.is_ordered()
    }

    fn uses_retry_queue(&self) -> Vec<Arc<str>> {
        self.0.uses_retry_queue()
    }

    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)> {
        self.0.functions()
    }

    fn summary(&self) -> String {
        self.0.summary()
    }

    fn key_janitors(&self) -> Vec<KeyJanitor> {
        self.0.key_janitors()
    }

    fn key_janitors_for(&self, delivery: &Delivery) -> Vec<KeyJanitor> {
        self.0.key_janitors_for(delivery)
    }
}

/// Single name for everything, without order.
pub(super) struct OneName(pub(super) Arc<str>);

impl Naming for OneName {
    fn names(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.0)]
    }

    fn name_for(&self, _: &Delivery) -> Arc<str> {
        Arc::clone(&self.0)
    }

    fn order_key(&self, _: &Delivery) -> Option<Bytes> {
        None
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn uses_retry_queue(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)> {
        Vec::new()
    }

    fn summary(&self) -> String {
        self.0.to_string()
    }

    fn key_janitors(&self) -> Vec<KeyJanitor> {
        Vec::new()
    }

    fn key_janitors_for(&self, _: &Delivery) -> Vec<KeyJanitor> {
        Vec::new()
    }
}

/// Program that a consumer runs.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) stack: Arc<dyn Stack>,
    pub(super) naming: Arc<dyn Naming>,
    // The names of its functions, over the store of their letters.
    _taken: Arc<[Taken]>,
}

impl Program {
    pub(super) fn new(stack: Arc<dyn Stack>, naming: Arc<dyn Naming>) -> Self {
        Self { stack, naming, _taken: Arc::default() }
    }

    /// Takes the names of the functions for as long as the program or a clone of it lives.
    ///
    /// # Errors
    ///
    /// When another function has one of them, over the same store.
    pub(super) fn take_names(&mut self, store: &str) -> Result<(), InvalidConfig> {
        let mut taken = Vec::new();
        for (function, names) in self.naming.functions() {
            taken.extend(Taken::names(store, names, function)?);
        }
        self._taken = taken.into();
        Ok(())
    }

    /// The delivery as its consumer is to see it. A letter keeps the name it died under, by which it is dispatched.
    pub(super) fn address(&self, delivery: Delivery) -> Delivery {
        if delivery.delivered_from() == DeliveredFrom::Store {
            return delivery;
        }
        let name = guarded("name_for", &delivery, || self.naming.name_for(&delivery));
        // A letter needs some name, also where the function that should tell it has panicked.
        match name.or_else(|| self.naming.names().into_iter().next()) {
            // To change it is to copy it, where it has been handed on.
            Some(name) if *name != *delivery.consumer() => delivery.with_consumer(name),
            _ => delivery,
        }
    }

    /// In whose line the delivery stands; or the panic of the function that was to say so.
    pub(super) fn order_key(&self, delivery: &Delivery) -> Result<Option<Bytes>, Box<Failure>> {
        let key = catch_unwind(AssertUnwindSafe(|| self.naming.order_key(delivery)));
        // It would panic again for the same message, however often that comes.
        key.map_err(|payload| Box::new(failure_of(payload, ErrorClass::Permanent)))
    }

    /// Returns the keepers of the delivery's idempotency key.
    pub(super) fn key_janitors_for(&self, delivery: &Delivery) -> Vec<KeyJanitor> {
        guarded("key_janitors_for", delivery, || self.naming.key_janitors_for(delivery))
            .unwrap_or_default()
    }
}

/// Runs a function of the user's in the run loop: a panic in it is that message's, and must not end the loop (G9).
fn guarded<T>(what: &str, delivery: &Delivery, run: impl FnOnce() -> T) -> Option<T> {
    let ran = catch_unwind(AssertUnwindSafe(run));
    ran.map_err(|payload| {
        discard(move || drop(payload));
        tracing::error!(
            what,
            origin = %delivery.origin(),
            "a function given to the consumer panicked for a message"
        );
    })
    .ok()
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("names", &self.naming.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::{Message, Origin, Position};

    use super::*;
    use crate::handler::handler;
    use crate::router::Router;

    async fn nothing() {}

    #[test]
    fn g2_a_letter_is_for_who_takes_its_message_now() {
        let orders = handler("shop.orders", nothing).alias("orders.old");
        let router = Router::new()
            .name("shop")
            .route("orders.*", orders)
            .route("audit.>", handler("shop.audit", nothing))
            .build()
            .unwrap();
        let all = Addressees(Arc::new(HandlerNames(router)));
        let origin = Origin::new("memory", "orders", Position::Offset(1));
        let order = Delivery::new(Message::new("orders.created", ""), origin);
        // What the router gave up itself is routed anew.
        for own in ["shop.orders", "orders.old", "shop"] {
            assert!(all.is_own(own, &order), "{own}");
        }
        for other in ["shop.audit", "billing", ""] {
            assert!(!all.is_own(other, &order), "{other}");
        }
        let one = Addressees(Arc::new(OneName("billing".into())));
        assert!(one.is_own("billing", &order) && !one.is_own("shop", &order));
    }
}
