//! Rates and canaries: how fast an operation sends, and when it stops by itself.

use std::time::Duration;

use dlq_core::Filter;
use dlq_core::store::{Control, ItemOutcome, Mark, OperationSpec, OperationState, Pace};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::CONSUMER;

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
