//! [`MemoryStore`]: a store that forgets when the process ends, and the reference for every other.
//!
//! For tests and examples, and as the model that durable stores are compared with. It keeps the same promises except
//! durability, under any clock:
//!
//! ```
//! use dlq_core::store::{ClaimRequest, Claims};
//! use dlq_letters::memory::MemoryStore;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlq_core::StoreError> {
//! let store = MemoryStore::new();
//! let request = ClaimRequest::due(["payments.charge"], 10, Duration::from_secs(30));
//! assert!(store.claim(request).await?.is_empty());
//! # Ok(()) }
//! ```
//!
//! # Cost
//!
//! Everything under one lock that is never held across an `await`. Putting, reading, claiming and finishing a letter
//! and listing a page cost the logarithm of what is stored; counting, statistics, groups and marks look at every letter.

mod backend;
mod campaign;
mod commit;
mod conflicts;
mod letters;
mod load;
mod vitals;
mod world;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlq_core::{CrashMarks, LetterId, SharedClock, StoreError, SystemClock, Timestamp};

use conflicts::Conflicts;
use world::World;

/// A store in memory. Clones share what is stored; see the [module docs](self).
#[derive(Clone, Debug)]
pub struct MemoryStore {
    world: Arc<Mutex<World>>,
    marks: Arc<Mutex<HashMap<LetterId, u32>>>,
    clock: SharedClock,
    conflicts: Option<Arc<Conflicts>>,
}

impl MemoryStore {
    /// An empty store by the machine's clock, which does not deduplicate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            world: Arc::default(),
            marks: Arc::default(),
            clock: SystemClock::shared(),
            conflicts: None,
        }
    }

    /// Sets the clock by which this handle tells the time. Defaults to the machine's.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets whether letters of the same original message are kept as one; for every clone. Letters that are there
    /// already stay as they are; [`Maintenance::deduplicate`](dlq_core::store::Maintenance::deduplicate) collapses them. Defaults to
    /// no.
    #[must_use]
    pub fn dedup(self, dedup: bool) -> Self {
        self.world().set_dedup(dedup);
        self
    }

    /// Decides over what was read before, without the lock, and compares versions when it writes, as a store does that has
    /// no locks. Some conflicts are invented, from this seed. Other calls run between reading and writing. For tests of
    /// the engine.
    #[doc(hidden)]
    #[must_use]
    pub fn conflicts(mut self, seed: u64) -> Self {
        self.conflicts = Some(Arc::new(Conflicts::new(seed)));
        self
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl CrashMarks for MemoryStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let mut marks = lock(&self.marks);
        let mark = marks.entry(letter).or_default();
        let earlier = *mark;
        *mark = earlier.saturating_add(1);
        Ok(earlier)
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let mut marks = lock(&self.marks);
        if left == 0 {
            marks.remove(&letter);
        } else if let Some(mark) = marks.get_mut(&letter) {
            // An end never adds a mark: it may be told twice, and another run may have ended in between.
            *mark = left.min(*mark);
        }
        Ok(())
    }
}

/// Locks; what a panicking holder left behind is still whole, as no change is made in halves that can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

crate::store!(MemoryStore);

const _: () = {
    const fn store<S: dlq_core::Store + CrashMarks + Clone>() {}
    store::<MemoryStore>();
};
