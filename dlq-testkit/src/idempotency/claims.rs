//! New, in flight, done: what a claim is told, and who may end it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, KeyState, Release};

use super::{IdempotencyCheck as Check, IdempotencyFixture as Fixture};

const LONG: Duration = Duration::from_secs(3_600);

/// A key that nobody has claimed is ours, with nothing counted.
pub async fn a_new_key_is_ours<F: Fixture>(check: Check<F>) {
    let (token, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (0, 0));
    assert_eq!((&*token.consumer, &token.key[..]), ("orders.handle", &b"a"[..]));
}

/// A key in flight is not ours; we are told for how long.
pub async fn a_key_in_flight_is_not_ours<F: Fixture>(check: Check<F>) {
    check.take("a").await;
    if check.controls_time() {
        check.pass(Check::<F>::LEASE / 4).await;
    }
    match check.claim("a").await {
        IdempotencyClaim::InFlight { remaining } if check.controls_time() => {
            assert_eq!(remaining, Check::<F>::LEASE * 3 / 4);
        }
        IdempotencyClaim::InFlight { remaining } => assert!(remaining <= Check::<F>::LEASE),
        other => panic!("it is in flight, not {other:?}"),
    }
}

/// A key that was completed is done, for every later claim.
pub async fn a_done_key_stays_done<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take_briefly("a").await;
    assert!(check.complete(&token, LONG).await);
    let first = check.claim("a").await;
    assert!(matches!(first, IdempotencyClaim::Done { .. }), "{first:?}");
    // A done key must not be bound to the lease of the claim that completed it.
    check.outlast_leases().await;
    assert_eq!(check.claim("a").await, first);
}

/// Looking up says what a claim would find, and neither takes the key nor counts anything.
pub async fn looking_up_tells_and_changes_nothing<F: Fixture>(check: Check<F>) {
    assert_eq!(check.look_up("a").await, KeyState::Free);
    check.take_briefly("a").await;
    assert!(matches!(check.look_up("a").await, KeyState::InFlight { .. }));
    check.outlast_leases().await;
    for _ in 0..3 {
        assert_eq!(check.look_up("a").await, KeyState::Free, "its lease has ended");
    }
    let (token, _, crashes) = check.take("a").await;
    assert_eq!(crashes, 1, "counted once, by the claim");
    assert!(check.release(&token, Release::Failed).await);
    assert_eq!(check.look_up("a").await, KeyState::Free);
    let (token, attempts, _) = check.take("a").await;
    assert_eq!(attempts, 1);
    assert!(check.complete(&token, LONG).await);
    let found = check.look_up("a").await;
    assert!(matches!(found, KeyState::Done { .. }), "{found:?}");
    assert_eq!(check.look_up("b").await, KeyState::Free);
}

/// Every handle of one store has its identity, and no handle of another.
pub async fn handles_know_their_store<F: Fixture>(check: Check<F>) {
    let identity = check.store.store_identity();
    assert!(identity.is_some());
    assert_eq!(check.store.clone().store_identity(), identity);
    assert_eq!(check.fixture.open().await.store_identity(), identity, "opened again");
    let other = F::fresh("claims_handles_know_their_store_2").await;
    assert_ne!(other.open().await.store_identity(), identity, "another place");
}

/// A failure gives the key free and is counted, so that a retry is never taken for a duplicate.
pub async fn a_failed_key_is_new_again<F: Fixture>(check: Check<F>) {
    for earlier in 0..4 {
        let (token, attempts, crashes) = check.take("a").await;
        assert_eq!((attempts, crashes), (earlier, 0));
        assert!(check.release(&token, Release::Failed).await);
    }
}

/// A claim that was not used counts nothing (G10).
pub async fn an_unused_claim_counts_nothing<F: Fixture>(check: Check<F>) {
    for _ in 0..3 {
        let (token, attempts, crashes) = check.take("a").await;
        assert_eq!((attempts, crashes), (0, 0));
        assert!(check.release(&token, Release::Unused).await);
    }
}

/// A lease that ended without a word is claimed again, and a crash is counted.
pub async fn an_ended_lease_counts_a_crash<F: Fixture>(check: Check<F>) {
    for earlier in 0..3 {
        let (_, attempts, crashes) = check.take_briefly("a").await;
        assert_eq!((attempts, crashes), (0, earlier));
        check.outlast_leases().await;
    }
}

/// The counts of a key start over when its message dies, whatever it died of: the next one is another message (G3).
pub async fn a_death_starts_the_counts_over<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take("a").await;
    assert!(check.release(&token, Release::Failed).await);
    check.take_briefly("a").await;
    check.outlast_leases().await;
    let (last, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (1, 1));
    assert!(check.release(&last, Release::Dead).await);
    assert!(check.release(&last, Release::Dead).await, "saying it twice is fine");
    let (next, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (0, 0));
    assert!(!check.release(&last, Release::Dead).await, "it is another's now");
    assert!(check.release(&next, Release::Failed).await);
    let (_, attempts, _) = check.take("a").await;
    assert_eq!(attempts, 1);
}

/// Attempts that an outage has failed are taken back, and nothing that was there before it (G10).
pub async fn attempts_of_an_outage_are_taken_back<F: Fixture>(check: Check<F>) {
    check.take_briefly("a").await;
    check.outlast_leases().await;
    for earlier in 0..3 {
        let (token, attempts, _) = check.take("a").await;
        assert_eq!(attempts, earlier);
        assert!(check.release(&token, Release::Failed).await);
    }
    let (token, ..) = check.take("a").await;
    assert!(check.release(&token, Release::Forgiven(2)).await);
    assert!(check.release(&token, Release::Forgiven(2)).await, "saying it twice is fine");
    let (token, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (1, 1));
    assert!(check.release(&token, Release::Forgiven(u32::MAX)).await);
    let (_, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (0, 1), "there are no fewer than none");
}

/// An extended lease holds as long as it goes on.
pub async fn an_extended_lease_holds<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take_briefly("a").await;
    for _ in 0..3 {
        assert!(check.extend(&token, Check::<F>::LEASE).await);
        check.pass(check.brief() * 2 / 3).await;
    }
    assert!(matches!(check.claim("a").await, IdempotencyClaim::InFlight { .. }));
    assert!(check.complete(&token, LONG).await);
    assert!(!check.extend(&token, Check::<F>::LEASE).await, "a done key is not held");
}

/// The former owner of a key can neither complete, release nor extend it.
pub async fn the_former_owner_is_fenced<F: Fixture>(check: Check<F>) {
    let (former, ..) = check.take_briefly("a").await;
    check.outlast_leases().await;
    let (owner, ..) = check.take("a").await;
    assert!(owner.fence > former.fence);
    assert!(!check.complete(&former, LONG).await);
    assert!(!check.release(&former, Release::Failed).await);
    assert!(!check.extend(&former, Check::<F>::LEASE).await);
    assert!(matches!(check.claim("a").await, IdempotencyClaim::InFlight { .. }));
    assert!(check.release(&owner, Release::Failed).await);
    let (_, attempts, crashes) = check.take("a").await;
    assert_eq!((attempts, crashes), (1, 1));
}

/// An owner that is late but that nobody has replaced may still end its claim.
pub async fn a_late_owner_still_owns<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take_briefly("a").await;
    check.outlast_leases().await;
    assert!(check.extend(&token, check.brief()).await);
    check.outlast_leases().await;
    assert!(check.complete(&token, LONG).await);
    assert!(matches!(check.claim("a").await, IdempotencyClaim::Done { .. }));
}

/// Ending a claim again with the same token is fine, and counts nothing; ending it otherwise is not.
pub async fn saying_it_twice_changes_nothing<F: Fixture>(check: Check<F>) {
    let (token, ..) = check.take("a").await;
    assert!(check.release(&token, Release::Failed).await);
    assert!(check.release(&token, Release::Failed).await);
    assert!(!check.complete(&token, LONG).await, "it was given up");
    let (token, attempts, _) = check.take("a").await;
    assert_eq!(attempts, 1);
    assert!(check.complete(&token, LONG).await);
    assert!(check.complete(&token, LONG).await);
    assert!(!check.release(&token, Release::Failed).await, "it is done");
    assert!(matches!(check.claim("a").await, IdempotencyClaim::Done { .. }));
}

/// Keys of different consumers, and consumers and keys that read the same together, are different.
pub async fn keys_are_told_apart<F: Fixture>(check: Check<F>) {
    // A store that joins consumer and key by a colon takes some of these for one.
    let pairs =
        [("a", "b:c"), ("a:b", "c"), ("a", "B:c"), ("A", "b:c"), ("", "a:b:c"), ("a:b:c", "")];
    for (consumer, key) in pairs {
        let claim = check.claim_as(consumer, key.as_bytes(), LONG).await;
        assert!(matches!(claim, IdempotencyClaim::New { .. }), "{consumer:?} {key:?}: {claim:?}");
    }
}

/// Any bytes are a key: NUL, invalid UTF-8, none at all, a great many.
pub async fn any_bytes_are_a_key<F: Fixture>(check: Check<F>) {
    let long = vec![7; 100_000];
    let keys: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"\xff\xfe", b"%_'", &long];
    for consumer in ["c", "c\0", "é'%"] {
        for key in keys {
            let claim = check.claim_as(consumer, key, LONG).await;
            let IdempotencyClaim::New { token, .. } = claim else {
                panic!("{consumer:?} {:?} is new", &key[..key.len().min(8)]);
            };
            assert_eq!(token.key, Bytes::copy_from_slice(key));
            assert!(check.complete(&token, LONG).await);
        }
    }
}

/// Only one of many simultaneous claimers gets a key.
pub async fn many_claimers_get_a_key_once<F: Fixture>(check: Check<F>) {
    use dlq_core::idempotency::Idempotency;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = check.store.clone();
        tasks.spawn(async move {
            let mut ours = 0;
            for n in 0..50_u8 {
                let key = Bytes::copy_from_slice(&[n]);
                let claim = store.claim(Arc::from("c"), key, LONG).await.expect("claim answers");
                ours += u32::from(matches!(claim, IdempotencyClaim::New { .. }));
            }
            ours
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<u32>(), 50);
}
