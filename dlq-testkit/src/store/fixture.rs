use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use dlq_core::{CrashMarks, Store};
use dlq_letters::memory::MemoryStore;

use crate::fixtures::ManualClock;

/// A place where a store can be opened: a file, a schema, a key prefix.
pub trait StoreFixture: Send + Sync + 'static {
    /// The store.
    type Store: Store + CrashMarks + Clone;

    /// Returns true if a server is available on this machine. Without one the checks prove nothing; the fixture says so
    /// aloud. Defaults to yes.
    #[must_use]
    fn is_available() -> bool {
        true
    }

    /// An empty place of its own for the check of this name. Checks run side by side.
    fn fresh(check: &'static str) -> impl Future<Output = Self> + Send
    where
        Self: Sized;

    /// Opens the store at this place, as another process would, with deduplication switched on or not. The handles
    /// opened before go on working.
    fn open(&self, dedup: bool) -> impl Future<Output = Self::Store> + Send;

    /// The clock that every store opened here tells the time by; `None` where the store has a time of its own. Checks
    /// then wait with short leases in real time, and leave out what is exact to the microsecond.
    fn clock(&self) -> Option<&ManualClock>;
}

/// The store in memory.
#[derive(Debug)]
pub struct MemoryFixture {
    store: MemoryStore,
    clock: ManualClock,
}

impl StoreFixture for MemoryFixture {
    type Store = MemoryStore;

    async fn fresh(_check: &'static str) -> Self {
        let clock = ManualClock::new();
        Self { store: MemoryStore::new().clock(clock.shared()), clock }
    }

    async fn open(&self, dedup: bool) -> MemoryStore {
        self.store.clone().dedup(dedup)
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// The store in memory, deciding without a lock: it compares versions when it writes, and decides anew where something has
/// changed, or where a seed says so. What it agrees with has no need of locks.
#[derive(Debug)]
pub struct OptimisticFixture(MemoryFixture);

impl StoreFixture for OptimisticFixture {
    type Store = MemoryStore;

    async fn fresh(check: &'static str) -> Self {
        static SEED: AtomicU64 = AtomicU64::new(0);
        let MemoryFixture { store, clock } = MemoryFixture::fresh(check).await;
        let store = store.conflicts(SEED.fetch_add(1, Ordering::Relaxed));
        Self(MemoryFixture { store, clock })
    }

    async fn open(&self, dedup: bool) -> MemoryStore {
        self.0.open(dedup).await
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.0.clock()
    }
}
