//! Operations: a frozen set, sent back once, that can be watched and ended.

use std::collections::BTreeMap;

use dlq_core::store::{
    Control, Finish, Finished, ItemOutcome, Mark, Operation, OperationSpec, OperationState, Pace,
    Progress, Target,
};
use dlq_core::{Filter, LetterId, OperationId, Order, Reason, Status, StoreErrorKind};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, died_again, letter};

fn all() -> OperationSpec {
    OperationSpec::replay(Filter::new())
}

async fn frozen<F: StoreFixture>(check: &Check<F>, operation: &Operation) -> Vec<LetterId> {
    check.items(operation).await.iter().map(|item| item.letter).collect()
}

fn progress(counts: &[(ItemOutcome, u64)]) -> Progress {
    let total = counts.iter().map(|(_, count)| count).sum();
    Progress { total, by_outcome: BTreeMap::from_iter(counts.iter().copied()) }
}

/// A plan says what would be done, and does nothing.
pub async fn a_plan_changes_nothing<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(14).await;
    check.mark(letters[0].id, Mark::Quarantined).await;
    check.mark(letters[1].id, Mark::Resolved).await;
    check.start(OperationSpec::replay(Filter::new().with_id(letters[2].id))).await;
    let before = check.list(&Filter::new(), Order::OldestFirst, 100).await;
    let plan = check.store.plan(all()).await.expect("plan answers");
    assert_eq!((plan.count, plan.past_cap), (11, 0));
    // The pending one is held by the other operation.
    let ineligible = [(Status::Quarantined, 1), (Status::Resolved, 1), (Status::Pending, 1)];
    assert_eq!(plan.ineligible, BTreeMap::from(ineligible));
    let sample: Vec<_> = plan.sample.iter().map(|letter| letter.id).collect();
    let first: Vec<_> = letters[3..13].iter().map(|letter| letter.id).collect();
    assert_eq!(sample, first, "the first ten that would go");
    assert_eq!(check.list(&Filter::new(), Order::OldestFirst, 100).await, before);
    assert_eq!(check.store.operations(10).await.expect("operations answers").len(), 1);
}

/// A plan and the operation that follows agree, limit and order included.
pub async fn a_plan_and_its_operation_agree<F: StoreFixture>(check: Check<F>) {
    let letters: Vec<_> = check.bury(6).await.iter().map(|letter| letter.id).collect();
    let mut spec = all().limit(2);
    spec.order = Order::NewestFirst;
    let plan = check.store.plan(spec.clone()).await.expect("plan answers");
    let operation = check.start(spec).await;
    assert_eq!((plan.count, operation.progress.total), (2, 2));
    assert_eq!(frozen(&check, &operation).await, [letters[5], letters[4]]);
    let oldest = check.start(all().limit(3)).await;
    assert_eq!(frozen(&check, &oldest).await, letters[..3]);
    assert_eq!(check.start(all().limit(0)).await.progress.total, 0);
}

/// Starting freezes the set: every letter has a place in it, and none is sent yet.
pub async fn starting_freezes_the_set<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.replay().await;
    assert_eq!(operation.state, OperationState::Running);
    assert_eq!(operation.by, by());
    assert_eq!(operation.progress, progress(&[(ItemOutcome::Queued, 3)]));
    assert_eq!(check.operation(&operation).await, operation);
    for (index, item) in check.items(&operation).await.iter().enumerate() {
        assert_eq!((item.index, item.letter), (index as u64, letters[index].id));
        assert_eq!((item.generation, item.outcome), (0, ItemOutcome::Queued));
        let state = check.state(item.letter).await;
        assert_eq!((state.status, state.due), (Status::Pending, None));
        assert_eq!((state.operation, state.replays), (Some(operation.id), 0));
    }
}

/// Letters that arrive later are not part of it.
pub async fn letters_that_arrive_later_are_not_sent<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.replay().await;
    check.put_one(&letter(9)).await;
    assert_eq!(check.claim(10).await.len(), 2);
    assert_eq!(check.operation(&operation).await.progress.total, 2);
    assert_eq!(check.status(letter(9).id).await, Status::Pending);
}

/// Two operations never hold the same letter (G6).
pub async fn two_operations_never_share_a_letter<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let first = check.start(all().limit(2)).await;
    let second = check.replay().await;
    assert_eq!((first.progress.total, second.progress.total), (2, 1));
    assert_eq!(check.claim(10).await.len(), 3);
}

/// An operation without letters is complete at once.
pub async fn an_empty_operation_is_complete<F: StoreFixture>(check: Check<F>) {
    let operation = check.start(all().canary(5)).await;
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(operation.progress, Progress::default());
    assert!(check.items(&operation).await.is_empty());
}

/// Nothing is sent before a claimer is there, and no more than it can take.
pub async fn letters_are_released_to_claimers_only<F: StoreFixture>(check: Check<F>) {
    check.bury(5).await;
    let operation = check.replay().await;
    check.claim(2).await;
    use ItemOutcome::{Queued, Released};
    let found = check.operation(&operation).await;
    assert_eq!(found.progress, progress(&[(Queued, 3), (Released, 2)]));
    assert_eq!(found.state, OperationState::Running);
}

/// Letters that are due come first; an operation fills the room that they leave, and no more.
pub async fn due_letters_come_before_released_ones<F: StoreFixture>(check: Check<F>) {
    check.bury(5).await;
    for n in 10..12 {
        check.enqueue(crate::fixtures::delayed_retry(&letter(n), 1, check.now())).await;
    }
    let operation = check.replay().await;
    check.tick().await;
    let claims = check.claim(3).await;
    assert_eq!(claims.iter().filter(|claim| claim.continues).count(), 2);
    assert_eq!(check.operation(&operation).await.progress.with_outcome(ItemOutcome::Released), 1);
}

/// Two operations together release no more than a claimer can take; the one started first goes first.
pub async fn two_operations_share_the_room<F: StoreFixture>(check: Check<F>) {
    check.bury(6).await;
    let first = check.start(all().limit(3)).await;
    let second = check.replay().await;
    assert_eq!(check.claim(4).await.len(), 4);
    let released = async |operation: &Operation| {
        check.operation(operation).await.progress.with_outcome(ItemOutcome::Released)
    };
    assert_eq!((released(&first).await, released(&second).await), (3, 1));
}

/// Letters of another consumer wait for it, whatever their place in the order.
pub async fn each_consumer_takes_its_own_part<F: StoreFixture>(check: Check<F>) {
    for n in 0..6 {
        let mut letter = letter(n);
        // The letters of the other consumer stand first in the frozen order.
        if n < 3 {
            letter.consumer = "audit.write".to_owned();
        }
        check.put_one(&letter).await;
        check.tick().await;
    }
    let operation = check.replay().await;
    let claims = check.claim(2).await;
    assert_eq!(
        claims.iter().map(|c| c.letter.id).collect::<Vec<_>>(),
        [letter(3).id, letter(4).id]
    );
    assert_eq!(check.operation(&operation).await.progress.with_outcome(ItemOutcome::Queued), 4);
}

/// An operation is complete when every letter has its outcome, and not before.
pub async fn an_operation_completes_with_its_last_letter<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let operation = check.replay().await;
    let claims = check.claim(3).await;
    check.succeed(&claims[0]).await;
    check.die(&claims[1]).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Running);
    check.succeed(&claims[2]).await;
    let found = check.operation(&operation).await;
    assert_eq!(found.state, OperationState::Completed);
    let counts = [(ItemOutcome::Succeeded, 2), (ItemOutcome::FailedAgain, 1)];
    assert_eq!(found.progress, progress(&counts));
    assert!(found.progress.is_complete());
}

/// A letter that dies again can be replayed again, by another operation.
pub async fn a_letter_can_be_replayed_again<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    for replays in 1..=3 {
        check.replay().await;
        let claim = check.claim_one().await;
        assert_eq!(claim.letter.state.replays, replays);
        assert_eq!(claim.next_death().generation, replays);
        check.die(&claim).await;
    }
}

/// Replaying ends: past the cap a letter is set aside instead of sent (G7).
pub async fn a_letter_past_the_cap_is_quarantined<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let capped = || all().max_replays(2);
    for _ in 0..2 {
        check.start(capped()).await;
        let claim = check.claim_one().await;
        check.die(&claim).await;
    }
    let plan = check.store.plan(capped()).await.expect("plan answers");
    assert_eq!((plan.count, plan.past_cap), (1, 1));
    let operation = check.start(capped()).await;
    assert!(check.claim(10).await.is_empty(), "it is not sent");
    let found = check.get(letter.id).await;
    assert_eq!((found.state.status, found.reason), (Status::Quarantined, Reason::MaxReplays));
    assert_eq!((found.state.replays, found.state.operation, found.state.due), (2, None, None));
    let items = check.items(&operation).await;
    assert_eq!(items[0].outcome, ItemOutcome::Skipped);
    assert!(items[0].why.is_some(), "it says why");
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
    assert_eq!(check.start(capped()).await.progress.total, 0, "quarantined letters stay");
}

/// A cap of zero is none.
pub async fn a_cap_of_zero_is_none<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    for _ in 0..12 {
        check.start(all().max_replays(0)).await;
        let claim = check.claim_one().await;
        check.die(&claim).await;
    }
}

/// Letters past the cap do not take the place of those that can be sent.
pub async fn the_cap_uses_up_no_room<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    check.start(OperationSpec::replay(Filter::new().with_id(letters[0].id))).await;
    let claim = check.claim_one().await;
    check.die(&claim).await;
    check.start(all().max_replays(1)).await;
    let claimed: Vec<_> = check.claim(2).await.iter().map(|claim| claim.letter.id).collect();
    assert_eq!(claimed, [letters[1].id, letters[2].id]);
}

/// Cancelled at ten of a hundred, ten were sent and ninety are untouched (G6).
pub async fn cancelling_stops_at_once<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury_at_once(100).await;
    let mut untouched = BTreeMap::new();
    for letter in &letters {
        untouched.insert(letter.id, check.get(letter.id).await);
    }
    let operation = check.replay().await;
    let claims = check.claim(10).await;
    let cancelled = check.control(&operation, Control::Cancel).await;
    assert_eq!(cancelled.state, OperationState::Cancelled);
    assert!(check.claim(100).await.is_empty(), "no more are sent");
    for claim in &claims {
        check.succeed(claim).await;
        untouched.remove(&claim.letter.id);
    }
    use ItemOutcome::{Skipped, Succeeded};
    let found = check.operation(&operation).await;
    assert_eq!(found.progress, progress(&[(Succeeded, 10), (Skipped, 90)]));
    assert_eq!(found.state, OperationState::Cancelled);
    assert_eq!(untouched.len(), 90);
    for (id, before) in untouched {
        let mut after = check.get(id).await;
        // An operation may touch this time, and nothing else of a letter that it has not sent.
        after.state.updated_at = before.state.updated_at;
        assert_eq!(after, before);
    }
    let again = check.replay().await;
    assert_eq!(again.progress.total, 90, "they can be sent back again");
}

/// Cancelling takes back a letter that was released but that nobody runs.
pub async fn cancelling_takes_back_what_waits<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    let finish = dlq_core::store::Finish::Released { after: std::time::Duration::ZERO };
    check.finish(claim.token, finish).await;
    check.control(&operation, Control::Cancel).await;
    assert!(check.claim(1).await.is_empty());
    let state = check.state(claim.letter.id).await;
    assert_eq!((state.status, state.due, state.operation), (Status::Pending, None, None));
}

/// A letter whose lease had ended when its operation was cancelled is not sent again: nobody runs it (G6).
pub async fn g6_cancelling_takes_back_what_a_dead_claimer_left<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(3).await;
    let operation = check.replay().await;
    let claims = check.claim(2).await;
    assert_eq!(claims.len(), 2);
    check.outlast_leases().await;
    let cancelled = check.control(&operation, Control::Cancel).await;
    assert_eq!(cancelled.progress, progress(&[(ItemOutcome::Skipped, 3)]));
    assert!(check.claim(10).await.is_empty(), "no more are sent");
    for letter in &letters {
        let state = check.state(letter.id).await;
        assert_eq!((state.status, state.due, state.operation), (Status::Pending, None, None));
    }
    let late = Finish::Resolved(dlq_core::Resolution::Succeeded);
    assert_eq!(check.finish(claims[0].token, late).await, Finished::Stale);
    assert_eq!(check.replay().await.progress.total, 3, "they can be sent back again");
    let again = check.claim(3).await;
    assert!(again.iter().all(|claim| claim.letter.crashes == 0), "the crash went with the claim");
}

/// A lease that ends after the operation was cancelled makes its letter pending, and nobody is given it (G6).
pub async fn g6_a_claim_that_lapses_after_a_cancel_is_not_sent_again<F: StoreFixture>(
    check: Check<F>,
) {
    let letters = check.bury(4).await;
    let operation = check.replay().await;
    let claims = check.claim(3).await;
    check.control(&operation, Control::Cancel).await;
    check.succeed(&claims[0]).await;
    check.outlast_leases().await;
    // Letters of another operation are handed out all the same.
    check.put_one(&letter(7)).await;
    let other = check.start(OperationSpec::replay(Filter::new().with_id(letter(7).id))).await;
    let claimed = check.claim(2).await;
    assert_eq!(claimed.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [letter(7).id]);
    check.succeed(&claimed[0]).await;
    for letter in &letters[1..3] {
        let state = check.state(letter.id).await;
        assert_eq!((state.status, state.due, state.operation), (Status::Pending, None, None));
    }
    let found = check.operation(&operation).await;
    assert_eq!(found.state, OperationState::Cancelled);
    use ItemOutcome::{Skipped, Succeeded};
    assert_eq!(found.progress, progress(&[(Succeeded, 1), (Skipped, 3)]));
    assert_eq!(check.operation(&other).await.state, OperationState::Completed);
    let next = check.store.next_due(Vec::new()).await.expect("next_due answers");
    assert_eq!(next, None, "there is nothing left to wait for");
}

/// A letter that waits for a retry when its operation is cancelled goes on to its end, also over a lease that ends.
pub async fn a_retry_outlives_its_cancelled_operation<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    let (due, history) = (check.now(), claim.letter.history.clone());
    check.finish(claim.token, Finish::Retry { due, history, attempts: 1 }).await;
    check.control(&operation, Control::Cancel).await;
    let retry = check.claim_one().await;
    assert!(retry.continues);
    check.outlast_leases().await;
    let retry = check.claim_one().await;
    assert!(retry.continues);
    assert_eq!(retry.letter.crashes, 1);
    check.succeed(&retry).await;
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded]);
}

/// A paused operation sends nothing until it is resumed.
pub async fn pausing_holds_the_rest<F: StoreFixture>(check: Check<F>) {
    check.bury(4).await;
    let operation = check.replay().await;
    let claims = check.claim(1).await;
    let paused = check.control(&operation, Control::Pause).await;
    assert_eq!(paused.state, OperationState::Paused);
    assert!(check.claim(10).await.is_empty());
    check.succeed(&claims[0]).await;
    let resumed = check.control(&operation, Control::Resume).await;
    assert_eq!(resumed.state, OperationState::Running);
    assert_eq!(check.claim(10).await.len(), 3);
}

/// Asking for the state it has changes nothing; one that has ended cannot be steered.
pub async fn an_ended_operation_cannot_be_steered<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.start(all().limit(1)).await;
    let same = check.control(&operation, Control::Resume).await;
    assert_eq!(same, operation);
    let cancelled = check.control(&operation, Control::Cancel).await;
    check.tick().await;
    assert_eq!(check.control(&operation, Control::Cancel).await, cancelled);
    let steer = async |operation: &Operation, control| {
        let error = check.store.control(operation.id, control, by()).await;
        error.expect_err("it has ended").kind()
    };
    assert_eq!(steer(&operation, Control::Resume).await, StoreErrorKind::Conflict);
    assert_eq!(steer(&operation, Control::Pause).await, StoreErrorKind::Conflict);
    let completed = check.start(OperationSpec::replay(Filter::new().with_id(letter(9).id))).await;
    assert_eq!(steer(&completed, Control::Cancel).await, StoreErrorKind::Conflict);
}

/// An operation that does not exist is said to be unknown.
pub async fn an_unknown_operation_is_not_found<F: StoreFixture>(check: Check<F>) {
    let id = OperationId::from_bytes([9; 16]);
    assert_eq!(check.store.operation(id).await.expect("operation answers"), None);
    let error = check.store.items(id, 0, 1).await.expect_err("it is unknown");
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    let error = check.store.control(id, Control::Pause, by()).await.expect_err("it is unknown");
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
}

/// The outcomes come in pages.
pub async fn items_come_in_pages<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(7).await;
    let operation = check.replay().await;
    let whole = check.items(&operation).await;
    // A limit of 0 counts as 1, since a page of nothing would never come to an end.
    for limit in [0, 1, 3, 7, 8] {
        let mut items = Vec::new();
        let mut after = Some(0);
        while let Some(from) = after {
            let page = check.store.items(operation.id, from, limit).await.expect("items answers");
            assert!(!page.items.is_empty() && page.items.len() <= limit.max(1) as usize);
            items.extend(page.items);
            after = page.next;
        }
        assert_eq!(items, whole, "limit {limit}");
    }
    let past = check.store.items(operation.id, u64::MAX, 5).await.expect("items answers");
    assert_eq!((past.items.len(), past.next), (0, None));
}

/// Operations are listed with the one started last first.
pub async fn operations_are_listed_newest_first<F: StoreFixture>(check: Check<F>) {
    let mut started = Vec::new();
    for n in 0..4 {
        check.put_one(&letter(n)).await;
        started.push(check.replay().await.id);
    }
    started.reverse();
    let listed = check.store.operations(3).await.expect("operations answers");
    assert_eq!(listed.iter().map(|operation| operation.id).collect::<Vec<_>>(), started[..3]);
    assert!(check.store.operations(0).await.expect("operations answers").is_empty());
}

/// A letter that is marked, deleted or dies anew before its turn is skipped, with the reason.
pub async fn a_letter_that_changed_is_skipped<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(5).await;
    let operation = check.replay().await;
    check.mark(letters[0].id, Mark::Quarantined).await;
    check.mark(letters[1].id, Mark::Resolved).await;
    check.delete(letters[2].id).await;
    check.put_one(&died_again(&letters[3])).await;
    let items = check.items(&operation).await;
    for item in &items[..4] {
        assert_eq!(item.outcome, ItemOutcome::Skipped);
        assert!(item.why.as_ref().is_some_and(|why| !why.is_empty()), "it says why");
    }
    assert_eq!(check.state(letters[3].id).await.operation, None);
    let claims = check.claim(10).await;
    assert_eq!(claims.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [letters[4].id]);
    check.succeed(&claims[0]).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A replay that waits for a retry, and whose retry is delayed once more meanwhile, is the operation's still: it hears
/// of the end.
pub async fn a_retry_that_is_delayed_again_stays_in_its_operation<F: StoreFixture>(
    check: Check<F>,
) {
    let letters = check.bury(2).await;
    let operation = check.replay().await;
    for claim in check.claim(10).await {
        let due = check.now();
        let history = claim.letter.history.clone();
        check.finish(claim.token, Finish::Retry { due, history, attempts: 1 }).await;
    }
    for letter in &letters {
        // A retry of a replay has the generation that the replay would die next.
        let record = letter.clone().with_generation(1);
        check.enqueue(delayed_retry(&record, 5, check.now())).await;
        let state = check.state(letter.id).await;
        assert_eq!((state.status, state.operation), (Status::Retrying, Some(operation.id)));
    }
    check.delete(letters[0].id).await;
    let claim = check.claim_one().await;
    check.succeed(&claim).await;
    let outcomes = [ItemOutcome::Skipped, ItemOutcome::Succeeded];
    assert_eq!(check.outcomes(&operation).await, outcomes);
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A letter that fails again while it is being replayed ends up pending and visible, not hidden by the replay.
pub async fn a_failure_during_a_replay_is_not_hidden<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    check.put_one(&died_again(&letter)).await;
    let finish = dlq_core::store::Finish::Resolved(dlq_core::Resolution::Succeeded);
    check.finish(claim.token, finish).await;
    let found = check.get(letter.id).await;
    assert_eq!((found.state.status, found.generation), (Status::Pending, 1));
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::FailedAgain]);
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// The reason of a letter's next death stays with the operation, whatever becomes of the letter.
pub async fn an_operation_keeps_why_a_letter_failed<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    let error = check.die_of(&claim).await.error();
    check.delete(letter.id).await;
    let items = check.items(&operation).await;
    assert_eq!(items[0].outcome, ItemOutcome::FailedAgain);
    assert_eq!(items[0].why.as_deref(), Some(&*error));
}

/// A store refuses targets that it cannot serve rather than take the operation on.
pub async fn a_target_is_served_or_refused<F: StoreFixture>(check: Check<F>) {
    check.bury(1).await;
    let mut spec = all();
    spec.target = Target::Subject("elsewhere".to_owned());
    match check.store.start(spec.clone(), by()).await {
        Ok(operation) => assert_eq!(operation.spec.target, spec.target),
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Refused);
            let plan = check.store.plan(spec).await.expect_err("the plan says so too");
            assert_eq!(plan.kind(), StoreErrorKind::Refused);
            assert_eq!(check.state(letter(0).id).await.operation, None);
        }
    }
}

impl<F: StoreFixture> Check<F> {
    pub(super) async fn control(&self, operation: &Operation, control: Control) -> Operation {
        self.store.control(operation.id, control, by()).await.expect("control answers")
    }

    pub(super) async fn set_pace(&self, operation: &Operation, pace: Option<Pace>) -> Operation {
        self.store.set_pace(operation.id, pace, by()).await.expect("set_pace answers")
    }
}
