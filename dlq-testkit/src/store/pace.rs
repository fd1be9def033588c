//! Rates and canaries: how fast an operation sends, and when it stops by itself.

use std::time::Duration;

use dlq_core::store::{
    AuditRequest, Control, ItemOutcome, Mark, OperationSpec, OperationState, Pace,
};
use dlq_core::{Filter, OperationId, StoreErrorKind};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::CONSUMER;

fn all() -> OperationSpec {
    OperationSpec::replay(Filter::new())
}

fn canary(count: u32) -> OperationSpec {
    OperationSpec::replay(Filter::new()).canary(count)
}

/// Only the canary is sent until its outcome is known; when it succeeds, the rest follows.
pub async fn a_canary_goes_first<F: StoreFixture>(check: Check<F>) {
    check.bury(6).await;
    let operation = check.start(canary(2)).await;
    assert_eq!(operation.state, OperationState::Canary);
    let claims = check.claim(10).await;
    assert_eq!(claims.len(), 2);
    check.succeed(&claims[0]).await;
    assert!(check.claim(10).await.is_empty(), "one of the canary is still out");
    check.succeed(&claims[1]).await;
    assert_eq!(check.claim(10).await.len(), 4);
    assert_eq!(check.operation(&operation).await.state, OperationState::Running);
}

/// When a letter of the canary fails again the operation stops by itself.
pub async fn a_failed_canary_stops_the_operation<F: StoreFixture>(check: Check<F>) {
    check.bury(5).await;
    let operation = check.start(canary(2)).await;
    let claims = check.claim(10).await;
    check.die(&claims[0]).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Stopped);
    check.succeed(&claims[1]).await;
    assert!(check.claim(10).await.is_empty());
    assert_eq!(check.operation(&operation).await.state, OperationState::Stopped);
}

/// An operation that stopped by itself can be resumed, without a canary, or cancelled.
pub async fn a_stopped_operation_can_be_resumed<F: StoreFixture>(check: Check<F>) {
    check.bury(4).await;
    let operation = check.start(canary(1)).await;
    let claim = check.claim_one().await;
    check.die(&claim).await;
    assert_eq!(check.control(&operation, Control::Resume).await.state, OperationState::Running);
    let claims = check.claim(10).await;
    assert_eq!(claims.len(), 3);
    check.die(&claims[0]).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Running);
}

/// A canary that is paused goes on as a canary.
pub async fn a_paused_canary_stays_a_canary<F: StoreFixture>(check: Check<F>) {
    check.bury(5).await;
    let operation = check.start(canary(2)).await;
    let claim = check.claim_one().await;
    check.control(&operation, Control::Pause).await;
    check.succeed(&claim).await;
    assert!(check.claim(10).await.is_empty());
    assert_eq!(check.control(&operation, Control::Resume).await.state, OperationState::Canary);
    assert_eq!(check.claim(10).await.len(), 1);
}

/// A canary that fails while its operation is paused stops the operation when it is resumed: not one of the others is
/// sent before it is resumed once more.
pub async fn a_canary_that_fails_while_paused_stops_the_rest<F: StoreFixture>(check: Check<F>) {
    check.bury(6).await;
    let operation = check.start(canary(2)).await;
    let claims = check.claim(10).await;
    check.control(&operation, Control::Pause).await;
    check.die(&claims[0]).await;
    check.succeed(&claims[1]).await;
    assert_eq!(check.operation(&operation).await.state, OperationState::Paused);
    assert_eq!(check.control(&operation, Control::Resume).await.state, OperationState::Stopped);
    assert!(check.claim(10).await.is_empty(), "the canary failed");
    assert_eq!(check.control(&operation, Control::Resume).await.state, OperationState::Running);
    assert_eq!(check.claim(10).await.len(), 4);
}

/// A letter that is skipped is no canary: another goes in its place.
pub async fn a_skipped_letter_is_no_canary<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(4).await;
    check.start(canary(1)).await;
    check.mark(letters[0].id, Mark::Quarantined).await;
    let claims = check.claim(10).await;
    assert_eq!(claims.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [letters[1].id]);
}

/// A canary larger than the operation is the whole operation.
pub async fn a_large_canary_is_the_whole_operation<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.start(canary(50)).await;
    for claim in check.claim(10).await {
        check.succeed(&claim).await;
    }
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// A rate is kept over any stretch of time, however often somebody claims.
pub async fn a_rate_is_kept<F: StoreFixture>(check: Check<F>) {
    // Where real time passes nobody can say how many letters are allowed at this moment.
    if !check.controls_time() {
        return;
    }
    check.bury(100).await;
    let pace = Pace::per_second(10).expect("it is above zero");
    check.start(OperationSpec::replay(Filter::new()).pace(pace)).await;
    let mut claimed = check.claim(100).await.len();
    assert_eq!(claimed, 1, "the first goes at once");
    for step in 1..=40_usize {
        check.pass(Duration::from_millis(50)).await;
        claimed += check.claim(3).await.len();
        let allowed = 1 + step / 2;
        assert_eq!(claimed, allowed, "after {} ms", step * 50);
    }
}

/// A pause is not made up for by more than a tenth of a second's worth, whatever the room.
pub async fn a_rate_does_not_save_up<F: StoreFixture>(check: Check<F>) {
    if !check.controls_time() {
        return;
    }
    check.bury(100).await;
    let pace = Pace::per_second(100).expect("it is above zero");
    check.start(OperationSpec::replay(Filter::new()).pace(pace)).await;
    check.pass(Duration::from_secs(3_600)).await;
    let mut claimed = 0;
    for _ in 0..20 {
        claimed += check.claim(3).await.len();
    }
    assert_eq!(claimed, 10);
}

/// A consumer that takes only part of what the rate allows leaves the rest to the others.
pub async fn a_rate_is_not_used_up_in_vain<F: StoreFixture>(check: Check<F>) {
    if !check.controls_time() {
        return;
    }
    for n in 0..30 {
        let mut letter = crate::fixtures::letter(n);
        if n >= 3 {
            letter.consumer = "audit.write".to_owned();
        }
        check.put_one(&letter).await;
    }
    let pace = Pace::per_second(100).expect("it is above zero");
    check.start(OperationSpec::replay(Filter::new()).pace(pace)).await;
    check.pass(Duration::from_secs(60)).await;
    assert_eq!(check.claim(100).await.len(), 3);
    let audit = || dlq_core::store::ClaimRequest::due(["audit.write"], 100, check.lease());
    assert_eq!(check.claim_by(audit()).await.len(), 7);
    assert!(check.claim_by(audit()).await.is_empty());
}

/// The rate of an operation that sends can be changed, and taken away. The next letters keep to it, and whoever waits for
/// one is told.
pub async fn a_rate_can_be_changed<F: StoreFixture>(check: Check<F>) {
    check.bury(30).await;
    let slow: Pace = "1/h".parse().expect("it is a rate");
    let operation = check.start(all().pace(slow)).await;
    assert_eq!(run_all(&check).await, 1, "the first goes at once");
    assert_eq!(run_all(&check).await, 0);
    let fast = Pace::per_second(100).expect("it is above zero");
    let set = check.set_pace(&operation, Some(fast)).await;
    assert_eq!((set.spec.pace, &set.spec.filter), (Some(fast), &operation.spec.filter));
    assert_eq!(check.operation(&operation).await, set);
    check.pass(Duration::from_millis(10)).await;
    let next = check.store.next_due(vec![CONSUMER.to_owned()]).await.expect("next_due answers");
    let soon = check.now().after(Duration::from_secs(60));
    assert!(next.is_some_and(|at| at < soon), "nobody waits for the hour to end");
    let claimed = run_all(&check).await;
    // More time may have passed than was waited for.
    assert!(claimed == 1 || claimed > 1 && !check.controls_time(), "{claimed}");
    check.set_pace(&operation, Some(slow)).await;
    check.pass(Duration::from_millis(100)).await;
    assert_eq!(run_all(&check).await, 0);
    check.set_pace(&operation, None).await;
    assert_eq!(run_all(&check).await, 29 - claimed);
    assert_eq!(check.operation(&operation).await.state, OperationState::Completed);
}

/// Claims what it is given, and handles it, so that no lease can end while the check goes on.
async fn run_all<F: StoreFixture>(check: &Check<F>) -> usize {
    let claims = check.claim(30).await;
    for claim in &claims {
        check.succeed(claim).await;
    }
    claims.len()
}

/// The same rate again changes nothing. An operation that has ended has no rate any more, and one that does not exist has none.
pub async fn a_rate_is_set_once<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let operation = check.start(all()).await;
    check.control(&operation, Control::Pause).await;
    let pace = Pace::per_second(5);
    let set = check.set_pace(&operation, pace).await;
    assert_eq!(set.state, OperationState::Paused);
    check.tick().await;
    assert_eq!(check.set_pace(&operation, pace).await, set);
    check.set_pace(&operation, None).await;
    let entries = check.store.audit(AuditRequest::latest(100).action("rate")).await;
    let entries = entries.expect("audit answers");
    let subjects: Vec<serde_json::Value> = entries
        .iter()
        .map(|entry| serde_json::from_str(&entry.subject).expect("it is JSON"))
        .collect();
    let rates: Vec<_> = subjects.iter().map(|subject| subject["rate"].as_str()).collect();
    assert_eq!(rates, [Some("none"), Some("5/s")]);
    assert!(entries.iter().all(|it| it.operation == Some(operation.id) && it.by == by()));
    check.control(&operation, Control::Cancel).await;
    let set = async |id, pace| {
        let set = check.store.set_pace(id, pace, by()).await;
        set.expect_err("it sends nothing").kind()
    };
    assert_eq!(set(operation.id, pace).await, StoreErrorKind::Conflict);
    assert_eq!(set(operation.id, None).await, StoreErrorKind::Conflict);
    let unknown = OperationId::from_bytes([9; 16]);
    assert_eq!(set(unknown, pace).await, StoreErrorKind::NotFound);
}

/// A claimer is told when the rate allows the next letter.
pub async fn the_next_release_can_be_waited_for<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    let pace = Pace::per_second(10).expect("it is above zero");
    let operation = check.start(OperationSpec::replay(Filter::new()).pace(pace)).await;
    let claim = check.claim_one().await;
    check.succeed(&claim).await;
    assert_eq!(check.operation(&operation).await.progress.with_outcome(ItemOutcome::Queued), 2);
    let next = check.store.next_due(vec![CONSUMER.to_owned()]).await.expect("next_due answers");
    let next = next.expect("there is something to wait for");
    if check.controls_time() {
        assert!(next > check.now() && next.since(check.now()) <= Duration::from_millis(100));
        assert!(check.claim(1).await.is_empty());
    }
    check.pass(Duration::from_millis(100)).await;
    let claimed = check.claim(10).await.len();
    // More time may have passed than was waited for.
    assert!(claimed == 1 || claimed == 2 && !check.controls_time(), "{claimed}");
}
