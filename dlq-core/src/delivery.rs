//! [`Delivery`]: a message handed to the stack, cheap to clone and without any way to settle it.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use crate::{Death, Failure, History, LetterId, Message, Origin};

/// Way by which a delivery came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveredFrom {
    /// From the source itself.
    #[default]
    Main,
    /// From the transport's retry queue, with earlier attempts in its headers.
    Retry,
    /// From a store: a claimed letter or retry record, whose row records what becomes of it.
    Store,
}

/// A message handed to the stack.
///
/// Cheap to clone. It has **no settle handle inside**: whoever holds it can run it, nobody can acknowledge it. The
/// handle ([`Settle`](crate::Settle)) stays with the run loop.
///
/// Three counts are kept apart: *attempts* are runs of the handler, *deliveries* are times the broker handed the
/// message out, *crashes* are runs that ended with the process.
///
/// A setter changes the delivery that it returns, and no clone that was made before. Only a
/// [decoded](Self::keep_decoded) value is seen by the clones that exist.
#[derive(Clone)]
#[must_use]
pub struct Delivery {
    shared: Arc<Inner>,
    // Two words in all, so that it is handed on in registers.
    attempt: u32,
    max_attempts: Option<NonZeroU32>,
}

#[derive(Clone)]
struct Inner {
    message: Message,
    consumer: Arc<str>,
    origin: Origin,
    /// Stream or topic where the message was read, if it was born elsewhere.
    previous: Option<Arc<str>>,
    delivered_from: DeliveredFrom,
    deliveries: u32,
    crashes: u32,
    delayed_retries: u32,
    replays: u32,
    generation: u32,
    letter: Option<LetterId>,
    /// Id of the letter that its own consumer would write, once somebody has asked.
    own: OnceLock<LetterId>,
    history: History,
    /// The reason why no handler may run it. Boxed, since hardly any message has one.
    refusal: Option<Box<Failure>>,
    decoded: OnceLock<Value>,
    extensions: Extensions,
}

type Value = Arc<dyn Any + Send + Sync>;

/// Values that layers and the run loop have added, one of a type. Hardly any delivery has more than the run loop's.
#[derive(Clone, Default)]
struct Extensions {
    first: OnceLock<Value>,
    others: Vec<Value>,
}

impl Extensions {
    fn set(&mut self, value: Value) {
        let is_other = |known: &Value| (**known).type_id() != (*value).type_id();
        if !self.first.get().is_some_and(is_other) {
            self.first = OnceLock::from(value);
            return;
        }
        self.others.retain(is_other);
        self.others.push(value);
    }

    #[inline]
    fn get<T: 'static>(&self) -> Option<&Value> {
        let of_type = |value: &&Value| (***value).is::<T>();
        let first = self.first.get()?;
        Some(first).filter(of_type).or_else(|| self.others.iter().find(of_type))
    }
}

impl Delivery {
    /// A first delivery of `message`, which stood at `origin`.
    pub fn new(message: Message, origin: Origin) -> Self {
        Self::to(unnamed(), message, origin)
    }

    /// A first delivery to the consumer of this name.
    pub fn to(consumer: impl Into<Arc<str>>, message: Message, origin: Origin) -> Self {
        Self {
            shared: Arc::new(Inner {
                message,
                consumer: consumer.into(),
                origin,
                previous: None,
                delivered_from: DeliveredFrom::Main,
                deliveries: 1,
                crashes: 0,
                delayed_retries: 0,
                replays: 0,
                generation: 0,
                letter: None,
                own: OnceLock::new(),
                history: History::new(),
                refusal: None,
                decoded: OnceLock::new(),
                extensions: Extensions::default(),
            }),
            attempt: 1,
            max_attempts: None,
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        // This copies only while another clone is alive.
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Sets the name of the consumer it is handed to.
    pub fn with_consumer(self, consumer: impl Into<Arc<str>>) -> Self {
        let consumer = consumer.into();
        self.change(|shared| {
            shared.consumer = consumer;
            // The id that was kept follows from the former name.
            shared.own = OnceLock::new();
        })
    }

    /// Sets which run of the handler comes next, counted from 1. Defaults to 1.
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets how many runs of the handler its policy grants; 0 for unknown, which is the default.
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = NonZeroU32::new(attempts);
        self
    }

    /// Sets by which way it came. Defaults to [`DeliveredFrom::Main`].
    pub fn with_delivered_from(self, delivered_from: DeliveredFrom) -> Self {
        self.change(|shared| shared.delivered_from = delivered_from)
    }

    /// Sets the topic or subject of the retry stage that it was read from. Defaults to that of the message.
    pub fn with_previous(self, topic: impl Into<Arc<str>>) -> Self {
        let topic = topic.into();
        self.change(|shared| shared.previous = Some(topic))
    }

    /// Sets how often the broker has handed it out, this time included. Defaults to 1.
    pub fn with_deliveries(self, deliveries: u32) -> Self {
        self.change(|shared| shared.deliveries = deliveries)
    }

    /// Sets how many runs are known to have ended with the process. Defaults to 0.
    pub fn with_crashes(self, crashes: u32) -> Self {
        self.change(|shared| shared.crashes = crashes)
    }

    /// Sets how often it has gone through the retry queue. Defaults to 0.
    pub fn with_delayed_retries(self, delayed_retries: u32) -> Self {
        self.change(|shared| shared.delayed_retries = delayed_retries)
    }

    /// Sets how often it has been sent back from the dead letters. Defaults to 0.
    pub fn with_replays(self, replays: u32) -> Self {
        self.change(|shared| shared.replays = replays)
    }

    /// Sets the attempts made before this delivery; the next run continues their count.
    pub fn with_history(self, history: History) -> Self {
        self.change(|shared| shared.history = history)
    }

    /// Marks it as one that no handler may run, as of a message that its client cannot read: the retry stage gives it up
    /// with this failure.
    pub fn with_refusal(self, failure: Failure) -> Self {
        self.change(|shared| shared.refusal = Some(Box::new(failure)))
    }

    /// Makes it a delivery of the letter `death.letter`, whose next death would have generation `death.generation`.
    pub fn with_death(self, death: Death) -> Self {
        self.change(|shared| {
            shared.letter = Some(death.letter);
            shared.generation = death.generation;
        })
    }

    /// Adds a value for layers and handlers further inside. Replaces one of the same type. Clones that were made before do not
    /// have it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use dlq_core::{Delivery, Message, Origin, Position};
    ///
    /// #[derive(Debug, PartialEq)]
    /// struct Tenant(u32);
    ///
    /// let origin = Origin::new("memory", "orders", Position::Offset(1));
    /// let plain = Delivery::new(Message::new("orders", "{}"), origin);
    /// let delivery = plain.clone().with_extension(Arc::new(Tenant(1)));
    /// let delivery = delivery.with_extension(Arc::new("another type"));
    /// let delivery = delivery.with_extension(Arc::new(Tenant(7)));
    /// assert_eq!(delivery.extension(), Some(&Tenant(7)));
    /// assert_eq!(delivery.extension(), Some(&"another type"));
    /// assert_eq!(plain.extension::<Tenant>(), None);
    /// ```
    pub fn with_extension<T: Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        self.change(|shared| shared.extensions.set(value))
    }

    /// The same for the run loop, whose value is the first. Clones that were made before may have it, too: a source keeps one
    /// until the message is settled, and to copy the whole delivery on account of it is a tenth of what a message costs.
    #[doc(hidden)]
    pub fn with_run_extension<T: Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        match self.shared.extensions.first.set(value) {
            Ok(()) => self,
            Err(value) => self.change(|shared| shared.extensions.set(value)),
        }
    }

    /// Returns the value of this type that a layer outside has [added](Self::with_extension).
    #[inline]
    #[must_use]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.shared.extensions.get::<T>().and_then(|value| value.downcast_ref())
    }

    /// The same, shared.
    #[inline]
    #[must_use]
    pub fn extension_shared<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared.extensions.get::<T>().and_then(|value| Arc::clone(value).downcast().ok())
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.shared.message
    }

    /// Returns the stream or topic and the position of the message at its broker.
    pub fn origin(&self) -> &Origin {
        &self.shared.origin
    }

    /// The name of the consumer it was handed to; empty until a run loop or router names it.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.shared.consumer
    }

    /// The consumer's name, shared.
    #[must_use]
    pub fn consumer_shared(&self) -> &Arc<str> {
        &self.shared.consumer
    }

    /// Returns the number of this run of the handler, counted from 1 within the generation.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the number of runs that the policy grants, if a handler's stack has set it.
    #[must_use]
    pub fn max_attempts(&self) -> Option<u32> {
        self.max_attempts.map(NonZeroU32::get)
    }

    /// Returns the way by which the delivery came.
    #[must_use]
    pub fn delivered_from(&self) -> DeliveredFrom {
        self.shared.delivered_from
    }

    /// The topic or subject that it was read from: that of the retry stage it comes from, else that of the message.
    #[must_use]
    pub fn previous(&self) -> &str {
        self.shared.previous.as_deref().unwrap_or_else(|| self.message().subject())
    }

    /// Returns the number of times that the broker has handed the message out, including this one.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.shared.deliveries
    }

    /// Returns the number of runs that are known to have ended with the process.
    #[must_use]
    pub fn crashes(&self) -> u32 {
        self.shared.crashes
    }

    /// Hops to a slower retry stage so far.
    #[must_use]
    pub fn delayed_retries(&self) -> u32 {
        self.shared.delayed_retries
    }

    /// Times it was sent back from the dead letters.
    #[must_use]
    pub fn replays(&self) -> u32 {
        self.shared.replays
    }

    /// Deaths before this delivery.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.shared.generation
    }

    /// The attempts made before this delivery, all generations, oldest first.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.shared.history
    }

    /// The failure with which it is given up without a run, where its source has refused it.
    #[must_use]
    pub fn refusal(&self) -> Option<&Failure> {
        self.shared.refusal.as_deref()
    }

    /// The death that this delivery would die for `consumer`: its own letter where it came from one, else the
    /// deterministic id of its origin.
    #[must_use]
    pub fn death(&self, consumer: &str) -> Death {
        let shared = &*self.shared;
        let of_origin = || LetterId::of(&shared.origin, shared.message.published_at(), consumer);
        let letter = match shared.letter {
            Some(letter) => letter,
            // The id for its own consumer is kept, since each stage asks for it. That for another one is asked for
            // rarely.
            None if *consumer == *shared.consumer => *shared.own.get_or_init(of_origin),
            None => of_origin(),
        };
        Death { letter, generation: self.shared.generation }
    }

    /// The value that an earlier attempt decoded, if it has type `T`.
    #[must_use]
    pub fn decoded<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.shared.decoded.get().cloned().and_then(|value| value.downcast().ok())
    }

    /// Keeps a decoded value for later attempts and other extractors. The first one kept stays.
    pub fn keep_decoded<T: Send + Sync + 'static>(&self, value: Arc<T>) {
        let _ = self.shared.decoded.set(value);
    }
}

const _: () = assert!(size_of::<Delivery>() == 2 * size_of::<usize>());

fn unnamed() -> Arc<str> {
    // One empty name serves all deliveries that are still unnamed, without an allocation for each.
    static UNNAMED: OnceLock<Arc<str>> = OnceLock::new();
    UNNAMED.get_or_init(|| Arc::from("")).clone()
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("consumer", &self.shared.consumer)
            .field("origin", &self.shared.origin)
            .field("delivered_from", &self.shared.delivered_from)
            .field("attempt", &self.attempt)
            .field("deliveries", &self.shared.deliveries)
            .field("crashes", &self.shared.crashes)
            .field("generation", &self.shared.generation)
            .field("message", &self.shared.message)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::Position;

    use super::*;

    #[test]
    fn a_run_is_known_to_all_clones_and_another_one_to_its_own() {
        let origin = Origin::new("memory", "orders", Position::Offset(1));
        let kept = Delivery::new(Message::new("orders", "{}"), origin);
        let first = kept.clone().with_run_extension(Arc::new(1_u32));
        assert_eq!((kept.extension(), first.extension()), (Some(&1_u32), Some(&1_u32)));
        let second = kept.clone().with_extension(Arc::new("a layer's"));
        let second = second.with_run_extension(Arc::new(2_u32));
        assert_eq!((second.extension(), second.extension()), (Some(&2_u32), Some(&"a layer's")));
        assert_eq!((kept.extension(), kept.extension::<&str>()), (Some(&1_u32), None));
    }
}
