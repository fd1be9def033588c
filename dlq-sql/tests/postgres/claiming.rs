//! Claims and operations where several processes are at the same letters at once, as far as the suites leave it open.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Control, Finish, Finished, ItemOutcome, Letters as _,
    Maintenance as _, Mark, OperationSpec, OperationState, Operations as _, Pace, Schedule,
    ScheduleRun, Selection, Sink as _,
};
use dlq_core::{Filter, LetterId, OperationId, Resolution, Status};
use dlq_sql::postgres::PostgresStore;
use dlq_testkit::fixtures::{CONSUMER, died_again, letter};
use futures_util::future::join_all;
use sqlx::{Connection as _, Executor as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, Schema, available};

fn request(limit: u32) -> ClaimRequest {
    ClaimRequest::due([CONSUMER], limit, Duration::from_secs(600))
}

fn success() -> Finish {
    Finish::Resolved(Resolution::Succeeded)
}

async fn replay(store: &PostgresStore, spec: OperationSpec) -> OperationId {
    store.start(spec, Actor::new("ana")).await.unwrap().id
}

/// Runs one letter at a time until the operation is over; which ones.
async fn work(store: PostgresStore, operation: OperationId) -> Vec<LetterId> {
    let (mut run, began) = (Vec::new(), Instant::now());
    loop {
        let claims = store.claim(request(1)).await.unwrap();
        for claim in &claims {
            run.push(claim.letter.id);
            let finished = store.finish(vec![(claim.token, success())]).await.unwrap();
            assert_eq!(finished, [Finished::Applied]);
        }
        if claims.is_empty() {
            if store.operation(operation).await.unwrap().unwrap().state.is_final() {
                return run;
            }
            assert!(began.elapsed() < PATIENCE, "the operation goes on for ever");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Many who claim the same due letters at once are given each once, and nobody waits for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claimers_at_once_are_given_different_letters() {
    if !available() {
        return;
    }
    const LETTERS: u32 = 800;
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..u64::from(LETTERS)).map(letter).collect()).await.unwrap();
    let schedule = Schedule::enabled().batch(LETTERS).all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert_eq!(store.run_schedule(run).await.unwrap().0, u64::from(LETTERS));
    // Somebody has begun to claim some, and does not go on.
    let mut slow = schema.connect().await;
    let mut slow = slow.begin().await.unwrap();
    let locked =
        "SELECT FROM dlq_events ORDER BY available_at, created_at, letter_id LIMIT 100 FOR UPDATE";
    assert_eq!(slow.fetch_all(locked).await.unwrap().len(), 100);
    let mut claimers = JoinSet::new();
    for _ in 0..8 {
        let store = schema.store().await;
        claimers.spawn(async move {
            let mut given = Vec::new();
            loop {
                let claims = store.claim(request(10)).await.unwrap();
                given.extend(claims.iter().map(|claim| claim.letter.id));
                if claims.is_empty() {
                    return given;
                }
            }
        });
    }
    let given: Vec<_> = claimers.join_all().await.into_iter().flatten().collect();
    assert_eq!(given.len(), 700);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 700, "none was given to two");
    slow.rollback().await.unwrap();
    assert_eq!(store.claim(request(200)).await.unwrap().len(), 100);
}

/// Who releases letters of an operation passes over those that somebody is at, and comes back to them.
#[tokio::test]
async fn a_letter_that_somebody_is_at_is_released_later() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..10).map(letter).collect()).await.unwrap();
    let canary = OperationSpec::replay(Filter::new()).canary(8);
    let operation = replay(&store, canary).await;
    let mut other = schema.connect().await;
    let mut other = other.begin().await.unwrap();
    let locked = "SELECT FROM dlq_events WHERE item < 3 FOR UPDATE";
    assert_eq!(other.fetch_all(locked).await.unwrap().len(), 3);
    assert_eq!(store.claim(request(10)).await.unwrap().len(), 7);
    other.rollback().await.unwrap();
    assert_eq!(store.claim(request(10)).await.unwrap().len(), 1, "the canary is eight");
    let operation = store.operation(operation).await.unwrap().unwrap();
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Queued), 2);
}

/// Cancelled when ten were run, it has sent ten and what was in flight, says so, and the others are untouched.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_operation_has_sent_what_it_says() {
    if !available() {
        return;
    }
    const CLAIMERS: u64 = 4;
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..100).map(letter).collect()).await.unwrap();
    // So slowly that most letters are queued still when it is cancelled.
    let pace = Pace::per_second(10).unwrap();
    let operation = replay(&store, OperationSpec::replay(Filter::new()).pace(pace)).await;
    let mut claimers = JoinSet::new();
    for _ in 0..CLAIMERS {
        claimers.spawn(work(schema.store().await, operation));
    }
    let began = Instant::now();
    let at = loop {
        let progress = store.operation(operation).await.unwrap().unwrap().progress;
        let succeeded = progress.with_outcome(ItemOutcome::Succeeded);
        if succeeded >= 10 {
            break succeeded;
        }
        assert!(began.elapsed() < PATIENCE, "nothing is sent");
    };
    let cancelled = store.control(operation, Control::Cancel, Actor::new("ana")).await.unwrap();
    assert_eq!(cancelled.state, OperationState::Cancelled);
    let run: Vec<_> = claimers.join_all().await.into_iter().flatten().collect();
    let after = store.operation(operation).await.unwrap().unwrap();
    let sent = run.len() as u64;
    println!(
        "cancelled when {at} had succeeded: it said {} of 100 were sent, {sent} were, {} were left alone",
        cancelled.progress.sent(),
        after.progress.with_outcome(ItemOutcome::Skipped)
    );
    assert_eq!(run.iter().collect::<BTreeSet<_>>().len() as u64, sent, "none was run twice");
    assert_eq!(cancelled.progress.sent(), sent, "nothing was sent after it was cancelled");
    assert_eq!(after.progress.with_outcome(ItemOutcome::Succeeded), sent);
    assert_eq!(after.progress.with_outcome(ItemOutcome::Skipped), 100 - sent);
    assert!(after.progress.is_complete());
    let mut left = Filter::new();
    left.statuses = vec![Status::Pending];
    left.max_retries = Some(0);
    assert_eq!(store.count(left).await.unwrap(), 100 - sent);
    assert!(store.claim(request(10)).await.unwrap().is_empty());
    let again = replay(&store, OperationSpec::replay(Filter::new())).await;
    let again = store.operation(again).await.unwrap().unwrap();
    assert_eq!(again.progress.total, 100 - sent, "they belong to no operation");
}

/// A letter that dies again while its replay is being finished is pending, at the next generation, whoever is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_death_while_a_replay_is_finished_is_not_lost() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let (one, other) = (schema.store().await, schema.store().await);
    let (mut applied, mut stale) = (0, 0);
    for n in 0..60 {
        let before = letter(n);
        one.put(vec![before.clone()]).await.unwrap();
        let operation = replay(&one, OperationSpec::replay(Filter::new())).await;
        let claim = one.claim(request(1)).await.unwrap().remove(0);
        let death = died_again(&before);
        let finish = match n % 3 {
            0 => success(),
            1 => Finish::Released { after: Duration::from_secs(60) },
            _ => Finish::Dead(Box::new(death.clone())),
        };
        let (finished, put) = if n % 2 == 0 {
            tokio::join!(one.finish(vec![(claim.token, finish)]), other.put(vec![death]))
        } else {
            let (put, finished) =
                tokio::join!(other.put(vec![death]), one.finish(vec![(claim.token, finish)]));
            (finished, put)
        };
        put.unwrap();
        match finished.unwrap()[..] {
            [Finished::Applied] => applied += 1,
            _ => stale += 1,
        }
        let after = one.get(before.id).await.unwrap().unwrap();
        assert_eq!(
            (after.state.status, after.generation),
            (Status::Pending, before.generation + 1)
        );
        assert_eq!((after.state.due, after.state.operation), (None, None));
        let operation = one.operation(operation).await.unwrap().unwrap();
        assert_eq!(operation.state, OperationState::Completed);
        assert_eq!(operation.progress.total, 1);
        // Out of the way of the next round.
        one.mark(Selection::all(), Mark::Resolved, Actor::new("ana")).await.unwrap();
    }
    println!("finished first {applied} times, died first {stale} times");
}

/// Of many processes that look at once, one runs the schedule.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_runs_the_schedule() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..40).map(letter).collect()).await.unwrap();
    let schedule = Schedule::enabled().batch(5).all_classes();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, schedule) = (schema.store().await, schedule.clone());
        let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
        tasks.spawn(async move { store.run_schedule(run).await.unwrap().0 });
    }
    let mut counts = tasks.join_all().await;
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(store.claim(request(100)).await.unwrap().len(), 5);
}

/// The rate of an operation holds for all processes together, and so does its canary.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rate_and_a_canary_hold_for_all_processes_together() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    store.put((0..100).map(letter).collect()).await.unwrap();
    let stores = join_all((0..8).map(|_| schema.store())).await;
    let claim_all = || async {
        let claims = join_all(stores.iter().map(|store| store.claim(request(20)))).await;
        claims.into_iter().flat_map(Result::unwrap).collect::<Vec<_>>()
    };
    let canary = OperationSpec::replay(Filter::new()).limit(50).canary(3);
    let operation = replay(&store, canary).await;
    let claims = claim_all().await;
    assert_eq!(claims.len(), 3, "the canary");
    assert!(claim_all().await.is_empty(), "the others wait for its outcome");
    let finishes: Vec<_> = claims.iter().map(|claim| (claim.token, success())).collect();
    join_all(finishes.into_iter().map(|finish| store.finish(vec![finish]))).await;
    assert_eq!(claim_all().await.len(), 47, "the rest");
    let operation = store.operation(operation).await.unwrap().unwrap();
    assert_eq!(operation.progress.with_outcome(ItemOutcome::Released), 47);

    let hourly: Pace = "20/h".parse().unwrap();
    replay(&store, OperationSpec::replay(Filter::new()).pace(hourly)).await;
    assert_eq!(claim_all().await.len(), 1, "one at once, the next in three minutes");
    assert!(claim_all().await.is_empty());
}

/// Many letters are frozen and taken back, in pages: two who start at once share them out.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_operation_is_started_and_cancelled() {
    if !available() {
        return;
    }
    const LETTERS: u64 = 20_000;
    let schema = Schema::fresh();
    let store = schema.store().await;
    for chunk in 0..LETTERS / 1_000 {
        store.put((chunk * 1_000..(chunk + 1) * 1_000).map(letter).collect()).await.unwrap();
    }
    let began = Instant::now();
    let spec = OperationSpec::replay(Filter::new());
    let (one, other) = tokio::join!(
        store.start(spec.clone(), Actor::new("ana")),
        store.start(spec, Actor::new("bob"))
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    let total = one.progress.total + other.progress.total;
    assert_eq!(total, LETTERS, "they share them out");
    println!("{total} letters frozen after {:?}", began.elapsed());
    let claims = store.claim(request(10)).await.unwrap();
    assert_eq!(claims.len(), 10);
    let began = Instant::now();
    let (mut skipped, mut sent) = (0, 0);
    for started in [&one, &other] {
        let by = Actor::new("ana");
        // One that got no letters is complete.
        let Ok(cancelled) = store.control(started.id, Control::Cancel, by).await else { continue };
        assert_eq!(cancelled.progress.total, started.progress.total);
        skipped += cancelled.progress.with_outcome(ItemOutcome::Skipped);
        sent += cancelled.progress.sent();
    }
    println!("taken back after {:?}", began.elapsed());
    assert_eq!((skipped, sent), (LETTERS - 10, 10));
    let large = if one.progress.total > other.progress.total { one } else { other };
    let page = store.items(large.id, large.progress.total - 2, 10).await.unwrap();
    let why: Vec<_> = page.items.iter().map(|item| item.why.as_deref()).collect();
    assert!(why.iter().all(|why| *why == Some("cancelled")), "{why:?}");
}
