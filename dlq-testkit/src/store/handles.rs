//! Checks that the state of a store belongs to the database and not to the handle that wrote it.
//!
//! Each check opens a second handle, as another process would. The first is still open then, so these checks say nothing
//! about a crash.

use dlq_core::store::{
    AuditRequest, Claims, ItemOutcome, Letters, Maintenance, Mark, OperationState, Operations,
};
use dlq_core::{CrashMarks, Filter, Order, Resolution};

use super::{Check, StoreFixture};
use crate::fixtures::{delayed_retry, letter};

/// A second handle finds the same letters and delayed retries, one of them compared byte for byte, and the audit entry of a
/// mark.
pub async fn a_second_handle_finds_letters<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(5).await;
    check.mark(letters[1].id, Mark::Quarantined).await;
    check.enqueue(delayed_retry(&letter(9), 2, check.now())).await;
    let before = check.list(&Filter::new(), Order::OldestFirst, 10).await;
    let whole = check.get(letters[3].id).await;
    let mut other = check;
    other.store = other.reopened().await;
    assert_eq!(other.list(&Filter::new(), Order::OldestFirst, 10).await, before);
    assert_eq!(other.get(letters[3].id).await, whole);
    let audit = other.store.audit(AuditRequest::latest(10)).await.expect("audit answers");
    assert_eq!(audit.len(), 1, "only the mark is audited");
}

/// Claims, their tokens and a running operation stay valid at a second handle.
pub async fn a_second_handle_finds_operations<F: StoreFixture>(check: Check<F>) {
    check.bury(4).await;
    let operation = check.replay().await;
    let claims = check.claim(2).await;
    check.succeed(&claims[0]).await;
    let mut other = check;
    other.store = other.reopened().await;
    // Four letters: one succeeded, one is still claimed by the first handle, so two are left.
    assert_eq!(other.claim(10).await.len(), 2, "a claim of the first handle still holds");
    other.succeed(&claims[1]).await;
    use ItemOutcome::{Released, Succeeded};
    let outcomes = [Succeeded, Succeeded, Released, Released];
    assert_eq!(other.outcomes(&operation).await, outcomes);
    assert_eq!(other.operation(&operation).await.state, OperationState::Running);
}

/// Each of two open handles sees the other's writes immediately.
pub async fn two_handles_see_the_same<F: StoreFixture>(check: Check<F>) {
    let other = check.reopened().await;
    let letters = check.bury(2).await;
    let found = other.get(letters[0].id).await.expect("get answers");
    assert_eq!(found, Some(check.get(letters[0].id).await));
    assert_eq!(other.count(Filter::new()).await.expect("count answers"), 2);
    let spec = dlq_core::store::OperationSpec::replay(Filter::new());
    let operation = other.start(spec, super::check::by()).await.expect("start answers");
    let claim = check.claim_one().await;
    let finish = dlq_core::store::Finish::Resolved(Resolution::Succeeded);
    let finished = other.finish(vec![(claim.token, finish)]).await.expect("finish answers");
    assert_eq!(finished, [dlq_core::store::Finished::Applied]);
    assert_eq!(check.outcomes(&operation).await, [ItemOutcome::Succeeded, ItemOutcome::Queued]);
}

/// A second handle counts a run that began at the first and did not end.
pub async fn a_second_handle_finds_crash_marks<F: StoreFixture>(check: Check<F>) {
    CrashMarks::begin(&check.store, letter(1).id).await.expect("begin answers");
    let other = check.reopened().await;
    let unfinished = CrashMarks::begin(&other, letter(1).id).await.expect("begin answers");
    assert_eq!(unfinished, 1, "the run at the first handle has not ended");
}
