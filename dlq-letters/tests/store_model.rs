//! The comparison with the model: the store in memory agrees with itself, also where it decides without a lock, and a store
//! that forgets does not.

use dlq_letters::memory::MemoryStore;
use dlq_testkit::faulty::{Fault, FaultyStore};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::store::{self, MemoryFixture, OptimisticFixture, StoreFixture};

dlq_testkit::store_model!(MemoryFixture, 200);

mod optimistic {
    use super::OptimisticFixture;

    dlq_testkit::store_model!(OptimisticFixture, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_agree_with_their_models() {
    let place = MemoryFixture::fresh("eight_workers").await;
    store::workers::agree_with_their_models(|| place.open(false), 600).await;
    let place = OptimisticFixture::fresh("eight_workers").await;
    store::workers::agree_with_their_models(|| place.open(false), 600).await;
}

struct Forgetful(MemoryFixture);

impl StoreFixture for Forgetful {
    type Store = FaultyStore<MemoryStore>;

    async fn fresh(check: &'static str) -> Self {
        Self(MemoryFixture::fresh(check).await)
    }

    async fn open(&self, dedup: bool) -> Self::Store {
        FaultyStore::new(self.0.open(dedup).await, Fault::ForgetsSuccess)
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.0.clock()
    }
}

#[test]
#[should_panic(expected = "step ")]
fn a_difference_is_found() {
    dlq_testkit::store::model::compare::<Forgetful>(500);
}
