//! Many at once: each letter goes to one claimer, each death is one letter.

use std::collections::BTreeSet;

use dlq_core::store::{
    ClaimRequest, Claims, Finish, Finished, ItemOutcome, OperationSpec, OperationState, Operations,
    Receipt, Sink,
};
use dlq_core::{DeadLetter, Filter, LetterId, Resolution, Status, Timestamp};
use tokio::task::JoinSet;

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, delayed_retry, died_again, letter};

/// Runs `count` tasks side by side, each with a handle of its own, and gathers what they return.
async fn side_by_side<F: StoreFixture, R, T>(
    check: &Check<F>,
    count: u64,
    task: impl Fn(F::Store, u64) -> R,
) -> Vec<T>
where
    R: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut tasks = JoinSet::new();
    for n in 0..count {
        tasks.spawn(task(check.store.clone(), n));
    }
    tasks.join_all().await
}

/// Claims and finishes until nothing is left, and returns what it finished and what was taken from it meanwhile.
async fn work<S: Claims>(store: S) -> (Vec<LetterId>, Vec<LetterId>) {
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    loop {
        // Small batches keep all claimers at work at the same time.
        let request = ClaimRequest::due([CONSUMER], 7, std::time::Duration::from_secs(60));
        let claims = store.claim(request).await.expect("claim answers");
        if claims.is_empty() {
            return (done, lost);
        }
        let success = || Finish::Resolved(Resolution::Succeeded);
        let finishes: Vec<_> = claims.iter().map(|claim| (claim.token, success())).collect();
        let finished = store.finish(finishes).await.expect("finish answers");
        assert_eq!(finished.len(), claims.len());
        for (claim, finished) in claims.iter().zip(finished) {
            let ours = finished == Finished::Applied;
            if ours { &mut done } else { &mut lost }.push(claim.letter.id);
        }
    }
}

/// Works where nobody else writes, so that nothing may be taken away.
async fn work_undisturbed<S: Claims>(store: S) -> Vec<LetterId> {
    let (done, lost) = work(store).await;
    assert!(lost.is_empty(), "{lost:?} were claimed and taken away");
    done
}

/// Eight claimers at once are given each letter once.
pub async fn eight_claimers_get_each_letter_once<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury_at_once(300).await;
    let operation = check.replay().await;
    let done = side_by_side(&check, 8, |store, _| work_undisturbed(store)).await;
    let done: Vec<_> = done.into_iter().flatten().collect();
    assert_eq!(done.len(), 300, "nobody ran a letter that another ran");
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), letters.len());
    let operation = check.operation(&operation).await;
    assert_eq!(operation.state, OperationState::Completed);
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Succeeded), 300);
}

/// Eight claimers at once are given each letter once that is due by itself, and that no operation guards.
pub async fn eight_claimers_get_each_due_letter_once<F: StoreFixture>(check: Check<F>) {
    for n in 0..100 {
        let due = delayed_retry(&letter(n), 1, Timestamp::EPOCH);
        check.store.enqueue(due).await.expect("enqueue answers");
    }
    let done = side_by_side(&check, 8, |store, _| work_undisturbed(store)).await;
    let done: Vec<_> = done.into_iter().flatten().collect();
    assert_eq!(done.len(), 100, "nobody ran a letter that another ran");
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), 100);
}

/// Four replays of the same 200 letters at once run 200.
pub async fn four_replays_run_each_letter_once<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(200).await;
    let runs = side_by_side(&check, 4, |store, _| async move {
        let spec = OperationSpec::replay(Filter::new());
        let operation = store.start(spec, by()).await.expect("start answers");
        (operation.progress.total, work_undisturbed(store).await)
    })
    .await;
    assert_eq!(runs.iter().map(|(frozen, _)| frozen).sum::<u64>(), 200);
    let done: Vec<_> = runs.into_iter().flat_map(|(_, done)| done).collect();
    // A claimer may find nothing before another operation has started, and leave letters behind.
    let rest = work_undisturbed(check.store.clone()).await;
    assert_eq!(done.len() + rest.len(), 200);
    assert_eq!(done.iter().chain(&rest).collect::<BTreeSet<_>>().len(), 200);
    for operation in check.store.operations(10).await.expect("operations answers") {
        assert_eq!(operation.state, OperationState::Completed);
    }
}

/// The same death written by ten at once is one letter, stored once.
pub async fn one_death_written_by_many_is_one_letter<F: StoreFixture>(check: Check<F>) {
    let put = |store: F::Store, _| async move {
        store.put((0..20).map(letter).collect()).await.expect("put answers")
    };
    let receipts: Vec<_> = side_by_side(&check, 10, put).await.into_iter().flatten().collect();
    let stored = receipts.iter().filter(|receipt| **receipt == Receipt::Stored).count();
    let same = receipts.iter().filter(|receipt| **receipt == Receipt::Unchanged).count();
    assert_eq!((stored, same), (20, 180));
    assert_eq!(check.count(Filter::new()).await, 20);
}

/// Letters written by many at once are all there.
pub async fn nothing_written_by_many_is_lost<F: StoreFixture>(check: Check<F>) {
    let put = |store: F::Store, n: u64| async move {
        for chunk in 0..10 {
            let letters = (0..10).map(|m| letter(n * 1_000 + chunk * 10 + m)).collect();
            let receipts: Vec<Receipt> = store.put(letters).await.expect("put answers");
            assert!(receipts.iter().all(|receipt| *receipt == Receipt::Stored));
        }
    };
    side_by_side(&check, 8, put).await;
    assert_eq!(check.count(Filter::new()).await, 800);
    let stats = check.store.stats(Filter::new()).await.expect("stats answers");
    assert_eq!((stats.total, stats.with_status(Status::Pending)), (800, 800));
}

/// Deaths of one letter that arrive in any order end with the latest.
pub async fn the_latest_death_wins_in_any_order<F: StoreFixture>(check: Check<F>) {
    let put = |store: F::Store, n: u64| async move {
        let mut death: DeadLetter = letter(1);
        for _ in 0..n {
            death = died_again(&death);
        }
        store.put(vec![death]).await.expect("put answers")
    };
    side_by_side(&check, 12, put).await;
    let found = check.get(letter(1).id).await;
    assert_eq!((found.generation, found.state.status), (11, Status::Pending));
    assert_eq!(check.count(Filter::new()).await, 1);
}

/// While letters are claimed and finished, new ones are written and nothing is lost or hidden.
pub async fn writing_and_claiming_do_not_disturb_each_other<F: StoreFixture>(check: Check<F>) {
    let letters = check.bury_at_once(60).await;
    check.replay().await;
    side_by_side(&check, 6, |store, n| async move {
        if n % 2 == 0 {
            work(store).await;
            return;
        }
        for m in 0..30 {
            let death = if n == 1 { died_again(&letter(m)) } else { letter(n * 1_000 + m) };
            store.put(vec![death]).await.expect("put answers");
        }
    })
    .await;
    assert_eq!(check.count(Filter::new()).await, 120);
    // The success of the run before must not hide the death that was written meanwhile.
    for letter in &letters[..30] {
        let found = check.get(letter.id).await;
        assert_eq!((found.generation, found.state.status), (1, Status::Pending), "not hidden");
    }
    for letter in &letters[30..] {
        assert_eq!(check.status(letter.id).await, Status::Resolved);
    }
}
