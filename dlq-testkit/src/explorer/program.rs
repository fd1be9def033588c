use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use dlq_core::SharedClock;
use dlq_core::store::Schedule;
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::HandlerStack;
use tokio_util::sync::CancellationToken;

use super::scenario::Record;
use super::store::{SteppedSink, SteppedStore};
use super::transport::{SteppedRetryQueue, SteppedSource};

/// Parts of a program in one of its lives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Parts {
    /// Source of messages.
    pub source: SteppedSource,
    /// The handler with its policy.
    pub handler: HandlerStack,
    /// The store of letters, retry records and crash marks.
    pub store: SteppedStore,
    /// The broker's stream of dead letters.
    pub sink: SteppedSink,
    /// A second sink, if letters are to be copied.
    pub feed: Option<SteppedSink>,
    /// The broker's retry queue.
    pub queue: SteppedRetryQueue,
    /// Place for letters and retry records that is to be used.
    pub record: Record,
    /// The automatic schedule.
    pub schedule: Option<Schedule>,
    /// The world's clock.
    pub clock: SharedClock,
    /// Is cancelled when the program is to end orderly.
    pub stop: CancellationToken,
    /// Health that the program reports.
    pub health: Pulse,
}

/// Health report of a program, if it can give one.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Option<IsWell>>>);

type IsWell = Box<dyn Fn() -> bool + Send>;

impl Pulse {
    /// Sets what is asked whether the program is well. Defaults to nothing: a program that does not say is not blamed.
    pub fn by(&self, is_well: impl Fn() -> bool + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(is_well));
    }

    /// Returns true if the program says that it is well.
    pub(super) fn is_well(&self) -> bool {
        let ask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that does not say is not taken to be well, so that it is blamed for nothing.
        ask.as_ref().is_some_and(|is_well| is_well())
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pulse").finish_non_exhaustive()
    }
}

/// A run of a program.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A program under test: from a source to a settlement.
pub trait Program: fmt::Debug + Send + Sync + 'static {
    /// Runs until `parts.stop` is cancelled. Dropping the future is the death of the process.
    fn run(&self, parts: Parts) -> Running;
}

/// The [`Consumer`] of `dlq-tower`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeConsumer;

impl Program for WholeConsumer {
    fn run(&self, parts: Parts) -> Running {
        let Parts {
            source,
            handler,
            store,
            sink,
            feed,
            queue,
            record,
            schedule,
            clock,
            stop,
            health,
        } = parts;
        let mut builder = Consumer::builder(source)
            .handler(handler)
            .max_in_flight(8)
            // What the consumer writes wakes the queue; it has to ask only for what an operator does.
            .poll(std::time::Duration::from_secs(120))
            .clock(clock);
        builder = match record {
            Record::Store => builder.dead_letters(store),
            Record::StoreAndQueue => builder.dead_letters(store).retry_queue(queue),
            Record::Stream => builder.sink(sink).retry_queue(queue),
        };
        if let Some(feed) = feed {
            builder = builder.routing(|routing| routing.feed("copies", feed));
        }
        if let Some(schedule) = schedule {
            builder = builder.schedule(schedule);
        }
        let consumer =
            builder.build().expect("the settings of scenarios do not contradict each other");
        let handle = consumer.health();
        health.by(move || handle.get().is_healthy());
        Box::pin(async move {
            let _ = consumer.run(stop.cancelled_owned()).await;
        })
    }
}
