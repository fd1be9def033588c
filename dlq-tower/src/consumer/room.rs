//! Room for messages in flight, which all sources share.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Time for which a source that waits for messages keeps the room for the next one while another source has none.
const TURN: Duration = Duration::from_millis(250);

/// Room for so many messages. First come, first served.
#[derive(Debug)]
pub(super) struct Room {
    permits: Arc<Semaphore>,
    /// Number of sources that wait for room.
    waiting: AtomicUsize,
    came: Notify,
}

/// A source that waits for room.
struct Waiting<'r>(&'r Room);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Room {
    pub(super) fn new(messages: usize) -> Self {
        let permits = Arc::new(Semaphore::new(messages.min(Semaphore::MAX_PERMITS)));
        Self { permits, waiting: AtomicUsize::new(0), came: Notify::new() }
    }

    pub(super) fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(&self.permits)
    }

    /// Waits for room for one message; `None` never, since it is never closed.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits().try_acquire_owned() {
            return Some(permit);
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(self);
        // The count has changed by now, at which those who wake look.
        self.came.notify_waiters();
        self.permits().acquire_owned().await.ok()
    }

    /// Room for up to so many messages, of what is free now; `None` when nothing is.
    pub(super) fn more(&self, most: usize) -> Option<OwnedSemaphorePermit> {
        // Between this look and the permits another source may take some. Then there is no more, and one message is fetched.
        let free = u32::try_from(most.min(self.permits.available_permits())).unwrap_or(u32::MAX);
        // None of it is as good as no permit.
        (free > 0).then(|| self.permits().try_acquire_many_owned(free).ok())?
    }

    /// Waits until whoever holds room, and has no message for it, had better let another source have it: one that
    /// waits for messages must not keep the others from theirs (G4).
    pub(super) async fn is_wanted(&self) {
        loop {
            let mut came = pin!(self.came.notified());
            // It is enabled before the count is read: a source that comes in between would else be missed.
            came.as_mut().enable();
            if self.waiting.load(Ordering::Acquire) == 0 {
                came.await;
            }
            sleep(TURN).await;
            if self.waiting.load(Ordering::Acquire) > 0 {
                return;
            }
        }
    }
}
