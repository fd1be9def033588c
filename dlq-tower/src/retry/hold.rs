use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Number of messages that may wait for their next attempt in the process. Clones share the number.
///
/// A message that finds no slot free is escalated instead, as if its delay were beyond the hold limit.
///
/// A message whose idempotency key is in flight waits in a slot of its own kind, of which there are fewer than half as many:
/// as many messages as a process that died had in hand would leave none for retries. If none is free, the message is
/// deferred for the rest of the key's lease.
#[derive(Clone, Debug)]
pub struct HoldSlots {
    for_retries: Arc<Semaphore>,
    for_keys: Arc<Semaphore>,
}

impl HoldSlots {
    /// Makes slots for so many messages. With 0 nothing waits in the process.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let slots = slots.min(Semaphore::MAX_PERMITS);
        let of = |slots| Arc::new(Semaphore::new(slots));
        // Fewer than half, so that both kinds together never fill a run loop whose messages in hand are twice the slots.
        Self { for_retries: of(slots), for_keys: of(slots.saturating_sub(1) / 2) }
    }

    /// Returns the number of slots for retries that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.for_retries.available_permits()
    }

    /// A slot of these, and one of the run loop's where it has some.
    pub(super) fn take(&self) -> Option<HoldSlot> {
        self.of_both(|slots| &slots.for_retries)
    }

    /// The same for a message that waits for its key.
    pub(super) fn take_to_wait(&self) -> Option<HoldSlot> {
        self.of_both(|slots| &slots.for_keys)
    }

    fn of_both(&self, kind: impl Fn(&Self) -> &Arc<Semaphore>) -> Option<HoldSlot> {
        let take = |slots: &Self| Arc::clone(kind(slots)).try_acquire_owned().ok();
        let of_loop = match SLOTS.try_with(take) {
            Ok(slot) => Some(slot?),
            Err(_no_loop) => None,
        };
        Some(HoldSlot { _own: take(self)?, _of_loop: of_loop })
    }
}

/// Held while a message waits in the process.
#[derive(Debug)]
pub(super) struct HoldSlot {
    _own: OwnedSemaphorePermit,
    _of_loop: Option<OwnedSemaphorePermit>,
}

impl Default for HoldSlots {
    /// 128 slots.
    fn default() -> Self {
        Self::new(128)
    }
}

impl From<usize> for HoldSlots {
    fn from(slots: usize) -> Self {
        Self::new(slots)
    }
}

tokio::task_local! {
    static STOP: CancellationToken;
    static SLOTS: HoldSlots;
}

/// Runs `future`, and lets messages in it that wait for their next attempt end as soon as `stop` is cancelled.
///
/// An attempt that runs is not touched. A message that waits between two attempts gives up waiting: its verdict is to
/// retry after what is left of the delay, with its attempts so far, so that the next process goes on where this one
/// stopped. For run loops, which wrap the handling of each message in it.
pub fn until<F: Future>(stop: CancellationToken, future: F) -> impl Future<Output = F::Output> {
    STOP.scope(stop, future)
}

/// Like [`until`], and lets no more messages wait than there are `slots`, whatever the slots of their handlers: those of
/// a run loop, so that waiting messages cannot take all the room that it has.
pub fn until_within<F: Future>(
    stop: CancellationToken,
    slots: HoldSlots,
    future: F,
) -> impl Future<Output = F::Output> {
    SLOTS.scope(slots, until(stop, future))
}

/// Does `work` as [`until_within`] does: one step of any number of such futures.
pub(crate) fn step_within<T>(
    stop: &CancellationToken,
    slots: &HoldSlots,
    work: impl FnOnce() -> T,
) -> T {
    SLOTS.sync_scope(slots.clone(), || STOP.sync_scope(stop.clone(), work))
}

/// Returns the signal that a waiting message listens to, if its run loop has set one.
pub(crate) fn stopped() -> Option<WaitForCancellationFutureOwned> {
    STOP.try_with(|stop| stop.clone().cancelled_owned()).ok()
}
