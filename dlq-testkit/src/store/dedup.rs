//! Deduplication by original id, where it is switched on.

use dlq_core::store::{ItemOutcome, Mark, OperationState, Receipt};
use dlq_core::{DeadLetter, Filter, Message, Status, StoreErrorKind};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, died_again, failed, letter_of};

/// A letter of the message that its producer called `id`, which stood at the `n`-th place.
fn copy(id: &str, n: u64) -> DeadLetter {
    let message = Message::new("orders.created", format!("copy {n}")).with_id(id);
    failed(letter_of(message, n), &format!("error of copy {n}"))
}

/// Unless it is switched on, every message has its own letter.
pub async fn it_is_off_unless_switched_on<F: StoreFixture>(check: Check<F>) {
    check.put(vec![copy("a", 1), copy("a", 2)]).await;
    assert_eq!(check.count(Filter::new()).await, 2);
}

/// A second copy is merged: the latest payload and error win, the first sight stays.
pub async fn a_second_copy_is_merged<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    assert_eq!(check.put_one(&copy("a", 1)).await, Receipt::Stored);
    let first = check.get(copy("a", 1).id).await;
    check.tick().await;
    assert_eq!(check.put_one(&copy("a", 2)).await, Receipt::Merged(first.id));
    let found = check.get(first.id).await;
    assert_eq!(found.message, copy("a", 2).message);
    assert_eq!(found.error(), copy("a", 2).error());
    assert_eq!((found.id, found.state.seen), (first.id, 2));
    assert_eq!(found.state.created_at, first.state.created_at);
    assert!(found.state.updated_at > first.state.updated_at);
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// A merged death that is written again changes nothing.
pub async fn a_merged_death_is_counted_once<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let id = copy("a", 1).id;
    check.put(vec![copy("a", 1), copy("a", 2), copy("a", 3)]).await;
    let before = check.get(id).await;
    assert_eq!(before.state.seen, 3);
    check.tick().await;
    assert_eq!(check.put_one(&copy("a", 2)).await, Receipt::Merged(id));
    assert_eq!(check.put_one(&copy("a", 3)).await, Receipt::Merged(id));
    assert_eq!(check.put_one(&copy("a", 1)).await, Receipt::Unchanged);
    assert_eq!(check.get(id).await, before);
}

/// A copy that was sent back before it came to the store is not sent again from there; the next one is.
pub async fn g6_a_copy_that_was_sent_back_before_is_not_pending<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let mut sent = copy("a", 2);
    (sent.state.status, sent.state.replays) = (Status::Sent, 1);
    check.put(vec![copy("a", 1), sent]).await;
    let state = check.state(copy("a", 1).id).await;
    assert_eq!((state.status, state.replays, state.seen), (Status::Sent, 1, 2));
    check.put_one(&copy("a", 3)).await;
    let state = check.state(copy("a", 1).id).await;
    assert_eq!((state.status, state.replays), (Status::Pending, 1));
}

/// A resolved letter of which another copy dies is pending again; a quarantined one stays set aside.
pub async fn a_copy_makes_a_letter_pending_again<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let id = copy("a", 1).id;
    check.put_one(&copy("a", 1)).await;
    check.mark(id, Mark::Resolved).await;
    check.put_one(&copy("a", 2)).await;
    let state = check.state(id).await;
    assert_eq!((state.status, state.resolution), (Status::Pending, None));
    check.mark(id, Mark::Quarantined).await;
    check.put_one(&copy("a", 3)).await;
    let state = check.state(id).await;
    assert_eq!((state.status, state.seen), (Status::Quarantined, 3));
}

/// A letter that took over an earlier death of another copy keeps its own generation.
pub async fn a_merged_letter_keeps_its_generation<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let again = died_again(&copy("a", 1));
    check.put_one(&again).await;
    assert_eq!(check.put_one(&copy("a", 2)).await, Receipt::Merged(again.id));
    let found = check.get(again.id).await;
    assert_eq!((found.generation, found.error()), (1, copy("a", 2).error()));
    assert_eq!(check.put_one(&copy("a", 1)).await, Receipt::Superseded);
}

/// Letters without an original id are distinct.
pub async fn letters_without_an_id_are_distinct<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let anonymous = |n| letter_of(Message::new("s", "x"), n);
    let receipts = check.put(vec![copy("", 1), copy("", 2), anonymous(3), anonymous(4)]).await;
    assert_eq!(receipts, [Receipt::Stored; 4]);
}

/// Subject, event, id and consumer are told apart, however they are put together.
pub async fn keys_are_not_mixed_up<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let of = |subject: &str, event: Option<&str>, id: &str, consumer: &str, n| {
        let mut message = Message::new(subject, "x").with_id(id);
        if let Some(event) = event {
            message = message.with_event(event);
        }
        letter_of(message, n).with_consumer(consumer)
    };
    // Joined by colons, some of these would read the same.
    let letters = vec![
        of("a", None, "b:c", "d", 1),
        of("a:b", None, "c", "d", 2),
        of("a", None, "b", "c:d", 3),
        of("x", Some("a"), "b:c", "d", 4),
        of("a", None, "b:c", "e", 5),
        of("a", None, "B:c", "d", 6),
    ];
    let receipts = check.put(letters.clone()).await;
    assert_eq!(receipts, [Receipt::Stored; 6]);
    let elsewhere = of("y", Some("a"), "b:c", "d", 7);
    assert_eq!(check.put_one(&elsewhere).await, Receipt::Merged(letters[3].id), "the event counts");
}

/// A copy that dies while the letter is being replayed is not hidden by the replay.
pub async fn a_copy_voids_a_claim<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    check.put_one(&copy("a", 1)).await;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    check.put_one(&copy("a", 2)).await;
    assert!(!check.extend(claim.token).await);
    assert_eq!(check.status(claim.letter.id).await, Status::Pending);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
}

/// After its letter was deleted a message that fails again has a new letter.
pub async fn a_deleted_letter_leaves_no_trace<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    check.put(vec![copy("a", 1), copy("a", 2)]).await;
    check.delete(copy("a", 1).id).await;
    assert_eq!(check.put_one(&copy("a", 3)).await, Receipt::Stored);
    assert_eq!(check.put_one(&copy("a", 2)).await, Receipt::Merged(copy("a", 3).id));
    assert_eq!(check.state(copy("a", 3).id).await.seen, 2);
}

/// A new death of a merged message is merged once more.
pub async fn a_merged_message_may_die_again<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let id = copy("a", 1).id;
    check.put(vec![copy("a", 1), copy("a", 2)]).await;
    let death = died_again(&copy("a", 2));
    assert_eq!(check.put_one(&death).await, Receipt::Merged(id));
    assert_eq!(check.put_one(&death).await, Receipt::Merged(id));
    let found = check.get(id).await;
    assert_eq!((found.state.seen, found.generation), (3, 1));
    assert_eq!(found.error(), death.error());
}

/// Retry records are not merged.
pub async fn records_are_not_merged<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    check.put_one(&copy("a", 1)).await;
    check.enqueue(delayed_retry(&copy("a", 2), 1, check.now())).await;
    assert_eq!(check.count(Filter::new()).await, 2);
    assert_eq!(check.status(copy("a", 2).id).await, Status::Retrying);
}

/// Copies that many write at once become one letter that was seen that often.
pub async fn copies_written_at_once_are_one_letter<F: StoreFixture>(check: Check<F>) {
    use dlq_core::store::Sink;
    let check = check.with_dedup().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..10 {
        let store = check.store.clone();
        tasks.spawn(async move { store.put(vec![copy("a", n)]).await.expect("put answers") });
    }
    tasks.join_all().await;
    let letters = check.ids(&Filter::new(), dlq_core::Order::NewestFirst).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(check.state(letters[0]).await.seen, 10);
}

/// Old duplicates are collapsed: the newest is kept, counts are summed, first sight and quarantine stay.
pub async fn old_duplicates_are_collapsed<F: StoreFixture>(check: Check<F>) {
    for n in 1..=3 {
        check.put_one(&copy("a", n)).await;
        check.tick().await;
    }
    check.put(vec![copy("b", 4), copy("c", 5), copy("", 6), copy("", 7)]).await;
    let first = check.state(copy("a", 1).id).await.created_at;
    check.replay().await;
    let claim = check.claim_one().await;
    assert_eq!(claim.letter.id, copy("a", 1).id);
    check.die(&claim).await;
    check.mark(copy("a", 2).id, Mark::Quarantined).await;
    assert_eq!(check.store.deduplicate(false).await.expect("deduplicate answers"), 2);
    let found = check.get(copy("a", 3).id).await;
    assert_eq!(found.message, copy("a", 3).message);
    assert_eq!((found.state.seen, found.state.retry_count), (3, 1));
    assert_eq!(found.state.created_at, first);
    assert_eq!(found.state.status, Status::Quarantined);
    assert_eq!(check.count(Filter::new()).await, 5);
    assert_eq!(check.store.deduplicate(false).await.expect("deduplicate answers"), 0);
    assert_eq!(check.put_one(&copy("a", 1)).await, Receipt::Merged(found.id), "still known");
    // Collapsing has switched deduplication on.
    assert_eq!(check.put_one(&copy("b", 9)).await, Receipt::Merged(copy("b", 4).id), "for good");
}

/// Collapsing more than half of all letters is refused unless forced.
pub async fn a_large_collapse_must_be_forced<F: StoreFixture>(check: Check<F>) {
    check.put((1..=4).map(|n| copy("a", n)).collect()).await;
    let operation = check.replay().await;
    let error = check.store.deduplicate(false).await.expect_err("three of four would go");
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert_eq!(check.count(Filter::new()).await, 4);
    check.tick().await;
    assert_eq!(check.put_one(&copy("a", 5)).await, Receipt::Stored, "it was not switched on");
    assert_eq!(check.store.deduplicate(true).await.expect("deduplicate answers"), 4);
    assert_eq!(check.count(Filter::new()).await, 1);
    let found = check.operation(&operation).await;
    assert_eq!(found.state, OperationState::Completed, "its letters were skipped");
}

/// A record of a death that was merged is out of date; one of a later death waits as any other.
pub async fn a_merged_death_is_not_retried<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    check.put(vec![copy("a", 1), copy("a", 2)]).await;
    check.enqueue(delayed_retry(&copy("a", 2), 1, check.now())).await;
    assert_eq!(check.count(Filter::new()).await, 1);
    let later = died_again(&copy("a", 2));
    check.enqueue(delayed_retry(&later, 1, check.now())).await;
    assert_eq!(check.status(later.id).await, Status::Retrying);
}

/// Letters that are being retried or that somebody holds are not collapsed.
pub async fn what_is_under_way_is_not_collapsed<F: StoreFixture>(check: Check<F>) {
    check.enqueue(delayed_retry(&copy("a", 1), 1, check.now())).await;
    check.tick().await;
    check.put_one(&copy("a", 2)).await;
    check.replay().await;
    let claims = check.claim(9).await;
    let finish = dlq_core::store::Finish::Retry {
        due: check.now(),
        history: claims[0].letter.history.clone(),
        attempts: 2,
    };
    check.finish(claims[0].token, finish).await;
    check.tick().await;
    check.put(vec![copy("a", 3), copy("b", 4), copy("c", 5)]).await;
    assert_eq!(check.store.deduplicate(false).await.expect("deduplicate answers"), 0);
    assert_eq!(check.status(copy("a", 1).id).await, Status::Retrying);
    check.succeed(&claims[1]).await;
    assert_eq!(check.store.deduplicate(false).await.expect("deduplicate answers"), 1);
    assert_eq!(check.status(copy("a", 1).id).await, Status::Retrying);
    assert_eq!(check.status(copy("a", 3).id).await, Status::Pending);
}
