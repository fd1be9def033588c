use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::world::World;
use super::{MemoryRetryQueue, MemorySource};
use crate::clock::{SharedClock, SystemClock};
use crate::{DeliveredFrom, Message, Position, Timestamp};

/// A broker in memory, and the stream of it that this handle publishes to and reads. Clones share what is stored. See
/// the [module docs](super).
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryBroker {
    shared: Arc<Inner>,
    stream: Arc<str>,
    clock: SharedClock,
    lease: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    world: Mutex<World>,
    /// Woken by every change that can make a message available or a group idle.
    changed: Notify,
}

/// Position at which a new consumer group begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first message of the stream.
    Earliest,
    /// At the first message that is published from now on.
    Latest,
    /// At the message with this number, counted from 1.
    At(u64),
}

impl MemoryBroker {
    /// An empty broker by the machine's clock, with leases of 30 s, whose handle stands on the stream `events`.
    pub fn new() -> Self {
        Self {
            shared: Arc::default(),
            stream: Arc::from("events"),
            clock: SystemClock::shared(),
            lease: Duration::from_secs(30),
        }
    }

    /// Sets the stream that this handle publishes to and reads. Defaults to `events`.
    pub fn stream(mut self, name: impl Into<Arc<str>>) -> Self {
        self.stream = name.into();
        self
    }

    /// Sets the clock by which this handle, and the sources and queues made from it, tell the time. Defaults to the
    /// machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets for how long a message stays with whom it was handed to without a word. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Appends a message to the stream and returns its position, counted from 1. It is published now, unless the
    /// producer has set another time.
    pub fn publish(&self, message: Message) -> Position {
        let message = match message.published_at() {
            Some(_) => message,
            // Real brokers stamp messages too, and the publish time is part of a letter's identity.
            None => message.with_published_at(self.now()),
        };
        let position = self.world().publish(&self.stream, message);
        self.notify();
        position
    }

    /// Every message of the stream, as it was published.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.world().messages(&self.stream)
    }

    /// Sets where the consumer group reads on. A group that was never set begins at the first message.
    pub fn start(&self, group: impl Into<Arc<str>>, start: Start) {
        let to = match start {
            Start::Earliest => Some(1),
            Start::Latest => None,
            Start::At(number) => Some(number),
        };
        self.world().seek(&self.stream, &group.into(), to);
        self.notify();
    }

    /// A source of the stream's messages for a consumer group. Sources of the same group share them; every group gets
    /// them all.
    #[must_use]
    pub fn source(&self, group: impl Into<Arc<str>>) -> MemorySource {
        let group = group.into();
        self.world().join(&self.stream, &group);
        MemorySource::new(self.clone(), group)
    }

    /// The retry queue beside the stream.
    #[must_use]
    pub fn retry_queue(&self) -> MemoryRetryQueue {
        MemoryRetryQueue::new(self.clone())
    }

    /// Returns the number of messages and retry records that the group has not settled, including those that were not
    /// handed out yet.
    #[must_use]
    pub fn pending(&self, group: &str) -> usize {
        self.world().pending(&self.stream, group)
    }

    /// Returns the messages that the group has not settled: the position at which each was published, and the way by
    /// which it comes.
    #[must_use]
    pub fn unsettled(&self, group: &str) -> Vec<(Position, DeliveredFrom)> {
        self.world().unsettled(&self.stream, group)
    }

    /// The messages that the group has not settled, one for each entry of [`unsettled`](Self::unsettled) and in its order.
    #[must_use]
    pub fn unsettled_messages(&self, group: &str) -> Vec<Message> {
        self.world().unsettled_messages(&self.stream, group)
    }

    /// Returns true if the group has settled everything.
    #[must_use]
    pub fn is_idle(&self, group: &str) -> bool {
        self.pending(group) == 0
    }

    /// Waits until the group has settled everything.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn idle(&self, group: &str) {
        loop {
            // The task listens before it looks, so that a change in between wakes it.
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if self.is_idle(group) {
                return;
            }
            changed.await;
        }
    }

    /// Ends every lease of the group at once, as if each process of it had died and the broker had noticed. What they
    /// held comes again; what they still say about it is refused.
    pub fn crash(&self, group: impl Into<Arc<str>>) {
        let now = self.now();
        self.world().crash(&self.stream, &group.into(), now);
        self.notify();
    }

    pub(super) fn stream_name(&self) -> &Arc<str> {
        &self.stream
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn lease_length(&self) -> Duration {
        self.lease
    }

    /// When a lease ends that begins now.
    pub(super) fn lease_end(&self) -> Timestamp {
        self.now().after(self.lease)
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changed(&self) -> &Notify {
        &self.shared.changed
    }

    pub(super) fn notify(&self) {
        // All are woken and none is left a permit: each looks again at the world, and who came late has seen the change
        // already.
        self.shared.changed.notify_waiters();
    }
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}
