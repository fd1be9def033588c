//! What comes back from a store, through a consumer.

use dlq_core::store::{OperationState, Operations, Schedule};
use dlq_core::{DeliveredFrom, Delivery, Reason, Resolution, RetryPolicy, Status, StoreErrorKind};
use dlq_tower::consumer::{Consumer, ConsumerBuilder};
use dlq_tower::handler::{HandlerError, HandlerStack, handler};
use tokio::time::sleep;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position, soon};

/// Notes where it came from, generation and attempt of each run, and fails the first so many runs.
fn failing(log: &Log, store: &Store, retry: RetryPolicy, runs: usize) -> HandlerStack {
    let log = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let from = if delivery.delivered_from() == DeliveredFrom::Store { "store" } else { "main" };
        log.note(format!("{from} {}.{}", delivery.generation(), delivery.attempt()));
        let fails = log.lines().len() <= runs;
        async move { if fails { Err(HandlerError::msg("down")) } else { Ok(()) } }
    });
    work.policy(retry).clock(store.clock.clone()).build().unwrap()
}

fn consumer(broker: &Broker, store: &Store, work: HandlerStack) -> ConsumerBuilder {
    Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .clock(store.clock.clone())
}

/// Waits until the only letter has this status.
async fn until(store: &Store, status: Status) {
    soon(async {
        while store.statuses().await != [status] {
            sleep(SECOND / 10).await;
        }
    })
    .await;
}

/// G3: attempts survive the delayed retry.
#[tokio::test(start_paused = true)]
async fn g3_a_long_wait_is_spent_in_the_store_and_the_count_goes_on() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, policy(3, 60 * SECOND), 9);
    let running = Running::start(consumer(&broker, &store, work).build().unwrap());
    until(&store, Status::Pending).await;
    let report = running.stop().await;
    assert_eq!(log.lines(), ["main 0.1", "store 0.2", "store 0.3"]);
    assert_eq!(broker.settled(), [(0, "escalated")]);
    assert_eq!((report.retried, report.dead), (2, 1));
    let letter = &store.letters().await[0];
    assert_eq!((letter.reason, letter.attempts, letter.generation), (Reason::Exhausted, 3, 0));
    assert_eq!((letter.history.len(), letter.delayed_retries), (3, 2));
}

/// A due retry is not a second late: the source is told of it.
#[tokio::test(start_paused = true)]
async fn a_retry_in_the_store_runs_when_it_is_due() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, policy(3, SECOND * 125 / 2), 1);
    let consumer = consumer(&broker, &store, work).poll(3600 * SECOND);
    let running = Running::start(consumer.build().unwrap());
    let begun = tokio::time::Instant::now();
    log.until(|lines| lines.len() == 2).await;
    let waited = begun.elapsed();
    assert!(waited >= SECOND * 125 / 2 && waited < SECOND * 63, "{waited:?}");
    running.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_sent_back_begins_a_new_life() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, policy(2, SECOND), 5);
    let running = Running::start(consumer(&broker, &store, work).build().unwrap());
    until(&store, Status::Pending).await;
    for generation in 1..=2_u32 {
        let operation = store.replay().await;
        let done = async {
            loop {
                let operation = store.inner.operation(operation.id).await.unwrap().unwrap();
                if operation.state == OperationState::Completed {
                    return;
                }
                sleep(SECOND / 10).await;
            }
        };
        crate::support::soon(done).await;
        assert_eq!(store.letters().await[0].generation, generation.min(1).max(generation - 1));
    }
    running.finish().await;
    let runs = ["main 0.1", "main 0.2", "store 1.1", "store 1.2", "store 2.1", "store 2.2"];
    assert_eq!(log.lines(), runs);
    let letter = &store.letters().await[0];
    assert_eq!(letter.state.resolution, Some(Resolution::Succeeded));
    assert_eq!(letter.state.replays, 2);
}

/// The row records what became of it; nothing is written a second time.
#[tokio::test(start_paused = true)]
async fn a_replay_that_dies_is_recorded_on_its_row_only() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, policy(1, SECOND), 2);
    let running = Running::start(consumer(&broker, &store, work).build().unwrap());
    until(&store, Status::Pending).await;
    assert_eq!(store.calls("put"), 1);
    store.replay().await;
    log.until(|lines| lines.len() == 2).await;
    until(&store, Status::Pending).await;
    running.finish().await;
    assert_eq!((store.calls("put"), store.letters().await.len()), (1, 1));
    assert_eq!(store.letters().await[0].generation, 1);
}

/// An outcome is not given up for a few refused writes.
#[tokio::test(start_paused = true)]
async fn an_outcome_is_recorded_once_the_store_answers_again() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, policy(3, 60 * SECOND), 1);
    store.fail("finish", 6, StoreErrorKind::Unavailable);
    let running = Running::start(consumer(&broker, &store, work).build().unwrap());
    until(&store, Status::Resolved).await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (1, 0));
    assert_eq!(log.lines(), ["main 0.1", "store 0.2"], "it ran once");
}

/// A letter that comes from the store is run for as long as the process lives.
fn killing(
    log: &Log,
    store: &Store,
    kills: impl Fn(&Delivery) -> bool + Clone + Send + Sync + 'static,
) -> HandlerStack {
    let log = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let from_store = delivery.delivered_from() == DeliveredFrom::Store;
        if from_store {
            log.note(format!("{}: {} crashes", position(&delivery), delivery.crashes()));
        }
        let kills = from_store && kills(&delivery);
        async move {
            if kills {
                std::future::pending::<()>().await;
            }
            sleep(SECOND).await;
            if from_store { Ok(()) } else { Err(HandlerError::msg("down").permanent()) }
        }
    });
    work.derived().clock(store.clock.clone()).build().unwrap()
}

/// A claim that was lost makes a suspect, which runs alone and marked; a marked run that did not end is a crash.
#[tokio::test(start_paused = true)]
async fn g3_a_marked_run_that_ends_with_the_process_counts_one_crash() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let before = log.clone();
    let work = killing(&log, &store, move |_| before.lines().len() <= 2);
    let mut running = Running::start(consumer(&broker, &store, work.clone()).build().unwrap());
    until(&store, Status::Pending).await;
    store.replay().await;
    for (runs, marks) in [(1, 0), (2, 1)] {
        log.until(|lines| lines.len() == runs).await;
        assert_eq!(store.calls("begin"), marks);
        running.kill().await;
        running = Running::start(consumer(&broker, &store, work.clone()).build().unwrap());
    }
    until(&store, Status::Resolved).await;
    running.finish().await;
    assert_eq!(log.lines(), ["0: 0 crashes", "0: 0 crashes", "0: 1 crashes"]);
}

/// However often a letter kills the process: those that were claimed with it, and waited, live.
#[tokio::test(start_paused = true)]
async fn g3_a_letter_that_waited_is_not_blamed_for_the_one_that_kills() {
    let (broker, store, log) = (Broker::with(4), Store::new(), Log::default());
    let work = killing(&log, &store, |delivery| position(delivery) == 0);
    let mut running = Running::start(consumer(&broker, &store, work.clone()).build().unwrap());
    soon(async {
        while store.statuses().await.len() < 4 {
            sleep(SECOND / 10).await;
        }
    })
    .await;
    store.replay().await;
    let runs_of_the_killer =
        |lines: &[String]| lines.iter().filter(|line| line.starts_with("0:")).count();
    for run in 1..=6 {
        log.until(|lines| runs_of_the_killer(lines) == run).await;
        running.kill().await;
        running = Running::start(consumer(&broker, &store, work.clone()).build().unwrap());
    }
    soon(async {
        while store.statuses().await.contains(&Status::Replaying) {
            sleep(SECOND / 10).await;
        }
    })
    .await;
    running.finish().await;
    for letter in store.letters().await {
        let kills = letter.origin.position().to_string() == "0";
        let status = if kills { Status::Pending } else { Status::Resolved };
        assert_eq!(letter.state.status, status, "{letter:?}");
        assert_eq!(letter.reason == Reason::MaxCrashes, kills);
    }
}

#[tokio::test(start_paused = true)]
async fn the_automatic_schedule_sends_letters_back() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let work = failing(&log, &store, RetryPolicy::never(), 3);
    let schedule = Schedule::enabled().every(3600 * SECOND);
    let consumer = consumer(&broker, &store, work).schedule(schedule);
    let running = Running::start(consumer.build().unwrap());
    until(&store, Status::Resolved).await;
    running.finish().await;
    assert_eq!(log.lines(), ["main 0.1", "store 1.1", "store 2.1", "store 3.1"]);
    let letter = &store.letters().await[0];
    assert_eq!((letter.state.retry_count, letter.state.replays), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn only_the_names_of_the_handler_are_claimed() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let other = failing(&Log::default(), &store, RetryPolicy::never(), 9);
    let running = Running::start(consumer(&broker, &store, other).build().unwrap());
    until(&store, Status::Pending).await;
    running.finish().await;
    store.replay().await;

    let stranger = handler("orders.ship", |_: Delivery| async {}).build().unwrap();
    let running = Running::start(consumer(&Broker::new(), &store, stranger).build().unwrap());
    sleep(60 * SECOND).await;
    assert_eq!(running.stop().await.handled, 0, "it is not theirs");

    let seen = log.clone();
    let heir = handler("orders.accept", move |delivery: Delivery| {
        seen.note(delivery.generation());
        async {}
    });
    let heir = heir.alias("orders.handle").build().unwrap();
    let running = Running::start(consumer(&Broker::new(), &store, heir).build().unwrap());
    until(&store, Status::Resolved).await;
    running.finish().await;
    assert_eq!(log.lines(), ["1"], "a handler that had the name before takes it back");
}
