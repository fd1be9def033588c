//! The automatic schedule: a few letters at a time, once per interval, whoever asks.

use std::time::Duration;

use dlq_core::store::{Mark, OperationSpec, Schedule, ScheduleRun};
use dlq_core::{ErrorClass, Filter, Status};

use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, letter};

const EVERY: Duration = Duration::from_millis(500);

fn schedule() -> Schedule {
    Schedule::enabled().every(EVERY)
}

async fn run<F: StoreFixture>(check: &Check<F>, schedule: Schedule) -> (u64, Duration) {
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    check.store.run_schedule(run).await.expect("run_schedule answers")
}

/// A schedule that is not enabled never runs.
pub async fn a_disabled_schedule_never_runs<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    assert_eq!(run(&check, Schedule::default()).await, (0, Duration::MAX));
    assert!(check.claim(10).await.is_empty());
}

/// A run makes letters due and counts them as sent back, but not as replayed by an operator.
pub async fn a_run_makes_letters_due<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    assert_eq!(run(&check, schedule()).await.0, 1);
    let state = check.state(letter.id).await;
    assert_eq!(state.status, Status::Pending);
    assert!(state.due.is_some());
    assert_eq!((state.retry_count, state.replays, state.operation), (1, 0, None));
    let claim = check.claim_one().await;
    check.die(&claim).await;
    assert_eq!(check.state(letter.id).await.retry_count, 1);
}

/// It runs once per interval, whoever asks and however often.
pub async fn it_runs_once_per_interval<F: StoreFixture>(check: Check<F>) {
    check.bury(3).await;
    assert_eq!(run(&check, schedule().batch(1)).await, (1, EVERY));
    check.pass(EVERY / 4).await;
    let (count, left) = run(&check, schedule().batch(1)).await;
    assert_eq!(count, 0);
    assert!(left <= EVERY * 3 / 4, "{left:?}");
    if check.controls_time() {
        assert_eq!(left, EVERY * 3 / 4);
    }
    check.pass(EVERY).await;
    assert_eq!(run(&check, schedule().batch(1)).await.0, 1);
}

/// Each consumer has its own interval and its own letters.
pub async fn each_consumer_has_its_own_schedule<F: StoreFixture>(check: Check<F>) {
    check.bury(2).await;
    let mut other = letter(7);
    other.consumer = "audit.write".to_owned();
    check.put_one(&other).await;
    assert_eq!(run(&check, schedule()).await.0, 2);
    let audit = ScheduleRun { consumer: other.consumer, schedule: schedule() };
    let (count, _) = check.store.run_schedule(audit).await.expect("run_schedule answers");
    assert_eq!(count, 1);
}

/// A batch takes the oldest.
pub async fn a_batch_takes_the_oldest<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(5).await;
    assert_eq!(run(&check, schedule().batch(2)).await.0, 2);
    let claimed: Vec<_> = check.claim(10).await.iter().map(|claim| claim.letter.id).collect();
    assert_eq!(claimed, [letters[0].id, letters[1].id]);
}

/// Permanent errors are sent back only on request.
pub async fn permanent_errors_are_left_alone<F: StoreFixture>(check: Check<F>) {
    let mut permanent = letter(1);
    permanent.class = ErrorClass::Permanent;
    check.put_one(&permanent).await;
    assert_eq!(run(&check, schedule()).await.0, 0);
    check.pass(EVERY).await;
    assert_eq!(run(&check, schedule().all_classes()).await.0, 1);
}

/// A letter that reached the cap stays visible and is skipped; it does not take another's place.
pub async fn a_letter_at_the_cap_is_skipped<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(2).await;
    // A batch of one: a letter at the cap that were counted would leave no room for the other.
    let capped = || schedule().max_retries(1).batch(1);
    assert_eq!(run(&check, capped()).await.0, 1);
    let claim = check.claim_one().await;
    check.die(&claim).await;
    check.pass(EVERY).await;
    assert_eq!(run(&check, capped()).await.0, 1);
    assert_eq!(check.claim_one().await.letter.id, letters[1].id);
    assert_eq!(check.status(letters[0].id).await, Status::Pending);
}

/// Deaths that were only heard of are left to people.
pub async fn unconfirmed_deaths_are_left_alone<F: StoreFixture>(check: Check<F>) {
    let mut heard_of = letter(1);
    heard_of.confirmed = false;
    check.put_one(&heard_of).await;
    assert_eq!(run(&check, schedule()).await.0, 0);
}

/// Letters that are arranged, quarantined, resolved or held by an operation are left alone.
pub async fn only_idle_letters_are_scheduled<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury(5).await;
    check.mark(letters[0].id, Mark::Quarantined).await;
    check.mark(letters[1].id, Mark::Resolved).await;
    let held = OperationSpec::replay(Filter::new().with_id(letters[2].id));
    check.start(held).await;
    assert_eq!(run(&check, schedule()).await.0, 2);
    check.pass(EVERY).await;
    assert_eq!(run(&check, schedule()).await.0, 0, "they are due already");
}

/// A letter that is due by the schedule waits for an operation that takes it over.
pub async fn an_operation_takes_over_what_is_scheduled<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    run(&check, schedule()).await;
    let operation = check.replay().await;
    assert_eq!(operation.progress.total, 1);
    let state = check.state(letter.id).await;
    assert_eq!((state.due, state.operation), (None, Some(operation.id)));
    assert_eq!(check.claim(10).await.len(), 1);
}
