use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::calls::Calls;
use super::place::GroupMember;
use super::ready::Ready;
use crate::client::RedisClient;

/// State that a source, its tasks and its settle handles share.
#[derive(Debug)]
pub(super) struct SourceState {
    pub(super) client: RedisClient,
    pub(super) place: Arc<GroupMember>,
    pub(super) calls: Calls,
    pub(super) ready: Ready,
    /// Room for what is read. The reader keeps it while it blocks, so that others have their own.
    pub(super) room: Arc<Semaphore>,
    /// Room for what is taken over and for records.
    pub(super) more_room: Arc<Semaphore>,
    pub(super) prefetch: usize,
    pub(super) recreate: bool,
    /// True if the acknowledgement of every message is awaited.
    confirms: bool,
    closed: AtomicBool,
    /// Times at which something that was given back here can be taken again.
    wakes: Mutex<BTreeSet<Instant>>,
    woken: Notify,
    asked: Mutex<Asked>,
    /// Entries that were taken over and are not settled: a lost read was not handed them out.
    taken_over: Mutex<HashSet<Arc<str>>>,
    /// Held while entries are taken over, until they are noted, and while those of a lost read are looked for.
    pub(super) takes: tokio::sync::Mutex<()>,
}

/// Demand for deliveries.
#[derive(Debug)]
struct Asked {
    now: bool,
    last: Instant,
}

/// Somebody waits for a delivery.
pub(super) struct Asking<'a>(&'a SourceState);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *self.0.asked() = Asked { now: false, last: Instant::now() };
    }
}

impl SourceState {
    pub(super) fn new(
        client: RedisClient,
        place: Arc<GroupMember>,
        prefetch: usize,
        recreate: bool,
        confirms: bool,
    ) -> Self {
        Self {
            calls: Calls::new(client.clone(), Arc::clone(&place)),
            client,
            place,
            ready: Ready::default(),
            room: Arc::new(Semaphore::new(prefetch)),
            more_room: Arc::new(Semaphore::new(prefetch)),
            prefetch,
            recreate,
            confirms,
            closed: AtomicBool::new(false),
            wakes: Mutex::default(),
            woken: Notify::new(),
            // A new source counts as wanted for a while, until its consumer asks for the first time.
            asked: Mutex::new(Asked { now: false, last: Instant::now() }),
            taken_over: Mutex::default(),
            takes: tokio::sync::Mutex::default(),
        }
    }

    /// The entries that were taken over and are not settled.
    pub(super) fn taken_over(&self) -> MutexGuard<'_, HashSet<Arc<str>>> {
        self.taken_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if acknowledgements may be sent that nobody awaits.
    pub(super) fn posts(&self) -> bool {
        !self.confirms && !self.closed.load(Ordering::Acquire)
    }

    /// From here on every acknowledgement is awaited.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that somebody wants deliveries, as long as the answer lives and for a while after.
    pub(super) fn asking(&self) -> Asking<'_> {
        self.asked().now = true;
        Asking(self)
    }

    /// Returns true if somebody wants deliveries, or did lately. Otherwise nothing is taken over and nothing is renewed:
    /// what waits here goes to another process when its lease ends.
    pub(super) fn is_wanted(&self) -> bool {
        let asked = self.asked();
        // The consumer calls `keep_alive` each quarter of a lease, so that one call may be late.
        asked.now || asked.last.elapsed() < self.place.lease / 2
    }

    /// Something can be taken again after this time.
    pub(super) fn wake_after(&self, delay: Duration) {
        // What the server counts in whole milliseconds has ended by then.
        let Some(at) = Instant::now().checked_add(delay + Duration::from_millis(5)) else { return };
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
        self.woken.notify_one();
    }

    /// Waits until then, or until something can be taken again.
    pub(super) async fn wake(&self, until: Instant) {
        loop {
            let first = {
                let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                // All times that have passed go together: one pass takes over everything that they announced.
                let later = wakes.split_off(&now);
                if !std::mem::replace(&mut *wakes, later).is_empty() {
                    return;
                }
                wakes.first().copied()
            };
            let until = first.map_or(until, |first| first.min(until));
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = self.woken.notified() => {}
            }
        }
    }
}
