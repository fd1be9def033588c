use std::sync::Arc;

use dlq_core::Delivery;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::consumer::hand::{self, Hand};

/// Number of messages that may wait for their next attempt in the process. Clones share the number.
///
/// A message that finds no place goes to the retry queue instead, as if its delay were beyond the limit of in-process delays.
///
/// A message whose idempotency key is in flight waits in a slot of its own kind, of which there are fewer than half as many:
/// as many messages as a process that died had in flight would leave none for retries. If none is free, the message is
/// deferred for the rest of the key's lease.
#[derive(Clone, Debug)]
pub struct InProcessDelays {
    for_retries: Arc<Semaphore>,
    for_keys: Arc<Semaphore>,
}

impl InProcessDelays {
    /// Makes slots for so many messages. With 0 nothing waits in the process.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let slots = slots.min(Semaphore::MAX_PERMITS);
        let of = |slots| Arc::new(Semaphore::new(slots));
        // Fewer than half, so that both kinds together never fill a run loop whose messages in flight are twice the slots.
        Self { for_retries: of(slots), for_keys: of(slots.saturating_sub(1) / 2) }
    }

    /// Returns the number of slots for retries that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.for_retries.available_permits()
    }

    /// A slot of these, and one of the run loop's where it has some.
    pub(super) fn take(&self, delivery: &Delivery) -> Option<InProcessDelay> {
        self.of_both(delivery, |slots| &slots.for_retries)
    }

    /// The same for a message that waits for its key.
    pub(super) fn take_to_wait(&self, delivery: &Delivery) -> Option<InProcessDelay> {
        self.of_both(delivery, |slots| &slots.for_keys)
    }

    fn of_both(
        &self,
        delivery: &Delivery,
        kind: impl Fn(&Self) -> &Arc<Semaphore>,
    ) -> Option<InProcessDelay> {
        // Nobody waits for a slot: a message without one is postponed or deferred.
        let take = |slots: &Self| Arc::clone(kind(slots)).try_acquire_owned().ok();
        let of_loop = match RunLoop::of(delivery).and_then(|of| of.slots.as_ref()) {
            Some(slots) => Some(take(slots)?),
            None => None,
        };
        // A message has both slots or none: where its own kind is full, that of the run loop is dropped with `of_loop`.
        Some(InProcessDelay { _own: take(self)?, _of_loop: of_loop })
    }
}

/// Held while a message waits in the process.
#[derive(Debug)]
pub(super) struct InProcessDelay {
    _own: OwnedSemaphorePermit,
    _of_loop: Option<OwnedSemaphorePermit>,
}

impl Default for InProcessDelays {
    /// 128 slots.
    fn default() -> Self {
        Self::new(128)
    }
}

impl From<usize> for InProcessDelays {
    fn from(slots: usize) -> Self {
        Self::new(slots)
    }
}

/// Stop and room of a run loop, for the retry stages. Each delivery that the loop hands to a stack carries them as an
/// [extension](Delivery::with_extension).
///
/// An attempt that runs is not touched by a stop. A message that waits between two attempts gives up waiting: its verdict is
/// to retry after what is left of the delay, with its attempts so far, so that the next process goes on where this one
/// stopped. [`Consumer`](crate::consumer::Consumer) does this by itself.
#[derive(Clone, Debug)]
pub struct RunLoop {
    stop: CancellationToken,
    slots: Option<InProcessDelays>,
}

impl RunLoop {
    /// A run loop that stops once `stop` is cancelled.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self { stop, slots: None }
    }

    /// Lets no more messages wait than there are `slots`, whatever the slots of their handlers, so that waiting messages
    /// cannot take all the room that the run loop has. Defaults to no limit.
    #[must_use]
    pub fn in_process_delays(self, slots: InProcessDelays) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// Waits until it stops.
    pub(crate) fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }

    /// The run loop that has handed out this delivery.
    fn of(delivery: &Delivery) -> Option<&Self> {
        let of_consumer = hand::of(delivery).map(Hand::run_loop);
        of_consumer.or_else(|| delivery.extension())
    }
}

/// Returns the signal that a waiting message listens to, if its run loop has one.
pub(crate) fn stopped(delivery: &Delivery) -> Option<WaitForCancellationFutureOwned> {
    RunLoop::of(delivery).map(RunLoop::stopped)
}
