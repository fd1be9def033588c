//! The retry queue: messages that wait in the store for their next attempt.

use dlq_core::store::{Finish, Finished, Receipt};
use dlq_core::{Filter, Message, Resolution, Status};

use super::check::in_ms;
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, died_again, history, letter, letter_of};

/// A retry record keeps message, origin, history and counts, and waits until it is due.
pub async fn a_record_waits_until_it_is_due<F: StoreFixture>(check: Check<F>) {
    let wanted = letter(1);
    let due = in_ms(check.now(), 100);
    check.enqueue(delayed_retry(&wanted, 2, due)).await;
    let found = check.get(wanted.id).await;
    assert_eq!((found.state.status, found.state.due), (Status::Retrying, Some(due)));
    assert_eq!((&found.message, &found.origin), (&wanted.message, &wanted.origin));
    assert_eq!((found.generation, found.attempts, found.delayed_retries), (0, 2, 1));
    assert_eq!(found.history, history(2, 0));
    assert_eq!(found.cause, found.failure().map(|failure| failure.cause));
    assert_eq!((found.state.retry_count, found.state.seen), (0, 1));
    assert!(check.claim(1).await.is_empty());
    check.pass(std::time::Duration::from_millis(150)).await;
    let claim = check.claim_one().await;
    assert!(claim.continues, "the count of attempts goes on");
    assert_eq!(claim.next_death(), wanted.death());
}

/// Writing the same record again changes nothing.
pub async fn the_same_record_changes_nothing<F: StoreFixture>(check: Check<F>) {
    let due = in_ms(check.now(), 60_000);
    check.enqueue(delayed_retry(&letter(1), 2, due)).await;
    let before = check.get(letter(1).id).await;
    check.tick().await;
    check.enqueue(delayed_retry(&letter(1), 2, due)).await;
    // Nor does one that knows of fewer attempts, which is older.
    check.enqueue(delayed_retry(&letter(1), 1, in_ms(due, 1))).await;
    assert_eq!(check.get(letter(1).id).await, before);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// A record that knows of more attempts replaces one that waits.
pub async fn more_attempts_update_a_record<F: StoreFixture>(check: Check<F>) {
    let due = in_ms(check.now(), 60_000);
    check.enqueue(delayed_retry(&letter(1), 2, due)).await;
    check.enqueue(delayed_retry(&letter(1), 3, in_ms(due, 5))).await;
    let found = check.get(letter(1).id).await;
    assert_eq!((found.attempts, found.state.due), (3, Some(in_ms(due, 5))));
    assert_eq!(found.history, history(3, 0));
}

/// A record in somebody's hands is left to them.
pub async fn a_claimed_record_is_left_alone<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    check.tick().await;
    let claim = check.claim_one().await;
    check.enqueue(delayed_retry(&letter(1), 5, check.now())).await;
    assert_eq!(check.status(letter(1).id).await, Status::Replaying);
    assert!(check.claim(1).await.is_empty());
    check.succeed(&claim).await;
}

/// A record that succeeds is resolved, and stays so when the message comes once more.
pub async fn a_record_that_succeeded_stays_so<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    check.tick().await;
    let claim = check.claim_one().await;
    check.succeed(&claim).await;
    // A broker that has not heard that the message was put off hands it out once more.
    check.enqueue(delayed_retry(&letter(1), 9, check.now())).await;
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Unchanged);
    assert_eq!(check.status(letter(1).id).await, Status::Resolved);
}

/// A record that dies in its owner's hands becomes a letter of the same generation.
pub async fn a_record_may_die_in_its_owners_hands<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    check.tick().await;
    let claim = check.claim_one().await;
    let finish = Finish::Dead(Box::new(letter(1)));
    assert_eq!(check.finish(claim.token, finish).await, Finished::Applied);
    let found = check.get(letter(1).id).await;
    assert_eq!((found.generation, found.state.status), (0, Status::Pending));
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Unchanged, "it is the same death");
}

/// A first death that is put turns a waiting record of its generation into a letter.
pub async fn a_death_ends_a_waiting_record<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Reopened);
    let found = check.get(letter(1).id).await;
    assert_eq!((found.state.status, found.state.due), (Status::Pending, None));
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Unchanged);
    check.tick().await;
    assert!(check.claim(1).await.is_empty());
}

/// A recent death is found by its time, however long the message was retried before.
pub async fn a_record_that_dies_is_as_old_as_its_death<F: StoreFixture>(check: Check<F>) {
    for n in [1, 2] {
        check.enqueue(delayed_retry(&letter(n), 2, check.now())).await;
    }
    check.pass(std::time::Duration::from_millis(50)).await;
    let claims = check.claim(1).await;
    let claimed = claims[0].letter.id;
    let before = check.state(claimed).await.created_at;
    let middle = check.now();
    check.tick().await;
    for n in [1, 2] {
        let letter = letter(n);
        if letter.id == claimed {
            let finish = Finish::Dead(Box::new(letter));
            assert_eq!(check.finish(claims[0].token, finish).await, Finished::Applied);
        } else {
            assert_eq!(check.put_one(&letter).await, Receipt::Reopened);
        }
    }
    assert_eq!(check.count(Filter::new().since(middle)).await, 2);
    assert_eq!(check.count(Filter::new().until(middle)).await, 0);
    let state = check.state(claimed).await;
    assert!(state.created_at > before);
    check.tick().await;
    check.put_one(&died_again(&letter(1))).await;
    check.put_one(&died_again(&letter(2))).await;
    assert_eq!(check.state(claimed).await.created_at, state.created_at, "it died before");
}

/// A first death that is put turns a claimed record into a letter, and its owner's token is worthless.
pub async fn a_death_ends_a_claimed_record<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    check.tick().await;
    let claim = check.claim_one().await;
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Reopened);
    let finish = Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, finish).await, Finished::Stale);
    assert_eq!(check.status(letter(1).id).await, Status::Pending);
}

/// A death is never taken back by a record of the same generation.
pub async fn a_record_never_takes_a_death_back<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let before = check.get(letter.id).await;
    check.enqueue(delayed_retry(&letter, 9, check.now())).await;
    assert_eq!(check.get(letter.id).await, before);
}

/// A record of a later generation is news about the letter.
pub async fn a_later_record_takes_the_letter_over<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let created_at = check.state(letter.id).await.created_at;
    let due = in_ms(check.now(), 60_000);
    check.enqueue(delayed_retry(&died_again(&letter), 1, due)).await;
    let found = check.get(letter.id).await;
    assert_eq!((found.generation, found.state.status), (1, Status::Retrying));
    assert_eq!((found.state.due, found.state.created_at), (Some(due), created_at));
    assert_eq!(check.put_one(&letter).await, Receipt::Superseded);
    assert_eq!(check.put_one(&died_again(&letter)).await, Receipt::Reopened);
}

/// A record of an earlier generation is out of date.
pub async fn an_earlier_record_is_ignored<F: StoreFixture>(check: Check<F>) {
    check.put_one(&died_again(&letter(1))).await;
    let before = check.get(letter(1).id).await;
    check.enqueue(delayed_retry(&letter(1), 9, check.now())).await;
    assert_eq!(check.get(letter(1).id).await, before);
}

/// A record of another message with the same identity is not lost: both are kept.
pub async fn a_conflicting_record_is_kept<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let other = letter_of(Message::new("s", "other"), 1);
    check.put_one(&one).await;
    check.enqueue(delayed_retry(&other, 1, check.now())).await;
    check.enqueue(delayed_retry(&other, 1, check.now())).await;
    let second = check.get(one.id.conflicting(&other.message)).await;
    assert_eq!(second.state.status, Status::Retrying);
    assert_eq!(second.message, other.message);
    assert_eq!(check.count(Filter::new()).await, 2);
    let death = other.with_id(second.id);
    assert_eq!(check.put_one(&death).await, Receipt::Reopened);
}

/// A record of a later generation with bytes that the letter never had leaves the letter as it is, and is kept beside it.
pub async fn g2_a_later_record_of_other_bytes_is_a_second_letter<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let forged = letter_of(Message::new("s", "other"), 1).with_generation(3);
    check.put_one(&one).await;
    let before = check.get(one.id).await;
    check.tick().await;
    check.enqueue(delayed_retry(&forged, 1, check.now())).await;
    assert_eq!(check.get(one.id).await, before);
    let second = check.get(one.id.conflicting(&forged.message)).await;
    assert_eq!((second.state.status, second.generation), (Status::Retrying, 3));
    assert_eq!(second.message, forged.message);
}

/// A record of a later generation takes the letter out of its owner's hands and out of its operation.
pub async fn a_later_record_voids_a_claim<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    let due = in_ms(check.now(), 60_000);
    check.enqueue(delayed_retry(&died_again(&letter), 1, due)).await;
    let state = check.state(letter.id).await;
    assert_eq!((state.status, state.operation), (Status::Retrying, None));
    let finish = Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, finish).await, Finished::Stale);
    assert!(check.operation(&operation).await.state.is_final());
}
