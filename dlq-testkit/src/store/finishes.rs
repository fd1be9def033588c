//! Finishing a claim: each outcome, once, on the letter and its operation together.

use std::time::Duration;

use dlq_core::store::{Claim, Finish, Finished, ItemOutcome, Operation};
use dlq_core::{Attempt, Cause, ErrorClass, Filter, Fingerprint, History, Resolution, Status};

use super::check::powers::*;
use super::check::{in_ms, written};
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, died_again, failure, letter};

async fn claimed<F: StoreFixture>(check: &Check<F>) -> (Operation, Claim) {
    check.bury(1).await;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    check.tick().await;
    (operation, claim)
}

/// Success resolves the letter and its place in the operation.
pub async fn success_resolves_the_letter<F: StoreFixture>(check: Check<F>) {
    let (operation, claim) = claimed(&check).await;
    check.succeed(&claim).await;
    let state = check.state(claim.letter.id).await;
    assert_eq!(state.status, Status::Resolved);
    assert_eq!(state.resolution, Some(Resolution::Succeeded));
    assert_eq!((state.due, state.operation), (None, None));
    assert!(state.updated_at > claim.letter.state.updated_at);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded]);
}

/// A duplicate is as good as a success; a dismissal is not.
pub async fn every_resolution_is_kept<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let operation = check.replay().await;
    let claims = check.claim(3).await;
    for (claim, resolution) in claims.iter().zip(Resolution::ALL) {
        let finish = Finish::Resolved(*resolution);
        assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
        assert_eq!(check.state(claim.letter.id).await.resolution, Some(*resolution));
    }
    use ItemOutcome::{Skipped, Succeeded};
    assert_eq!(check.outcomes(&operation).await, [Succeeded, Succeeded, Skipped]);
}

/// Finishing a claim again with the same token is applied, and changes nothing.
pub async fn finishing_twice_changes_nothing<F: StoreFixture>(check: Check<F>) {
    let (_, claim) = claimed(&check).await;
    let death = Finish::Dead(Box::new(died_again(&claim.letter)));
    assert_eq!(check.finish(claim.token, death.clone()).await, Finished::Applied);
    let before = check.get(claim.letter.id).await;
    check.tick().await;
    assert_eq!(check.finish(claim.token, death).await, Finished::Applied);
    // Another end with the same token does not count either: the first one stands.
    let other = Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, other).await, Finished::Applied);
    assert_eq!(check.get(claim.letter.id).await, before);
}

/// A batch of finishes is answered one by one, and a stale token does not spoil the others.
pub async fn finishes_are_answered_one_by_one<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    check.replay().await;
    let claims = check.claim(3).await;
    let mut forged = claims[1].token;
    forged.fence += 1_000;
    let mut other = claims[1].token;
    other.generation += 1;
    let mut unknown = claims[1].token;
    unknown.letter = letter(99).id;
    let success = || Finish::Resolved(Resolution::Succeeded);
    let finishes = vec![
        (claims[0].token, success()),
        (forged, success()),
        (unknown, success()),
        (other, success()),
        (claims[2].token, success()),
        // The batch has ended this claim already: said again, that is applied and changes nothing.
        (claims[0].token, success()),
    ];
    let finished = check.store.finish(finishes).await.expect("finish answers");
    use Finished::{Applied, Stale};
    assert_eq!(finished, [Applied, Stale, Stale, Stale, Applied, Applied]);
    assert_eq!(check.status(claims[1].letter.id).await, Status::Replaying);
    assert_eq!(check.count(Filter::new().with_status(Status::Resolved)).await, 2);
}

/// A replay that dies again reopens its own letter, one generation higher (G7).
pub async fn a_replay_that_dies_again_reopens_its_letter<F: StoreFixture>(check: Check<F>) {
    let (operation, claim) = claimed(&check).await;
    let first = check.state(claim.letter.id).await;
    let death = check.die_of(&claim).await;
    let found = check.get(claim.letter.id).await;
    assert_eq!(written(&found), written(&death));
    assert_eq!(found.generation, 1);
    assert_eq!((found.state.status, found.state.due), (Status::Pending, None));
    assert_eq!(found.state.operation, None);
    assert_eq!((found.state.retry_count, found.state.replays), (1, 1), "the counts stay");
    assert_eq!(found.state.created_at, first.created_at);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
    assert_eq!(check.count(Filter::new()).await, 1);
    assert!(check.claim(1).await.is_empty(), "it waits until somebody sends it back");
}

/// A death whose generation is too low is raised rather than lost.
pub async fn a_death_is_never_lost_to_a_low_generation<F: StoreFixture>(check: Check<F>) {
    let (_, claim) = claimed(&check).await;
    let death = died_again(&claim.letter).with_generation(0);
    let finish = Finish::Dead(Box::new(death));
    assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
    let found = check.get(claim.letter.id).await;
    assert_eq!((found.generation, found.state.status), (1, Status::Pending));
}

/// A replay that is to be retried waits, as a record of the generation it would die next.
pub async fn a_replay_may_be_retried<F: StoreFixture>(check: Check<F>) {
    let (operation, claim) = claimed(&check).await;
    let due = in_ms(check.now(), 5_000);
    let mut attempts = claim.letter.history.clone();
    let mut latest = failure(77);
    (latest.class, latest.cause) = (ErrorClass::Permanent, Cause::Timeout);
    attempts.push(Attempt { number: 1, generation: 1, failure: latest.clone() });
    let finish = Finish::Retry { due, history: attempts.clone(), attempts: 1 };
    assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
    let found = check.get(claim.letter.id).await;
    assert_eq!((found.state.status, found.state.due), (Status::Retrying, Some(due)));
    assert_eq!((found.generation, found.attempts, found.delayed_retries), (1, 1, 1));
    assert_eq!(found.history, attempts);
    assert_eq!((found.class, found.cause), (latest.class, Some(latest.cause)));
    // The group follows the latest failure, also while the message waits.
    let group = Fingerprint::of(&found.consumer, found.reason, Some(&latest));
    assert_eq!(found.fingerprint, group);
    assert_eq!(found.state.operation, Some(operation.id));
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Released]);
    assert!(check.claim(1).await.is_empty(), "not before it is due");
}

/// A replay that is retried goes on where it was, and dies with the generation that was announced.
pub async fn a_retried_replay_goes_on<F: StoreFixture>(check: Check<F>) {
    let (operation, claim) = claimed(&check).await;
    let retry = |attempts, due| Finish::Retry { due, history: History::new(), attempts };
    let finish = retry(1, check.now());
    assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
    check.tick().await;
    let second = check.claim_one().await;
    assert!(second.continues);
    assert_eq!((second.letter.attempts, second.next_death().generation), (1, 1));
    let finish = retry(2, check.now());
    assert_eq!(check.finish(second.token, finish).await, Finished::Applied);
    check.tick().await;
    let third = check.claim_one().await;
    assert_eq!((third.letter.attempts, third.letter.delayed_retries), (2, 2));
    assert_eq!(third.letter.state.replays, 1, "a retry is no replay");
    check.die(&third).await;
    assert_eq!(check.get(claim.letter.id).await.generation, 1);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
}

/// Crashes of a replay go on counting when it is retried.
pub async fn crashes_outlast_a_retry<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    check.claim_one().await;
    check.outlast_leases().await;
    let claim = check.claim_one().await;
    let finish = Finish::Retry { due: check.now(), history: History::new(), attempts: 1 };
    check.finish(claim.token, finish).await;
    check.tick().await;
    assert_eq!(check.claim_one().await.letter.crashes, 1);
    check.outlast_leases().await;
    assert_eq!(check.claim_one().await.letter.crashes, 2);
}

/// Not now is not a failure (G10): a released letter is what it was, and due again later.
pub async fn a_released_letter_comes_back<F: StoreFixture>(check: Check<F>) {
    let (operation, claim) = claimed(&check).await;
    let after = Duration::from_millis(200);
    let finish = Finish::Released { after };
    assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
    let found = check.get(claim.letter.id).await;
    assert_eq!(found.state.status, Status::Pending);
    if check.controls_time() {
        assert_eq!(found.state.due, Some(check.now().after(after)));
    }
    assert_eq!((found.state.retry_count, found.state.replays), (1, 1));
    assert_eq!(found.generation, 0);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Released]);
    assert!(check.claim(1).await.is_empty(), "not before it is due");
    check.pass(after).await;
    let again = check.claim_one().await;
    assert_eq!((again.letter.crashes, again.letter.state.replays), (0, 1), "counts nothing");
    check.succeed(&again).await;
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded]);
}

/// A retry record that is released stays a retry record.
pub async fn a_released_record_stays_a_record<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    check.tick().await;
    let claim = check.claim_one().await;
    check.finish(claim.token, Finish::Released { after: Duration::ZERO }).await;
    assert_eq!(check.status(letter(1).id).await, Status::Retrying);
    let again = check.claim_one().await;
    assert!(again.continues);
    assert_eq!(again.letter.attempts, 2);
}

/// Releasing forgets no crash.
pub async fn releasing_forgets_no_crash<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    check.replay().await;
    check.claim_one().await;
    check.outlast_leases().await;
    let claim = check.claim_one().await;
    check.finish(claim.token, Finish::Released { after: Duration::ZERO }).await;
    assert_eq!(check.claim_one().await.letter.crashes, 1);
}
