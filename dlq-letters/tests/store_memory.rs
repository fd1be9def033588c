//! The store in memory passes every check, by a clock that the checks move and by the machine's, under a lock and as a
//! store that compares versions when it writes.

use dlq_core::{DeadLetters, Message};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{ManualClock, letter, letter_of};
use dlq_testkit::store::{MemoryFixture, OptimisticFixture, StoreFixture};

dlq_testkit::store_conformance!(MemoryFixture);

/// As a database on another machine is: it has a time of its own.
struct OwnTime(MemoryStore);

impl StoreFixture for OwnTime {
    type Store = MemoryStore;

    async fn fresh(_check: &'static str) -> Self {
        Self(MemoryStore::new())
    }

    async fn open(&self, dedup: bool) -> MemoryStore {
        self.0.clone().dedup(dedup)
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

mod optimistic {
    use super::OptimisticFixture;

    dlq_testkit::store_conformance!(OptimisticFixture);
}

mod own_time {
    use super::OwnTime;

    dlq_testkit::store_conformance!(OwnTime);
}

/// However many consumers have failed at one message.
#[tokio::test]
async fn all_letters_of_a_message_are_found() {
    let letters = DeadLetters::new(MemoryStore::new());
    let message = Message::new("orders.created", "x").with_id("m-1");
    let all = (0..2_500).map(|n| letter_of(message.clone(), n));
    let all: Vec<_> = all.chain([letter(9_000)]).collect();
    letters.put(all).await.unwrap();
    let found = letters.find("m-1").await.unwrap();
    assert_eq!(found.len(), 2_500);
    let places = || found.iter().map(|letter| (letter.state.created_at, letter.id));
    assert!(places().is_sorted_by(|one, next| one > next), "newest first, each of them once");
}
