//! The store source over a store that hears of what other processes make due.

use std::time::Duration;

use dlq_core::store::{
    Claim, ClaimRequest, ClaimToken, Claims, Finish, Finished, ScheduleRun, Sink,
};
use dlq_core::{Source, StoreError, Timestamp};
use dlq_tower::store_source::StoreSource;
use futures_util::poll;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::faulty::Store;
use crate::store_source::due;
use crate::support::{SECOND, soon};

/// What happens elsewhere is counted in `elsewhere`.
#[derive(Clone, Debug)]
struct Hearing {
    store: Store,
    elsewhere: watch::Sender<u64>,
}

impl Claims for Hearing {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.store.claim(request).await
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        self.store.extend(tokens, lease).await
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> Result<Vec<Finished>, StoreError> {
        self.store.finish(finishes).await
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        let next = self.store.next_due(consumers).await;
        // Somebody makes something due just before the source begins to wait.
        if self.store.calls("next_due") == 2 {
            self.elsewhere.send_modify(|count| *count += 1);
        }
        next
    }

    async fn run_schedule(&self, run: ScheduleRun) -> Result<(u64, Duration), StoreError> {
        self.store.run_schedule(run).await
    }

    async fn due_elsewhere(&self, _: Vec<String>, heard: u64) -> Result<u64, StoreError> {
        let mut elsewhere = self.elsewhere.subscribe();
        let news = elsewhere.wait_for(|count| *count > heard).await;
        Ok(*news.expect("the sender is here"))
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_process_makes_due_is_taken_at_once() {
    let store = Store::new();
    let elsewhere = watch::Sender::new(1);
    let hearing = Hearing { store: store.clone(), elsewhere: elsewhere.clone() };
    let source = StoreSource::new(hearing, ["orders.handle"]).clock(store.clock.clone());
    let mut source = source.poll(1000 * SECOND);
    let mut next = Box::pin(source.next());
    assert!(poll!(&mut next).is_pending());
    sleep(SECOND).await;
    assert!(poll!(&mut next).is_pending());
    sleep(SECOND).await;
    assert!(poll!(&mut next).is_pending());
    assert_eq!(store.calls("claim"), 3, "what was said before it waited is not missed");
    sleep(100 * SECOND).await;
    assert!(poll!(&mut next).is_pending());
    assert_eq!(store.calls("claim"), 3, "nothing was said since");
    let letter = due(1).await.letters().await.remove(0);
    store.inner.put(vec![letter]).await.unwrap();
    store.replay().await;
    let begun = Instant::now();
    elsewhere.send_modify(|count| *count += 1);
    assert!(soon(next).await.unwrap().is_some());
    assert!(begun.elapsed() < SECOND);
}
