use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use super::world::Handed;
use super::{MemoryBroker, MemorySettle};
use crate::protocol::Incoming;
use crate::{Addressee, Capabilities, Delivery, Ordering, Recipients, Source, TransportError};

/// The messages of a stream for one consumer group, and its retry records when they are due. Made by
/// [`MemoryBroker::source`].
///
/// Messages come in the order in which they were published. What comes again comes first. A letter that was sent back to
/// the stream is known again by its headers, as at every broker.
#[derive(Debug)]
pub struct MemorySource {
    broker: MemoryBroker,
    /// The name that its addressee was given is the group.
    incoming: Incoming,
    prefetch: usize,
    fetched: VecDeque<Handed>,
    closed: bool,
}

impl MemorySource {
    pub(super) fn new(broker: MemoryBroker, group: Arc<str>) -> Self {
        let incoming = Incoming::new(Addressee::new(group));
        Self { broker, incoming, prefetch: 16, fetched: VecDeque::new(), closed: false }
    }

    /// Sets how many messages are fetched at once, and so held at most without having been yielded; at least 1. They
    /// count as delivered. Defaults to 16.
    #[must_use]
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// The next message that is available now.
    fn take(&mut self) -> Option<(Delivery, MemorySettle)> {
        let (now, until) = (self.broker.now(), self.broker.lease_end());
        let (stream, group) = (self.broker.stream_name(), self.incoming.addressee.name());
        let mut world = self.broker.world();
        loop {
            if self.fetched.is_empty() {
                let handed = world.hand_out(stream, &self.incoming, self.prefetch, now, until);
                self.fetched = handed.into();
            }
            let Handed { key, fence, delivery } = self.fetched.pop_front()?;
            // The lease begins when it is yielded; one that ended meanwhile and was given to another is not ours.
            if world.extend((stream, group), key, fence, until).is_ok() {
                let group = Arc::clone(group);
                return Some((delivery, MemorySettle::new(self.broker.clone(), group, key, fence)));
            }
        }
    }
}

impl Source for MemorySource {
    type Settle = MemorySettle;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::Process)
            .with_counts_deliveries(true)
            .with_delayed_release(true)
    }

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        self.incoming.addressee.hands_to(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, MemorySettle)>, TransportError> {
        let broker = self.broker.clone();
        loop {
            if self.closed {
                return Ok(None);
            }
            // Listened to before looking, so that no change falls in between.
            let mut changed = pin!(broker.changed().notified());
            changed.as_mut().enable();
            if let Some(next) = self.take() {
                return Ok(Some(next));
            }
            let due = broker.world().next_due(broker.stream_name(), self.incoming.addressee.name());
            match due {
                Some(due) => {
                    // Time and a change both lead to another look, so it does not matter which of them it was.
                    let _ = tokio::time::timeout(due.since(broker.now()), changed).await;
                }
                None => changed.await,
            }
        }
    }

    async fn close(&mut self) {
        self.closed = true;
        let (now, group) = (self.broker.now(), self.incoming.addressee.name());
        {
            let mut world = self.broker.world();
            for Handed { key, fence, .. } in self.fetched.drain(..) {
                // One that is no longer ours needs nothing.
                let _ = world.release((self.broker.stream_name(), group), key, fence, now);
            }
        }
        // Other sources of the group may wait for what was given back.
        self.broker.notify();
    }
}
