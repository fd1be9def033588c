//! The store in memory passes every check, by a clock that the checks move and by the machine's.

use dlq_core::store::memory::MemoryStore;
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::store::{MemoryFixture, StoreFixture};

dlq_testkit::store_conformance!(MemoryFixture);

/// As a database on another machine is: it has a time of its own.
struct OwnTime(MemoryStore);

impl StoreFixture for OwnTime {
    type Store = MemoryStore;

    async fn fresh(_check: &'static str) -> Self {
        Self(MemoryStore::new())
    }

    async fn open(&self, dedup: bool) -> MemoryStore {
        self.0.clone().with_dedup(dedup)
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

mod own_time {
    use super::OwnTime;

    dlq_testkit::store_conformance!(OwnTime);
}
