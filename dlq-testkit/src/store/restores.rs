//! Restoring letters that were read from a store: with their state, as often as one likes.

use std::time::Duration;

use dlq_core::store::{Edit, Finish, Mark, OperationSpec, Receipt};
use dlq_core::{DeadLetter, Filter, LetterState, Message, OperationId, Order, Resolution, Status};

use super::check::powers::*;
use super::check::{by, in_ms};
use super::{Check, StoreFixture};
use crate::fixtures::{
    complete_letters, delayed_retry, died_again, hostile_messages, letter, letter_of,
};

async fn restore<F: StoreFixture>(check: &Check<F>, letters: &[DeadLetter]) -> Vec<Receipt> {
    check.tick().await;
    check.store.restore(letters.to_vec(), by()).await.expect("restore answers")
}

async fn everything<F: StoreFixture>(check: &Check<F>) -> Vec<DeadLetter> {
    let mut all = Vec::new();
    for id in check.ids(&Filter::new(), Order::OldestFirst).await {
        all.push(check.get(id).await);
    }
    all
}

/// Restored letters are what they were: whatever was done to them, and whatever they carry.
pub async fn a_restored_letter_is_what_it_was<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury(8).await.iter().map(|letter| letter.id).collect();
    check.mark(ids[0], Mark::Quarantined).await;
    check.mark(ids[1], Mark::Resolved).await;
    check.start(OperationSpec::replay(Filter::new()).limit(2)).await;
    let claims = check.claim(2).await;
    check.succeed(&claims[0]).await;
    check.die(&claims[1]).await;
    let _ = check.store.edit(ids[5], Edit::new().payload("[]"), by()).await.expect("edit answers");
    check.enqueue(delayed_retry(&letter(9), 2, in_ms(check.now(), 60_000))).await;
    for (n, (_, message)) in (20..).zip(hostile_messages()) {
        check.put_one(&letter_of(message, n)).await;
    }
    let before = everything(&check).await;
    let statistics = check.store.stats(Filter::new()).await.expect("stats answers");
    for letter in &before {
        check.delete(letter.id).await;
    }
    let receipts = restore(&check, &before).await;
    assert!(receipts.iter().all(|receipt| *receipt == Receipt::Stored), "{receipts:?}");
    assert_eq!(everything(&check).await, before);
    let restored = check.store.stats(Filter::new()).await.expect("stats answers");
    assert_eq!(restored, statistics);
}

/// Every field of a letter and of its state comes back, whole and in lists.
pub async fn every_field_is_restored<F: StoreFixture>(check: Check<F>) {
    let letters = complete_letters();
    assert_eq!(restore(&check, &letters).await, [Receipt::Stored; 2]);
    for letter in &letters {
        assert_eq!(check.get(letter.id).await, *letter);
        let shown = check.list(&Filter::new().with_id(letter.id), Order::OldestFirst, 2).await;
        assert_eq!(shown, [letter.summary()]);
    }
}

/// Every status is restored, with what belongs to it and nothing else.
pub async fn every_status_is_restored<F: StoreFixture>(check: Check<F>) {
    let due = in_ms(check.now(), 60_000);
    let letters: Vec<_> = (0..)
        .zip(Status::ALL)
        .map(|(n, status)| {
            let mut letter = letter(n);
            let state = &mut letter.state;
            state.status = *status;
            state.resolution = (*status == Status::Resolved).then_some(Resolution::Duplicate);
            state.due = matches!(status, Status::Pending | Status::Retrying).then_some(due);
            state.retry_count = 7;
            state.replays = 3;
            state.last_retry_at = Some(check.now());
            state.seen = 2;
            state.created_at = in_ms(check.now(), n);
            state.updated_at = in_ms(check.now(), n + 5);
            state.operation = Some(OperationId::of("somebody", check.now(), n));
            letter
        })
        .collect();
    restore(&check, &letters).await;
    for mut expected in letters {
        // Claims and operations are of the store that the letter was read from, and are not restored.
        if expected.state.status == Status::Replaying {
            expected.state.status = Status::Pending;
        }
        expected.state.operation = None;
        assert_eq!(check.get(expected.id).await, expected);
    }
}

/// A state that does not fit together is put in order.
pub async fn an_odd_state_is_put_in_order<F: StoreFixture>(check: Check<F>) {
    let with = |n, change: fn(&mut LetterState)| {
        let mut letter = letter(n);
        change(&mut letter.state);
        letter
    };
    let letters = [
        with(0, |state| state.status = Status::Resolved),
        with(1, |state| state.resolution = Some(Resolution::Succeeded)),
        with(2, |state| state.status = Status::Retrying),
    ];
    restore(&check, &letters).await;
    assert_eq!(check.state(letters[0].id).await.resolution, Some(Resolution::Dismissed));
    assert_eq!(check.state(letters[1].id).await.resolution, None);
    check.tick().await;
    let claim = check.claim_one().await;
    assert_eq!((claim.letter.id, claim.continues), (letters[2].id, true), "it is due");
}

/// Restoring again changes nothing.
pub async fn restoring_may_be_repeated<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury(4).await.iter().map(|letter| letter.id).collect();
    check.mark(ids[0], Mark::Quarantined).await;
    check.enqueue(delayed_retry(&letter(9), 2, in_ms(check.now(), 60_000))).await;
    let before = everything(&check).await;
    for _ in 0..2 {
        let receipts = restore(&check, &before).await;
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Unchanged), "{receipts:?}");
        assert_eq!(everything(&check).await, before);
    }
}

/// Later events outweigh restored state.
pub async fn later_deaths_are_not_taken_back<F: StoreFixture>(check: Check<F>) {
    let old = check.bury(2).await;
    check.put_one(&died_again(&old[0])).await;
    check.mark(old[1].id, Mark::Resolved).await;
    let before = everything(&check).await;
    assert_eq!(restore(&check, &old).await, [Receipt::Superseded, Receipt::Unchanged]);
    assert_eq!(everything(&check).await, before);
    let later = died_again(&died_again(&old[0]));
    assert_eq!(restore(&check, std::slice::from_ref(&later)).await, [Receipt::Reopened]);
    assert_eq!(check.get(later.id).await.generation, 2);
}

/// A letter that was handled after a later death than the one in the store is not sent back for that death (G6).
pub async fn a_resolved_letter_of_a_later_death_stays_resolved<F: StoreFixture>(check: Check<F>) {
    let old = check.bury(2).await;
    check.enqueue(delayed_retry(&letter(9), 2, in_ms(check.now(), 60_000))).await;
    let resolved = |letter: &DeadLetter| {
        let mut later = died_again(letter);
        later.state.status = Status::Resolved;
        later.state.resolution = Some(Resolution::Succeeded);
        later
    };
    let mut record = resolved(&letter(9));
    // A record waits for its first death, which is generation 0.
    record.generation = 0;
    for (n, later) in [resolved(&old[0]), resolved(&old[1]), record].iter().enumerate() {
        if n == 1 {
            // Whoever holds a claim of the death before holds it no longer.
            check.start(OperationSpec::replay(Filter::new())).await;
            assert_eq!(check.claim_one().await.letter.id, old[1].id);
        }
        assert_eq!(restore(&check, std::slice::from_ref(later)).await, [Receipt::Reopened]);
        let now = check.get(later.id).await;
        assert_eq!((now.generation, now.state.status), (later.generation, Status::Resolved));
        assert_eq!((now.state.resolution, now.state.due), (Some(Resolution::Succeeded), None));
        assert_eq!(restore(&check, std::slice::from_ref(later)).await, [Receipt::Unchanged]);
    }
    assert_eq!(check.count(Filter::new().with_status(Status::Resolved)).await, 3);
    // A writer of deaths can say nothing of the kind.
    let again = resolved(&resolved(&old[0]));
    assert_eq!(check.put_one(&again).await, Receipt::Reopened);
    assert_eq!(check.state(again.id).await.status, Status::Pending);
}

/// Another message with the same identity is kept beside the one that is there.
pub async fn a_restored_conflict_is_kept<F: StoreFixture>(check: Check<F>) {
    let one = check.bury(1).await.remove(0);
    let other = one.clone().with_message(Message::new("s", "other"));
    let second = other.id.conflicting(&other.message);
    for _ in 0..2 {
        let receipts = restore(&check, std::slice::from_ref(&other)).await;
        assert_eq!(receipts, [Receipt::Conflicting(second)]);
    }
    assert_eq!(check.count(Filter::new()).await, 2);
}

/// A letter in somebody's hands stays in them.
pub async fn a_claim_is_left_alone<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let before = check.get(id).await;
    check.replay().await;
    let claim = check.claim_one().await;
    assert_eq!(restore(&check, &[before]).await, [Receipt::Unchanged]);
    assert_eq!(check.status(id).await, Status::Replaying);
    check.succeed(&claim).await;
}

/// A letter that is restored from a running replay is pending; it can be replayed, and its claim is not restored.
pub async fn a_replaying_letter_becomes_pending<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    check.replay().await;
    let claim = check.claim_one().await;
    let running = check.get(id).await;
    check.outlast_leases().await;
    check.delete(id).await;
    restore(&check, &[running]).await;
    let state = check.state(id).await;
    assert_eq!((state.status, state.operation, state.due), (Status::Pending, None, None));
    assert!(!check.extend(claim.token).await);
    assert!(check.claim(1).await.is_empty());
    check.replay().await;
    assert!(check.claim_one().await.token.fence > claim.token.fence);
}

/// A restored record goes on to wait, and is no death.
pub async fn a_record_is_restored_as_a_record<F: StoreFixture>(check: Check<F>) {
    let due = in_ms(check.now(), 100);
    check.enqueue(delayed_retry(&letter(1), 2, due)).await;
    let record = check.get(letter(1).id).await;
    check.delete(record.id).await;
    restore(&check, &[record]).await;
    check.pass(Duration::from_millis(150)).await;
    assert!(check.claim_one().await.continues);
    assert_eq!(check.put_one(&letter(1)).await, Receipt::Reopened, "its first death is news");
}

/// A record that is restored does not take a death back.
pub async fn a_restored_record_is_outweighed_by_its_death<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&letter(1), 2, check.now())).await;
    let record = check.get(letter(1).id).await;
    check.put_one(&letter(1)).await;
    let before = check.get(record.id).await;
    assert_eq!(restore(&check, &[record]).await, [Receipt::Unchanged]);
    assert_eq!(check.get(before.id).await, before);
}

/// An edited letter knows its original death after it was restored, and the original letter knows the edited one.
pub async fn an_edit_is_restored<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let edit = Edit::new().payload("[]");
    let edited = check.store.edit(original.id, edit, by()).await.expect("edit answers");
    check.delete(original.id).await;
    restore(&check, std::slice::from_ref(&edited)).await;
    assert_eq!(check.put_one(&original).await, Receipt::Unchanged);
    assert_eq!(check.get(original.id).await, edited);
    check.delete(original.id).await;
    check.put_one(&original).await;
    let before = check.get(original.id).await;
    assert_eq!(restore(&check, &[edited]).await, [Receipt::Unchanged]);
    assert_eq!(check.get(original.id).await, before);
}

/// The writer of a death cannot claim that it was edited.
pub async fn a_writer_restores_nothing<F: StoreFixture>(check: Check<F>) {
    let original = check.bury(1).await.remove(0);
    let edit = Edit::new().payload("[]");
    let edited = check.store.edit(original.id, edit, by()).await.expect("edit answers");
    check.delete(original.id).await;
    check.put_one(&original).await;
    let second = original.id.conflicting(&edited.message);
    assert_eq!(check.put_one(&edited).await, Receipt::Conflicting(second));
    assert!(check.state(second).await.edited_from.is_empty());
    // Nor where nothing is there. Time goes on in between: no real clock has one letter deleted twice at the same moment, by which
    // copies in the archive are told apart.
    check.tick().await;
    check.delete(original.id).await;
    assert_eq!(check.put_one(&edited).await, Receipt::Stored);
    assert!(check.state(original.id).await.edited_from.is_empty());
}

/// Restored letters are claimed, listed and counted like any other.
pub async fn a_restored_letter_is_a_letter<F: StoreFixture>(check: Check<F>) {
    let mut due = letter(1);
    due.state.due = Some(check.now());
    restore(&check, &[due.clone(), letter(2)]).await;
    let claim = check.claim_one().await;
    assert_eq!(claim.letter.id, due.id);
    let released = Finish::Released { after: Duration::ZERO };
    check.finish(claim.token, released).await;
    assert_eq!(check.replay().await.progress.total, 2);
    assert_eq!(check.count(Filter::new().with_status(Status::Pending)).await, 2);
}

/// Restored letters are merged too if the store keeps letters of the same original as one.
pub async fn restored_copies_are_merged<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let one = letter(1);
    let copy = letter_of(one.message.clone(), 2);
    for _ in 0..2 {
        let receipts = restore(&check, &[one.clone(), copy.clone()]).await;
        assert_eq!(receipts[1], Receipt::Merged(one.id));
        assert_eq!((check.count(Filter::new()).await, check.state(one.id).await.seen), (1, 2));
    }
}

/// A copy of a letter that was handled, of which nothing is to be done, leaves it so.
pub async fn a_resolved_copy_is_merged_into_a_resolved_letter<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let resolved = |mut letter: DeadLetter| {
        letter.state.status = Status::Resolved;
        letter.state.resolution = Some(Resolution::Succeeded);
        letter
    };
    let one = resolved(letter(1));
    let copy = resolved(letter_of(one.message.clone(), 2));
    let receipts = restore(&check, &[one.clone(), copy.clone()]).await;
    assert_eq!(receipts[1], Receipt::Merged(one.id));
    assert_eq!(check.state(one.id).await.status, Status::Resolved);
    // What still waits is not taken back by a copy.
    let waiting = letter(5);
    let copy = resolved(letter_of(waiting.message.clone(), 6));
    restore(&check, &[waiting.clone(), copy]).await;
    assert_eq!(check.state(waiting.id).await.status, Status::Pending);
}
