use std::fmt;
use std::future::Future;
use std::time::Duration;

use dlq_core::memory::{MemoryBroker, MemoryRetryQueue, MemorySource};
use dlq_core::{Message, RetryQueue, SharedClock, Source, Timestamp, TokioClock};

/// A place at a broker: a stream or topic of its own, with everything that belongs to it.
pub trait TransportFixture: fmt::Debug + Send + Sync + Sized + 'static {
    /// Yields the messages.
    type Source: Source;
    /// Retry queue of the transport.
    type DeliveredFrom: RetryQueue;

    /// True if the transport lives in this process and follows tokio's time. Checks then run under paused time.
    const PAUSED: bool;

    /// Returns true if a broker is available. If not, this says so aloud, and the checks are skipped.
    #[must_use]
    fn is_available() -> bool {
        true
    }

    /// An empty place of its own for the check of this name, with a long lease where it [has to be
    /// quick](super::is_quick). Checks run side by side.
    fn fresh(check: &'static str) -> impl Future<Output = Self> + Send;

    /// Publishes a message and returns once the broker has it; `false` when this broker cannot carry such a message at
    /// all (e.g. a header without a name), and has refused it.
    fn publish(&self, message: Message) -> impl Future<Output = bool> + Send;

    /// A source for the consumer of this name, as another process would open it. Sources of one consumer share the
    /// messages; a new consumer begins with the first message.
    fn source(&self, consumer: &str) -> impl Future<Output = Self::Source> + Send;

    /// The retry queue; `None` where the transport has none.
    fn retry_queue(&self) -> impl Future<Output = Option<Self::DeliveredFrom>> + Send;

    /// Restarts the broker, as after a power cut, and returns when it is up again; `false` where that cannot be done.
    fn restart(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Returns the time after which the broker hands out the messages of a process that has died.
    fn lease(&self) -> Duration;

    /// The clock that due times of retry records are compared with.
    fn clock(&self) -> SharedClock;
}

/// The broker in memory.
#[derive(Debug)]
pub struct MemoryFixture {
    broker: MemoryBroker,
    clock: SharedClock,
}

impl MemoryFixture {
    /// The broker.
    pub fn broker(&self) -> &MemoryBroker {
        &self.broker
    }
}

impl TransportFixture for MemoryFixture {
    type Source = MemorySource;
    type DeliveredFrom = MemoryRetryQueue;

    const PAUSED: bool = true;

    async fn fresh(check: &'static str) -> Self {
        let start = Timestamp::from_millis(1_790_000_000_000);
        let clock: SharedClock = std::sync::Arc::new(TokioClock::starting_at(start));
        let broker = MemoryBroker::new().stream(check).clock(clock.clone());
        Self { broker, clock }
    }

    async fn publish(&self, message: Message) -> bool {
        self.broker.publish(message);
        true
    }

    async fn source(&self, consumer: &str) -> MemorySource {
        self.broker.source(consumer)
    }

    async fn retry_queue(&self) -> Option<MemoryRetryQueue> {
        Some(self.broker.retry_queue())
    }

    /// Restarts the broker, which forgets only who held what.
    async fn restart(&self) -> bool {
        self.broker.crash(super::check::CONSUMER);
        true
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn clock(&self) -> SharedClock {
        self.clock.clone()
    }
}
