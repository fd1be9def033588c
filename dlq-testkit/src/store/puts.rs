//! Writing letters: one per death (G2).

use dlq_core::store::{Mark, Receipt};
use dlq_core::{DeadLetter, Filter, LetterState, Message, Resolution, Status, Timestamp};

use super::check::powers::*;
use super::check::written;
use super::{Check, StoreFixture};
use crate::fixtures::{died_again, letter, letter_of};

/// Every field of a letter comes back as it was written.
pub async fn a_letter_comes_back_as_it_was<F: StoreFixture>(check: Check<F>) {
    let mut letter = letter(1);
    letter.crashes = 2;
    letter.delayed_retries = 3;
    letter.deliveries = 9;
    letter.confirmed = false;
    letter.attributes.insert("tenant".to_owned(), "acme".to_owned());
    assert_eq!(check.put_one(&letter).await, Receipt::Stored);
    assert_eq!(written(&check.get(letter.id).await), letter);
}

/// A new letter is pending, with nothing arranged and every count at its start.
pub async fn a_new_letter_is_pending<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let state = check.state(letter.id).await;
    assert_eq!(state.status, Status::Pending);
    assert_eq!((state.resolution, state.due, state.operation), (None, None, None));
    assert_eq!((state.retry_count, state.replays, state.seen), (0, 0, 1));
    assert_eq!(state.last_retry_at, None);
    assert_eq!(state.created_at, state.updated_at);
}

/// A letter is dated by the store's clock.
pub async fn a_letter_is_dated_by_the_store<F: StoreFixture>(check: Check<F>) {
    let letter = letter(1);
    let before = check.now();
    check.put_one(&letter).await;
    let created_at = check.state(letter.id).await.created_at;
    if check.controls_time() {
        assert_eq!(created_at, before, "to the nanosecond");
    } else {
        assert!(created_at.since(before) < std::time::Duration::from_secs(60));
    }
}

/// A writer's claims about the state of its letter are ignored, except for the number of replays.
pub async fn the_writers_state_is_ignored<F: StoreFixture>(check: Check<F>) {
    let mut letter = letter(1);
    letter.state.status = Status::Resolved;
    letter.state.resolution = Some(Resolution::Succeeded);
    letter.state.replays = 7;
    letter.state.seen = 7;
    check.put_one(&letter).await;
    let state = check.state(letter.id).await;
    assert_eq!((state.status, state.resolution), (Status::Pending, None));
    // Replays are believed: letters may have been sent back at a broker before there was a store.
    assert_eq!((state.replays, state.retry_count, state.seen), (7, 7, 1));
}

/// A letter that was sent back before it came to the store does not wait to be sent again. Its next death does.
pub async fn g6_what_was_sent_back_before_is_not_pending<F: StoreFixture>(check: Check<F>) {
    let sent = |mut letter: DeadLetter, times| {
        letter.state.status = Status::Sent;
        letter.state.replays = times;
        letter.state.last_retry_at = Some(Timestamp::from_millis(1_790_000_000_000));
        letter
    };
    let standing = |state: LetterState| (state.status, state.replays, state.last_retry_at);
    let first = sent(letter(1), 2);
    check.put(vec![first.clone(), letter(2)]).await;
    assert_eq!(standing(check.state(first.id).await), standing(first.state.clone()));
    let waiting = check.count(Filter::new().with_status(Status::Pending)).await;
    assert_eq!(waiting, 1, "beside it the other one does");
    check.tick().await;
    let mut second = died_again(&letter(1));
    second.state.replays = 2;
    assert_eq!(check.put_one(&second).await, Receipt::Reopened);
    let state = check.state(first.id).await;
    assert_eq!((state.status, state.replays), (Status::Pending, 2));
    let third = sent(died_again(&second), 3);
    assert_eq!(check.put_one(&third).await, Receipt::Reopened);
    assert_eq!(standing(check.state(first.id).await), standing(third.state.clone()));
    // Beside an older one in the same batch, whichever comes first.
    let batch = vec![sent(died_again(&letter(3)), 1), letter(3), letter(4)];
    use Receipt::{Stored, Superseded};
    assert_eq!(check.put(batch).await, [Stored, Superseded, Stored]);
    let kept = check.get(letter(3).id).await;
    assert_eq!((kept.generation, kept.state.status), (1, Status::Sent));
}

/// A letter that may have been sent back before there was a store is set aside, and no operation sends it.
pub async fn g6_what_may_have_been_sent_back_before_is_quarantined<F: StoreFixture>(
    check: Check<F>,
) {
    let unclear = |mut letter: DeadLetter| {
        letter.state.status = Status::Quarantined;
        letter
    };
    let first = unclear(letter(1));
    check.put(vec![first.clone(), letter(2)]).await;
    assert_eq!(check.status(first.id).await, Status::Quarantined);
    assert_eq!(check.status(letter(2).id).await, Status::Pending);
    check.tick().await;
    assert_eq!(check.put_one(&died_again(&letter(1))).await, Receipt::Reopened);
    assert_eq!(check.status(first.id).await, Status::Pending, "of a new death it is known");
    assert_eq!(check.put_one(&unclear(died_again(&letter(2)))).await, Receipt::Reopened);
    assert_eq!(check.status(letter(2).id).await, Status::Quarantined);
}

/// Receipts come in the order of the letters.
pub async fn receipts_come_in_order<F: StoreFixture>(check: Check<F>) {
    check.put_one(&letter(1)).await;
    let batch = vec![letter(0), letter(1), died_again(&letter(1)), letter(1), letter(2)];
    use Receipt::{Reopened, Stored, Superseded, Unchanged};
    // The fourth is out of date by then, since the third is a later death of the same letter.
    assert_eq!(check.put(batch).await, [Stored, Unchanged, Reopened, Superseded, Stored]);
}

/// An empty batch is written at once.
pub async fn an_empty_batch_is_nothing<F: StoreFixture>(check: Check<F>) {
    assert_eq!(check.put(Vec::new()).await, []);
    assert_eq!(check.count(Filter::new()).await, 0);
}

/// A thousand letters can be written at once, and are all there.
pub async fn a_large_batch_is_written_whole<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(1_000).await;
    assert_eq!(check.count(Filter::new()).await, 1_000);
}

/// The same death again changes nothing, not even a time.
pub async fn the_same_death_changes_nothing<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let before = check.get(letter.id).await;
    check.tick().await;
    // The error is no part of a death's identity.
    let again = crate::fixtures::failed(letter.clone(), "another text for the same death");
    assert_eq!(check.put_one(&again).await, Receipt::Unchanged);
    assert_eq!(check.get(letter.id).await, before);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// The same death twice in one batch is one letter.
pub async fn a_batch_may_repeat_a_death<F: StoreFixture>(check: Check<F>) {
    let receipts = check.put(vec![letter(1), letter(1)]).await;
    assert_eq!(receipts, [Receipt::Stored, Receipt::Unchanged]);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// A higher generation reopens the letter with the new death.
pub async fn a_new_death_reopens_the_letter<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.mark(letter.id, Mark::Resolved).await;
    let first = check.state(letter.id).await;
    check.tick().await;
    let death = died_again(&letter);
    assert_eq!(check.put_one(&death).await, Receipt::Reopened);
    let found = check.get(letter.id).await;
    assert_eq!(written(&found), death);
    assert_eq!((found.state.status, found.state.resolution), (Status::Pending, None));
    assert_eq!(found.state.created_at, first.created_at);
    assert!(found.state.updated_at > first.updated_at);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// Generations may be skipped: what was lost in between stays lost, the letter is right.
pub async fn a_generation_may_be_skipped<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let later = died_again(&died_again(&died_again(&letter)));
    assert_eq!(check.put_one(&later).await, Receipt::Reopened);
    assert_eq!(check.get(letter.id).await.generation, 3);
}

/// A lower generation is out of date and ignored.
pub async fn an_older_death_is_ignored<F: StoreFixture>(check: Check<F>) {
    let letter = letter(1);
    check.put_one(&died_again(&letter)).await;
    let before = check.get(letter.id).await;
    check.tick().await;
    assert_eq!(check.put_one(&letter).await, Receipt::Superseded);
    assert_eq!(check.get(letter.id).await, before);
}

async fn conflict<F: StoreFixture>(check: &Check<F>, one: Message, other: Message) {
    let (one, other) = (letter_of(one, 1), letter_of(other, 1));
    let second = one.id.conflicting(&other.message);
    assert_eq!(check.put_one(&one).await, Receipt::Stored);
    assert_eq!(check.put_one(&other).await, Receipt::Conflicting(second));
    assert_eq!(written(&check.get(one.id).await), one);
    assert_eq!(written(&check.get(second).await), other.with_id(second));
}

/// The same death with another payload is kept as a second letter.
pub async fn another_payload_is_a_second_letter<F: StoreFixture>(check: Check<F>) {
    conflict(&check, Message::new("s", "one"), Message::new("s", "other")).await;
}

/// The same death with another key is kept as a second letter.
pub async fn another_key_is_a_second_letter<F: StoreFixture>(check: Check<F>) {
    let message = || Message::new("s", "x");
    conflict(&check, message().with_key("a"), message().with_key("b")).await;
}

/// Another message with the identity of a letter that has died often is kept as well, and not taken for one of the
/// older deaths.
pub async fn another_payload_is_never_out_of_date<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let other = letter_of(Message::new("s", "other"), 1);
    let again = died_again(&one);
    check.put_one(&again).await;
    let second = one.id.conflicting(&other.message);
    assert_eq!(check.put_one(&other).await, Receipt::Conflicting(second));
    assert_eq!(written(&check.get(one.id).await), again);
    assert_eq!(written(&check.get(second).await), other.with_id(second));
}

/// A later death with bytes that the letter never had is another message: both are kept, and neither takes the other's
/// deaths over.
pub async fn g2_a_later_death_of_other_bytes_is_a_second_letter<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let forged = letter_of(Message::new("s", "other"), 1).with_generation(5);
    let second = one.id.conflicting(&forged.message);
    check.put_one(&one).await;
    let before = check.get(one.id).await;
    check.tick().await;
    // The second time the forged letter is known, and is a conflict all the same.
    for _ in 0..2 {
        assert_eq!(check.put_one(&forged).await, Receipt::Conflicting(second));
        assert_eq!(check.get(one.id).await, before, "it is left as it was");
        assert_eq!(written(&check.get(second).await), forged.clone().with_id(second));
        assert_eq!(check.count(Filter::new()).await, 2);
    }
    let again = died_again(&one);
    assert_eq!(check.put_one(&again).await, Receipt::Reopened);
    assert_eq!(written(&check.get(one.id).await), again);
    let later = died_again(&forged);
    assert_eq!(check.put_one(&later).await, Receipt::Conflicting(second));
    assert_eq!(written(&check.get(second).await), later.with_id(second));
    assert_eq!(check.count(Filter::new()).await, 2);
}

/// Messages that claim one identity are told apart by their keys, too.
pub async fn g2_conflicting_letters_of_two_keys_are_two<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let other = |key: &'static str| letter_of(Message::new("s", "other").with_key(key), 1);
    check.put_one(&one).await;
    for letter in [other("a"), other("b")] {
        let id = one.id.conflicting(&letter.message);
        assert_eq!(check.put_one(&letter).await, Receipt::Conflicting(id));
        assert_eq!(written(&check.get(id).await), letter.with_id(id));
    }
    assert_eq!(check.count(Filter::new()).await, 3);
}

/// No message dies a thousand million times: a letter that says so keeps the real deaths of its message from nothing.
pub async fn g2_an_absurd_generation_hides_no_death<F: StoreFixture>(check: Check<F>) {
    let absurd = |n, generation| letter(n).with_generation(generation);
    for (n, generation) in [(1, u32::MAX), (2, u32::MAX - 1), (3, 1_000_000_000)] {
        // Whichever comes first.
        let (letter, absurd) = (letter(n), absurd(n, generation));
        check.put_one(&absurd).await;
        let second = letter.id.conflicting(&letter.message);
        assert_eq!(check.put_one(&letter).await, Receipt::Conflicting(second));
        assert_eq!(check.put_one(&letter).await, Receipt::Conflicting(second));
        assert_eq!(written(&check.get(second).await), letter.clone().with_id(second));
        let death = died_again(&letter);
        assert_eq!(check.put_one(&death).await, Receipt::Conflicting(second));
        assert_eq!(check.get(second).await.generation, 1);
        assert_eq!(check.get(letter.id).await.generation, generation);
    }
    let letter = letter(4);
    let second = letter.id.conflicting(&letter.message);
    check.put_one(&letter).await;
    assert_eq!(check.put_one(&absurd(4, u32::MAX)).await, Receipt::Conflicting(second));
    assert_eq!(check.put_one(&died_again(&letter)).await, Receipt::Reopened);
    assert_eq!(check.get(letter.id).await.generation, 1);
}

/// A tombstone and an empty payload are not the same message.
pub async fn a_tombstone_is_not_an_empty_payload<F: StoreFixture>(check: Check<F>) {
    conflict(&check, Message::tombstone("s"), Message::new("s", "")).await;
}

/// An absent key and an empty key are not the same message.
pub async fn no_key_is_not_an_empty_key<F: StoreFixture>(check: Check<F>) {
    conflict(&check, Message::new("s", "x"), Message::new("s", "x").with_key("")).await;
}

/// A conflicting letter that is written again is kept once.
pub async fn a_conflicting_letter_is_kept_once<F: StoreFixture>(check: Check<F>) {
    let one = letter_of(Message::new("s", "one"), 1);
    let other = letter_of(Message::new("s", "other"), 1);
    let third = letter_of(Message::new("s", "third"), 1);
    check.put_one(&one).await;
    let receipt = check.put_one(&other).await;
    assert_eq!(check.put_one(&other).await, receipt);
    assert_ne!(check.put_one(&third).await, receipt);
    assert_eq!(check.put_one(&one).await, Receipt::Unchanged);
    assert_eq!(check.count(Filter::new()).await, 3);
}

/// A death that was resolved and is written again stays resolved.
pub async fn a_resolved_death_stays_resolved<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.mark(letter.id, Mark::Resolved).await;
    let before = check.state(letter.id).await;
    assert_eq!(check.put_one(&letter).await, Receipt::Unchanged);
    assert_eq!(check.state(letter.id).await, before);
}

/// A quarantined letter that dies again is news, and pending.
pub async fn a_quarantined_letter_is_reopened_by_a_new_death<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    check.mark(letter.id, Mark::Quarantined).await;
    assert_eq!(check.put_one(&letter).await, Receipt::Unchanged);
    assert_eq!(check.status(letter.id).await, Status::Quarantined);
    assert_eq!(check.put_one(&died_again(&letter)).await, Receipt::Reopened);
    assert_eq!(check.status(letter.id).await, Status::Pending);
}

/// A death that was deleted and is written again is a new letter.
pub async fn a_deleted_death_is_new_again<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    assert_eq!(check.delete(letter.id).await.changed, 1);
    assert_eq!(check.store.get(letter.id).await.expect("get answers"), None);
    assert_eq!(check.put_one(&letter).await, Receipt::Stored);
    assert_eq!(check.status(letter.id).await, Status::Pending);
}

/// Letters of two consumers of one message are two letters.
pub async fn each_consumer_has_its_own_letter<F: StoreFixture>(check: Check<F>) {
    let one = letter(1);
    let mut other = letter(1);
    other.consumer = "audit.write".to_owned();
    let at = other.message.published_at();
    // The consumer is part of the id (G2).
    other.id = dlq_core::LetterId::of(&other.origin, at, &other.consumer);
    check.put_one(&one).await;
    assert_eq!(check.put_one(&other).await, Receipt::Stored);
    assert_eq!(check.count(Filter::new().with_message_id("evt-1".to_owned())).await, 2);
}
