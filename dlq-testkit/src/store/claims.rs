//! Claiming: each letter to one owner at a time, for as long as its lease.

use std::time::Duration;

use dlq_core::store::{ClaimRequest, Finish, Finished, Mark};
use dlq_core::{ErrorClass, Filter, Resolution, Status};

use super::check::in_ms;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, delayed_retry, died_again, letter};

/// A letter for which nothing was arranged is not handed out.
pub async fn what_is_not_due_is_not_claimed<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    assert!(check.claim(10).await.is_empty());
    assert_eq!(check.status(letters[0].id).await, Status::Pending);
}

/// A claimed letter is `replaying`, dated, and counted as nothing.
pub async fn a_claim_is_seen_on_the_letter<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.replay().await;
    check.tick().await;
    let claim = check.claim_one().await;
    let found = check.get(letter.id).await;
    assert_eq!(found.state.status, Status::Replaying);
    assert_eq!(found.state.due, None);
    assert!(found.state.last_retry_at.is_some());
    assert_eq!((found.state.retry_count, found.state.replays), (1, 1), "counted when released");
    assert_eq!(claim.letter, found, "the claim brings the letter as it is now");
    assert_eq!((claim.token.letter, claim.token.generation), (letter.id, 0));
    assert!(!claim.continues);
    assert_eq!(claim.next_death().generation, 1);
}

/// A lease lasts as long as asked for, by the store's time.
pub async fn a_lease_lasts_as_asked<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    let claim = check.claim_one().await;
    let lasts = claim.lease_until.since(check.now());
    if check.controls_time() {
        assert_eq!(lasts, check.lease());
    } else {
        assert!(lasts <= check.lease() + Duration::from_secs(5));
    }
}

/// While a lease lasts nobody else is given the letter.
pub async fn a_claimed_letter_is_not_claimed_again<F: StoreFixture>(check: Check<F>) {
    check.bury(5).await;
    check.replay().await;
    assert_eq!(check.claim(3).await.len(), 3);
    assert_eq!(check.claim(10).await.len(), 2);
    assert!(check.claim(10).await.is_empty());
}

/// No more are claimed than asked for, and none when none are asked for.
pub async fn no_more_are_claimed_than_asked_for<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    check.replay().await;
    assert!(check.claim(0).await.is_empty());
    assert_eq!(check.claim(1).await.len(), 1);
    // Some databases know no number that large, and have to take it as a limit all the same.
    assert_eq!(check.claim(u32::MAX).await.len(), 2);
}

/// The letter that was due first is handed out first.
pub async fn the_longest_due_comes_first<F: StoreFixture>(check: Check<F>) {
    let now = check.now();
    for (n, due) in [(1, 30), (2, 10), (3, 20)] {
        check.enqueue(delayed_retry(&letter(n), 1, in_ms(now, due))).await;
    }
    check.pass(Duration::from_millis(100)).await;
    let claimed: Vec<_> = check.claim(3).await.iter().map(|claim| claim.letter.id).collect();
    assert_eq!(claimed, [letter(2).id, letter(3).id, letter(1).id]);
}

/// Letters due at the same time are handed out oldest first.
pub async fn equally_due_letters_come_oldest_first<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(6).await;
    check.replay().await;
    let claimed: Vec<_> = check.claim(6).await.iter().map(|claim| claim.letter.id).collect();
    assert_eq!(claimed, letters.iter().map(|letter| letter.id).collect::<Vec<_>>());
}

/// The letter that was due first is handed out first, whichever consumer it belongs to.
pub async fn the_longest_due_of_all_consumers_comes_first<F: StoreFixture>(check: Check<F>) {
    let now = check.now();
    for n in 0..6 {
        let mut letter = letter(n);
        letter.consumer = ["b", "a"][n as usize % 2].to_owned();
        check.enqueue(delayed_retry(&letter, 1, in_ms(now, n * 10))).await;
    }
    check.pass(Duration::from_millis(100)).await;
    for (names, first) in [(vec!["a", "b"], 0), (Vec::new(), 3)] {
        let claims = check.claim_by(ClaimRequest::due(names, 3, check.lease())).await;
        let claimed: Vec<_> = claims.iter().map(|claim| claim.letter.id).collect();
        let expected: Vec<_> = (first..first + 3).map(|n| letter(n).id).collect();
        assert_eq!(claimed, expected);
    }
}

/// A consumer is given its own letters and nobody else's.
pub async fn a_consumer_is_given_its_own_letters<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let mut other = letter(7);
    other.consumer = "audit.write".to_owned();
    check.put_one(&other).await;
    check.replay().await;
    let lease = check.lease();
    // A name that is given twice must not hand its letters out twice.
    let claims = check.claim_by(ClaimRequest::due(["audit.write", "audit.write"], 9, lease)).await;
    assert_eq!(claims.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [other.id]);
    let nobody = check.claim_by(ClaimRequest::due(["Orders.handle"], 9, lease)).await;
    assert!(nobody.is_empty());
    assert_eq!(check.claim(9).await.len(), 2);
}

/// The whole filter counts, not only the consumer.
pub async fn a_claim_is_narrowed_by_its_filter<F: StoreFixture>(check: Check<F>) {
    let mut permanent = letter(1);
    permanent.class = ErrorClass::Permanent;
    check.put(vec![letter(0), permanent.clone(), letter(2)]).await;
    check.replay().await;
    let filter = Filter::new().with_class(ErrorClass::Permanent);
    let request = ClaimRequest::due([CONSUMER], 9, check.lease()).filter(filter);
    let claims = check.claim_by(request).await;
    assert_eq!(claims.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [permanent.id]);
    assert_eq!(check.claim(9).await.len(), 2);
}

/// A letter whose lease ended is claimed again, and the crash is counted.
pub async fn an_ended_lease_is_claimed_again<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    let first = check.claim_one().await;
    assert_eq!(first.letter.crashes, 0);
    check.outlast_leases().await;
    let second = check.claim_one().await;
    assert_eq!(second.letter.crashes, 1);
    assert!(second.token.fence > first.token.fence, "the token grows");
    assert_eq!(second.continues, first.continues);
    check.outlast_leases().await;
    let third = check.claim_one().await;
    assert_eq!(third.letter.crashes, 2);
    assert_eq!(third.letter.state.replays, 1, "a crash is no replay");
}

/// Crashes are those of the run for the next death, not those it died of.
pub async fn crashes_start_over_with_each_generation<F: StoreFixture>(check: Check<F>) {
    let mut crashed = letter(1);
    crashed.crashes = 5;
    check.put_one(&crashed).await;
    check.replay().await;
    assert_eq!(check.claim_one().await.letter.crashes, 0);
    check.outlast_leases().await;
    let claim = check.claim_one().await;
    assert_eq!(claim.letter.crashes, 1);
    check.die(&claim).await;
    check.replay().await;
    assert_eq!(check.claim_one().await.letter.crashes, 0);
}

/// The former owner of a letter that another has claimed can do nothing to it (G6).
pub async fn the_former_owner_is_fenced<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    let former = check.claim_one().await;
    check.outlast_leases().await;
    let owner = check.claim_one().await;
    let before = check.get(owner.letter.id).await;
    assert!(!check.extend(former.token).await);
    for finish in [
        Finish::Resolved(Resolution::Succeeded),
        Finish::Released { after: Duration::ZERO },
        Finish::Dead(Box::new(died_again(&former.letter))),
        Finish::Retry { due: check.now(), history: before.history.clone(), attempts: 9 },
    ] {
        assert_eq!(check.finish(former.token, finish).await, Finished::Stale);
    }
    assert_eq!(check.get(owner.letter.id).await, before, "nothing has changed");
    check.succeed(&owner).await;
}

/// Extending a lease keeps the letter, as long as it goes on.
pub async fn an_extended_lease_keeps_the_letter<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    let claim = check.claim_one().await;
    for _ in 0..3 {
        // Two leases pass in all, so that only the extensions keep the letter.
        check.pass(check.lease() * 2 / 3).await;
        assert!(check.extend(claim.token).await);
    }
    assert!(check.claim(1).await.is_empty());
    check.succeed(&claim).await;
    assert!(!check.extend(claim.token).await, "a finished claim cannot be extended");
}

/// Each token of a batch has an answer of its own.
pub async fn extending_answers_for_each_token<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    check.replay().await;
    let claims = check.claim(3).await;
    check.succeed(&claims[1]).await;
    let mut unknown = claims[0].token;
    unknown.letter = letter(99).id;
    let tokens = vec![claims[0].token, claims[1].token, unknown, claims[2].token];
    let valid = check.store.extend(tokens, check.lease()).await.expect("extend answers");
    assert_eq!(valid, [true, false, false, true]);
}

/// An owner that is late but that nobody has replaced still owns the letter.
pub async fn a_late_owner_still_owns<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    check.replay().await;
    let claims = check.claim(2).await;
    check.outlast_leases().await;
    assert!(check.extend(claims[0].token).await);
    assert_eq!(check.claim(9).await.len(), 1, "the extended one is kept, the other is free");
    check.succeed(&claims[0]).await;
}

/// A new death that was written meanwhile takes the letter out of its owner's hands.
pub async fn a_new_death_voids_a_claim<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.replay().await;
    let claim = check.claim_one().await;
    let death = died_again(&letter);
    check.put_one(&death).await;
    let before = check.get(letter.id).await;
    assert_eq!(before.state.status, Status::Pending);
    assert!(!check.extend(claim.token).await);
    let finish = Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, finish).await, Finished::Stale);
    assert_eq!(check.get(letter.id).await, before, "the new death is not hidden");
}

/// The same death that is written again leaves the claim of its letter alone.
pub async fn the_same_death_leaves_a_claim_alone<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.replay().await;
    let claim = check.claim_one().await;
    check.put_one(&letter).await;
    assert_eq!(check.status(letter.id).await, Status::Replaying);
    assert!(check.claim(1).await.is_empty());
    check.succeed(&claim).await;
}

/// A letter that was deleted and written again does not honour the tokens of its former life.
pub async fn fences_grow_across_deletion<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.replay().await;
    let former = check.claim_one().await;
    check.outlast_leases().await;
    // A letter whose lease lasts could not be deleted.
    assert_eq!(check.delete(letter.id).await.changed, 1);
    check.put_one(&letter).await;
    check.replay().await;
    let owner = check.claim_one().await;
    assert!(owner.token.fence > former.token.fence);
    assert!(!check.extend(former.token).await);
    check.succeed(&owner).await;
}

/// The next due time or end of a lease is known, if there is one.
pub async fn the_next_due_time_is_known<F: StoreFixture>(check: Check<F>) {
    let next = async || {
        let names = vec![CONSUMER.to_owned(), "nobody".to_owned()];
        check.store.next_due(names).await.expect("next_due answers")
    };
    assert_eq!(next().await, None);
    check.bury(1).await;
    assert_eq!(
        next().await,
        None,
        "a letter for which nothing was arranged is nothing to wait for"
    );
    let due = in_ms(check.now(), 3_600_000);
    check.enqueue(delayed_retry(&letter(5), 1, due)).await;
    assert_eq!(next().await, Some(due));
    check.replay().await;
    assert!(next().await.is_some_and(|at| at <= in_ms(check.now(), 1)), "an operation can release");
    let claim = check.claim_one().await;
    // The end of a lease is a due time, too: somebody has to take the letter over then.
    assert_eq!(next().await, Some(claim.lease_until.min(due)));
    check.succeed(&claim).await;
    assert_eq!(next().await, Some(due));
    let others = check.store.next_due(vec!["nobody".to_owned()]).await.expect("next_due answers");
    assert_eq!(others, None);
    let any = check.store.next_due(Vec::new()).await.expect("next_due answers");
    assert_eq!(any, Some(due));
    check.mark(letter(5).id, Mark::Resolved).await;
    assert_eq!(next().await, None);
}
