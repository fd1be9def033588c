//! Retention of keys.

use std::time::Duration;

use dlq_core::idempotency::{Idempotency, IdempotencyClaim, KEEP_FREE, Release};

use super::{IdempotencyCheck as Check, IdempotencyFixture as Fixture};

const KEEP: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3_600);

/// A done key is done for as long as it was to be kept, and then new.
pub async fn a_done_key_is_forgotten_in_time<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take("a").await;
    check.complete(&token, KEEP).await;
    if check.controls_time() {
        check.pass(KEEP - Duration::from_micros(1)).await;
        assert!(matches!(check.claim("a").await, IdempotencyClaim::Done { .. }));
    }
    check.pass(KEEP).await;
    check.take("a").await;
}

/// Counts start over once a key was done and has been kept long enough.
pub async fn counts_start_over_after_success<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take("a").await;
    check.release(&token, Release::Failed).await;
    check.take_briefly("a").await;
    check.outlast_leases().await;
    let (token, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (1, 1));
    check.complete(&token, KEEP).await;
    check.pass(KEEP).await;
    let (_, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (0, 0));
}

/// Purging forgets what was kept long enough and nothing else.
pub async fn purging_forgets_what_has_ended<F: Fixture>(check: Check<F>) {
    // So long that none ends before the first purge.
    let keep = KEEP * 10;
    for key in ["a", "b"] {
        let (token, ..) = check.take(key).await;
        check.complete(&token, keep).await;
    }
    let (kept, ..) = check.take("kept").await;
    check.complete(&kept, LONG).await;
    let (free, ..) = check.take("free").await;
    check.release(&free, Release::Failed).await;
    assert_eq!(check.purge(100).await, 0);
    check.pass(keep).await;
    assert_eq!(check.purge(100).await, 2);
    assert!(matches!(check.claim("kept").await, IdempotencyClaim::Done { .. }));
    // Keys that are not done are kept for a week, which only a clock that is moved can show.
    if check.controls_time() {
        check.take("held").await;
        check.pass(KEEP_FREE + Check::<F>::LEASE).await;
        assert_eq!(check.purge(100).await, 3, "also what was never done");
        let (_, attempts, _) = check.take("free").await;
        assert_eq!(attempts, 0);
    } else {
        let (_, attempts, _) = check.take("free").await;
        assert_eq!(attempts, 1, "a key that failed keeps its count");
    }
}

/// A purge forgets no more keys than it may.
pub async fn purging_keeps_to_its_limit<F: Fixture>(check: Check<F>) {
    for n in 0..5 {
        let (token, ..) = check.take(&format!("key {n}")).await;
        check.complete(&token, Duration::ZERO).await;
    }
    check.pass(Duration::from_millis(2)).await;
    assert_eq!(check.purge(0).await, 0);
    assert_eq!(check.purge(3).await, 3);
    assert_eq!(check.purge(3).await, 2);
}

/// A key that was forgotten and claimed again does not honour the tokens of its former life.
pub async fn fences_grow_across_purging<F: Fixture>(check: Check<F>) {
    let (former, ..) = check.take("a").await;
    check.complete(&former, Duration::ZERO).await;
    check.pass(Duration::from_millis(2)).await;
    assert_eq!(check.purge(1).await, 1);
    let (owner, ..) = check.take("a").await;
    // With a fence that starts over the former token would end the new claim.
    assert!(owner.fence > former.fence);
    assert!(!check.release(&former, Release::Failed).await);
    assert!(check.complete(&owner, LONG).await);
}

/// Another process finds the keys as they are.
pub async fn keys_outlive_a_handle<F: Fixture>(check: Check<F>) {
    let (done, ..) = check.take("done").await;
    check.complete(&done, LONG).await;
    let (held, ..) = check.take("held").await;
    let other = Check { store: check.fixture.open().await, ..check };
    assert!(matches!(other.claim("done").await, IdempotencyClaim::Done { .. }));
    assert!(matches!(other.claim("held").await, IdempotencyClaim::InFlight { .. }));
    assert!(other.store.release(held, Release::Failed).await.expect("release answers"));
    let (_, attempts, _) = other.take("held").await;
    assert_eq!(attempts, 1);
}
