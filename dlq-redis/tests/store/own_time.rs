//! The store tells the time by its server.

use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _, Finish, Finished, Letters as _, Sink as _};
use dlq_core::{Clock as _, Resolution, RetryQueue as _, SystemClock, Timestamp};
use dlq_redis::store::RedisStore;
use dlq_testkit::fixtures::{delayed_retry, letter};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, available, prefix, shared};

/// Server and test are on one machine, and have one clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_dated_claimed_and_fenced_by_the_time_of_the_server() {
    if !available() {
        return;
    }
    let store = RedisStore::builder(&shared().await).prefix(prefix()).open().await.unwrap();
    let before = SystemClock.now();
    store.put(vec![letter(0)]).await.unwrap();
    let stored = store.get(letter(0).id).await.unwrap().unwrap().state.created_at;
    // What was measured on the way is as old as its round trip.
    assert!(stored >= before.before(Duration::from_secs(1)) && stored <= SystemClock.now());
    let (past, future) = (Timestamp::EPOCH, before.after(Duration::from_secs(3_600)));
    store.enqueue(delayed_retry(&letter(1), 1, past)).await.unwrap();
    store.enqueue(delayed_retry(&letter(2), 1, future)).await.unwrap();
    let request = |lease| ClaimRequest::due([letter(0).consumer], 10, lease);
    let claims = store.claim(request(Duration::from_millis(1))).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.token.letter).collect::<Vec<_>>(), [letter(1).id]);
    let micros = u64::try_from(before.as_nanos() / 1_000).unwrap();
    assert!(
        claims[0].token.fence >= micros,
        "a fail-over that forgets the last one changes nothing"
    );
    let began = Instant::now();
    let again = loop {
        let claims = store.claim(request(Duration::from_secs(600))).await.unwrap();
        if let Some(claim) = claims.into_iter().next() {
            break claim;
        }
        assert!(began.elapsed() < PATIENCE, "the lease never ends");
        sleep(Duration::from_millis(1)).await;
    };
    assert!(again.token.fence > claims[0].token.fence);
    let end = |token| vec![(token, Finish::Resolved(Resolution::Succeeded))];
    let late = store.finish(end(claims[0].token)).await.unwrap();
    assert_eq!(late, [Finished::Stale]);
    assert_eq!(store.finish(end(again.token)).await.unwrap(), [Finished::Applied]);
    assert_eq!(store.next_due(vec![letter(0).consumer]).await.unwrap(), Some(future));
}
