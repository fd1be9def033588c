use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dlq_core::store::BoxSink;
use dlq_core::{BoxRetryQueue, Delivery, RetryQueue, SharedClock, Sink, SystemClock};
use tower_layer::Layer;

use super::route::Inner;
use super::unfinished::Unfinished;
use super::writer::{Batch, Writer};
use super::{DeadLetter, OnDeath};
use crate::metrics::Recorder;

/// Reads an attribute of a letter from its delivery.
pub(super) type Attribute = Arc<dyn Fn(&Delivery) -> Option<String> + Send + Sync>;

/// Routes what the retry stage gave up or postponed. See the [module docs](super).
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct DeadLetterLayer {
    sink: BoxSink,
    feeds: Vec<(Arc<str>, BoxSink)>,
    parking: Option<BoxSink>,
    retry_queue: Option<BoxRetryQueue>,
    on_death: Option<Arc<dyn OnDeath>>,
    service_name: Option<String>,
    attributes: Vec<(String, Attribute)>,
    batch: Batch,
    clock: SharedClock,
    recorder: Recorder,
}

impl DeadLetterLayer {
    /// Letters go to `sink`, the authoritative record.
    pub fn new(sink: impl Sink) -> Self {
        Self {
            sink: BoxSink::new(sink),
            feeds: Vec::new(),
            parking: None,
            retry_queue: None,
            on_death: None,
            service_name: None,
            attributes: Vec::new(),
            batch: Batch::default(),
            clock: SystemClock::shared(),
            recorder: Recorder::new(),
        }
    }

    /// Sets where messages wait for an attempt that is too far away to be waited for in the process. Defaults to none:
    /// the broker keeps such a message for the delay, and forgets its attempts.
    pub fn retry_queue(mut self, queue: impl RetryQueue) -> Self {
        self.retry_queue = Some(BoxRetryQueue::new(queue));
        self
    }

    /// Returns true if messages that wait for long are kept, with their attempts.
    pub(crate) fn has_retry_queue(&self) -> bool {
        self.retry_queue.is_some()
    }

    /// Adds a further sink that gets a copy of each letter. A message is settled only when its feeds have confirmed as
    /// well. `name` is for logs.
    pub fn feed(mut self, name: impl Into<Arc<str>>, sink: impl Sink) -> Self {
        self.feeds.push((name.into(), BoxSink::new(sink)));
        self
    }

    /// Sets a second place for letters that the sink, or a feed, refuses for good: they are written to `sink` instead, with the
    /// attribute [`PARKED`](super::PARKED) that says why, and their messages are settled. Defaults to none: such a message
    /// stays with its broker, and its letter is offered again and again. Needed where a message that waits holds up what is
    /// behind it, as the commit of a Kafka partition is held up.
    ///
    /// A sink that cannot be reached refuses nothing; its letters wait. A letter of which a part of the work was done before
    /// a process died may stand in both places.
    pub fn parking(mut self, sink: impl Sink) -> Self {
        self.parking = Some(BoxSink::new(sink));
        self
    }

    /// Sets who is told of each death. Defaults to nobody.
    pub fn on_death(mut self, hook: impl OnDeath) -> Self {
        self.on_death = Some(Arc::new(hook));
        self
    }

    /// Sets the name of this program, as letters carry it. Defaults to none.
    pub fn service_name(mut self, name: impl Into<String>) -> Self {
        self.service_name = Some(name.into());
        self
    }

    /// Adds an attribute by which letters can be found: what `of` reads from the delivery. `None` leaves it out.
    pub fn attribute<F>(mut self, name: impl Into<String>, of: F) -> Self
    where
        F: Fn(&Delivery) -> Option<String> + Send + Sync + 'static,
    {
        self.attributes.push((name.into(), Arc::new(of)));
        self
    }

    /// Sets how many letters are written in one call at most, and how long a call waits for more of them. Defaults to
    /// 256 and no wait: what is waiting when a call begins goes with it. `max` is at least 1. Of large messages no more
    /// go together than have a MiB.
    pub fn batch(mut self, max: usize, linger: Duration) -> Self {
        self.batch = Batch { max: max.max(1), linger, ..self.batch };
        self
    }

    /// Sets how many calls write to one sink at once. Defaults to [what the sink says](dlq_core::Sink::writers); at least 1.
    pub fn writers(mut self, writers: usize) -> Self {
        self.batch.writers = Some(writers);
        self
    }

    /// Sets the clock for times of death and due times. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets what counts letters. Defaults to a recorder of its own.
    pub fn recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }
}

impl fmt::Debug for DeadLetterLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterLayer")
            .field("sink", &self.sink)
            .field("feeds", &self.feeds)
            .field("parking", &self.parking)
            .field("retry_queue", &self.retry_queue)
            .field("service_name", &self.service_name)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for DeadLetterLayer {
    type Service = DeadLetter<S>;

    fn layer(&self, inner: S) -> Self::Service {
        // Each sink has a queue of its own, so that a slow feed does not hold up the authoritative sink.
        let writer = |sink: &BoxSink| Writer::new(sink.clone(), self.batch);
        let shared = Inner {
            sink: writer(&self.sink),
            feeds: self.feeds.iter().map(|(name, sink)| (Arc::clone(name), writer(sink))).collect(),
            parking: self.parking.as_ref().map(writer),
            retry_queue: self.retry_queue.clone(),
            unfinished: Unfinished::default(),
            on_death: self.on_death.clone(),
            service_name: self.service_name.clone(),
            attributes: self.attributes.clone(),
            clock: self.clock.clone(),
            recorder: self.recorder.clone(),
            has_warned: AtomicBool::new(false),
        };
        DeadLetter::new(inner, Arc::new(shared))
    }
}
