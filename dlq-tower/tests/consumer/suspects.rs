//! G3: a message that kills the process is found, and its neighbours live.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _};
use dlq_core::{
    CrashMarks as _, Delivery, LetterId, Origin, Position, Reason, RetryPolicy, StoreErrorKind,
};
use dlq_tower::consumer::{Consumer, OutagePolicy};
use dlq_tower::handler::{HandlerError, HandlerStack, handler};
use tokio::time::sleep;

use crate::broker::Broker;
use crate::counts::{marked, seen};
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position};

/// Notes when runs begin and end; message 1 takes long.
fn noting(log: &Log) -> HandlerStack {
    let log = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let log = log.clone();
        async move {
            log.note(format!("+{}", position(&delivery)));
            sleep(SECOND * (position(&delivery) as u32 + 1)).await;
            log.note(format!("-{}", position(&delivery)));
        }
    });
    work.policy(RetryPolicy::never()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_suspect_runs_alone_and_is_marked_meanwhile() {
    let (broker, store, log) = (Broker::with(5), Store::new(), Log::default());
    broker.handed_out(2, 2);
    let consumer = Consumer::builder(broker.source())
        .handler(noting(&log))
        .dead_letters(store.clone())
        .crash_marks(store.clone());
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.contains(&"+2".to_owned())).await;
    assert_eq!((store.calls("begin"), store.calls("end")), (1, 0), "marked before the run");
    broker.until_empty().await;
    running.finish().await;
    let lines = log.lines();
    let begun = lines.iter().position(|line| line == "+2").unwrap();
    assert_eq!(lines[begun + 1], "-2", "nothing ran beside it: {lines:?}");
    let before = &lines[..begun];
    let (begins, ends) = (
        before.iter().filter(|line| line.starts_with('+')).count(),
        before.iter().filter(|line| line.starts_with('-')).count(),
    );
    assert_eq!(begins, ends, "nothing ran when it began: {lines:?}");
    assert_eq!(store.calls("end"), 1, "the mark is gone after it");
    assert_eq!(lines.len(), 10);
}

/// What runs next may kill the process.
#[tokio::test(start_paused = true)]
async fn g3_nothing_runs_until_the_mark_of_a_suspect_is_gone() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let suspect = marked(&broker, &store, 0).await;
    store.slow(SECOND);
    let consumer = Consumer::builder(broker.source())
        .handler(noting(&log))
        .dead_letters(store.clone())
        .crash_marks(store.clone());
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| !lines.is_empty()).await;
    broker.publish("");
    log.until(|lines| lines.contains(&"+1".to_owned())).await;
    assert_eq!(log.lines(), ["+0", "-0", "+1"]);
    assert_eq!((store.calls("begin"), store.inner.begin(suspect).await.unwrap()), (1, 0));
    broker.until_empty().await;
    running.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_marks_a_suspect_still_runs_alone() {
    let (broker, log) = (Broker::with(3), Log::default());
    broker.handed_out(1, 7);
    let consumer = Consumer::builder(broker.source())
        .handler(noting(&log))
        .sink(Store::new())
        .suspect_after(8);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(log.lines(), ["+0", "-0", "+1", "-1", "+2", "-2"]);
}

/// A process that dies while it handles message 1, again and again.
#[tokio::test(start_paused = true)]
async fn g3_a_message_that_kills_the_process_dies_and_its_neighbours_do_not() {
    let (broker, store) = (Broker::with(4), Store::new());
    let lives = Arc::new(AtomicU32::new(0));
    for life in 1..=20 {
        let log = Log::default();
        let seen = log.clone();
        let counted = Arc::clone(&lives);
        let work = handler("orders.handle", move |delivery: Delivery| {
            let seen = seen.clone();
            counted.store(delivery.crashes(), Ordering::Relaxed);
            async move {
                if position(&delivery) == 1 {
                    seen.note("fatal");
                    std::future::pending::<()>().await;
                }
                // The neighbours are in flight when the process dies, at first.
                sleep(SECOND).await;
            }
        });
        let work = work.policy(RetryPolicy::new().with_max_crashes(3)).clock(store.clock.clone());
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .crash_marks(store.clone());
        let running = Running::start(consumer.build().unwrap());
        let died = tokio::select! {
            () = log.until(|lines| !lines.is_empty()) => true,
            () = broker.until_empty() => false,
        };
        if !died {
            running.finish().await;
            break;
        }
        running.kill().await;
        broker.crash();
        assert!(life < 20, "it is given up some day");
    }
    let letters = store.letters().await;
    assert_eq!(letters.len(), 1, "the neighbours live");
    assert_eq!(letters[0].reason, Reason::MaxCrashes);
    assert_eq!((letters[0].crashes, letters[0].attempts), (3, 0), "never of attempts not made");
    assert_eq!(broker.settled_as("succeeded"), [0, 2, 3]);
    assert_eq!(broker.settled_as("dead"), [1]);
}

/// Between its attempts an ordered message waits outside of any run, here for ten minutes.
#[tokio::test(start_paused = true)]
async fn g3_what_fails_first_and_kills_at_a_later_attempt_is_found() {
    let (broker, store) = (ordered(2), Store::new());
    broker.handed_out(0, 2);
    for life in 1..=20 {
        let log = Log::default();
        let seen = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            let seen = seen.clone();
            async move {
                match (position(&delivery), delivery.attempt()) {
                    (0, 1) => Err(HandlerError::msg("down")),
                    (0, _) => {
                        seen.note("fatal");
                        std::future::pending().await
                    }
                    _ => Ok(()),
                }
            }
        });
        let work = work.derived().policy(policy(5, 600 * SECOND).with_max_crashes(3));
        let work = work.clock(store.clock.clone()).order_by(key_of);
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone());
        let running = Running::start(consumer.build().unwrap());
        let died = tokio::select! {
            () = log.until(|lines| !lines.is_empty()) => true,
            () = broker.until_empty() => false,
        };
        if !died {
            running.finish().await;
            break;
        }
        running.kill().await;
        broker.crash();
        assert!(life < 4, "it is given up some day");
    }
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].crashes), (Reason::MaxCrashes, 3));
    assert_eq!(broker.settled(), [(1, "succeeded"), (0, "dead")]);
}

/// A process that ends while it waits has not died of it, and what is removed late is no crash.
#[tokio::test(start_paused = true)]
async fn g3_a_mark_that_is_removed_late_is_no_crash() {
    for refused in [0, 1, 2] {
        let (broker, store, log) = (ordered(1), Store::new(), Log::default());
        let letter = marked(&broker, &store, 1).await;
        store.fail("end", refused, StoreErrorKind::Unavailable);
        let running = Running::start(failing(&broker, &store, &log, 600 * SECOND));
        broker.until_empty().await;
        running.finish().await;
        let seen = [1, 2, 3].map(|attempt| format!("0: attempt {attempt}, 1 crashes"));
        assert_eq!(log.lines(), seen, "{refused}");
        assert_eq!(store.inner.begin(letter).await.unwrap(), 0, "it is over");
    }
    for refused in [0, 1] {
        let (broker, store, log) = (ordered(1), Store::new(), Log::default());
        let letter = marked(&broker, &store, 1).await;
        store.fail("end", refused, StoreErrorKind::Unavailable);
        let running = Running::start(failing(&broker, &store, &log, 600 * SECOND));
        log.until(|lines| lines.len() == 1).await;
        sleep(SECOND).await;
        if refused == 0 {
            running.kill().await;
        } else {
            running.finish().await;
        }
        assert_eq!(store.inner.begin(letter).await.unwrap(), 1, "it waited: the first one stays");
    }
}

/// Who comes next cannot tell it from a run that the process died of.
#[tokio::test(start_paused = true)]
async fn g3_a_mark_that_the_process_leaves_behind_counts_one_crash() {
    let (broker, store, log) = (ordered(1), Store::new(), Log::default());
    marked(&broker, &store, 1).await;
    store.fail("end", 1_000, StoreErrorKind::Unavailable);
    for life in 1..=2 {
        let running = Running::start(failing(&broker, &store, &log, 600 * SECOND));
        log.until(|lines| lines.len() == life).await;
        sleep(SECOND).await;
        running.kill().await;
        broker.crash();
    }
    assert_eq!(log.lines(), ["0: attempt 1, 1 crashes", "0: attempt 1, 2 crashes"]);
}

/// Its source knows that another process has it; that one runs it.
#[tokio::test(start_paused = true)]
async fn a_suspect_that_is_somebody_elses_is_let_go() {
    let (broker, store, log) = (ordered(1), Store::new(), Log::default());
    broker.handed_out(0, 2);
    store.fail("begin", 1, StoreErrorKind::Conflict);
    let running = Running::start(failing(&broker, &store, &log, SECOND));
    sleep(60 * SECOND).await;
    let report = running.stop().await;
    assert_eq!((report.unsettled, report.deferred), (1, 0));
    assert_eq!((store.calls("begin"), log.lines().len()), (1, 0));
}

/// An ordered consumer of which every message fails three times.
fn failing(broker: &Broker, store: &Store, log: &Log, delay: Duration) -> Consumer {
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        noted.note(seen(&delivery));
        std::future::ready(Err::<(), _>(HandlerError::msg("down")))
    });
    let work = work.derived().policy(policy(3, delay)).clock(store.clock.clone());
    let consumer = Consumer::builder(broker.source())
        .handler(work.order_by(key_of).build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    consumer.build().unwrap()
}

/// What it was found to be a suspect by came with the letter, and holds for all its attempts.
#[tokio::test(start_paused = true)]
async fn g3_a_letter_whose_claim_was_lost_is_marked_at_each_attempt() {
    let (broker, store, log) = (ordered(1), Store::new(), Log::default());
    let running = Running::start(failing(&broker, &store, &log, SECOND));
    broker.until_empty().await;
    running.finish().await;
    store.replay().await;
    let request = ClaimRequest::due(["orders.handle"], 1, SECOND);
    assert_eq!(store.inner.claim(request).await.unwrap().len(), 1, "a process that dies");
    sleep(2 * SECOND).await;
    assert_eq!(store.calls("begin"), 0);
    let running = Running::start(failing(&broker, &store, &log, 600 * SECOND));
    for attempts in 1..=3 {
        log.until(|lines| lines.len() == 3 + attempts as usize).await;
        assert_eq!(store.calls("begin"), attempts, "it runs alone");
    }
    running.finish().await;
}

/// It failed of something else than what kills it, and is not over.
#[tokio::test(start_paused = true)]
async fn g3_crashes_of_what_is_given_back_are_not_forgotten() {
    for refused in [0, 1, 2] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let letter = marked(&broker, &store, 2).await;
        store.fail("end", refused, StoreErrorKind::Unavailable);
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            noted.note(seen(&delivery));
            let error = HandlerError::msg("refused");
            let error = if noted.lines().len() < 3 { error } else { error.permanent() };
            std::future::ready(Err::<(), _>(error))
        });
        let consumer = Consumer::builder(broker.source())
            .handler(work.derived().policy(policy(1, SECOND)).build().unwrap())
            // One failure is an outage, during which a message is given back.
            .outage(OutagePolicy::new().minimum(1).probes(1))
            .dead_letters(store.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        running.finish().await;
        assert_eq!(broker.settled_as("deferred").len(), 2);
        assert_eq!(log.lines(), ["0: attempt 1, 2 crashes"; 3], "{refused}");
        assert_eq!(store.inner.begin(letter).await.unwrap(), 0, "it is over");
    }
}

/// A broker with so many messages, each with a key of its own.
fn ordered(count: u32) -> Broker {
    let broker = Broker::new();
    (0..count).for_each(|n| broker.publish(&format!("key-{n}")));
    broker
}

fn key_of(delivery: &Delivery) -> Option<bytes::Bytes> {
    delivery.message().key().cloned()
}

/// Its run has ended, and a letter may take as long as its store.
#[tokio::test(start_paused = true)]
async fn g4_nobody_waits_for_the_letter_of_a_suspect() {
    for permanent in [true, false] {
        let (broker, store) = (Broker::with(2), Store::new());
        broker.handed_out(0, 2);
        store.slow(60 * SECOND);
        let work = handler("orders.handle", move |delivery: Delivery| {
            let error = HandlerError::msg("refused");
            let error = if permanent { error.permanent() } else { error };
            std::future::ready(if position(&delivery) == 0 { Err(error) } else { Ok(()) })
        });
        let work = work.derived().policy(RetryPolicy::never()).build().unwrap();
        let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        running.finish().await;
        assert_eq!(broker.settled(), [(1, "succeeded"), (0, "dead")]);
    }
}

/// A consumer without order whose message 0 fails at every attempt, three of them, five seconds apart.
fn waiting(broker: &Broker, store: &Store, log: &Log) -> Consumer {
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        noted.note(seen(&delivery));
        let fails = position(&delivery) == 0;
        std::future::ready(if fails { Err(HandlerError::msg("down")) } else { Ok(()) })
    });
    let work = work.derived().policy(policy(3, 5 * SECOND)).clock(store.clock.clone());
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    consumer.build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn g4_a_suspect_that_waits_for_its_next_attempt_holds_up_nobody() {
    for marks in [0, 1] {
        let (broker, store, log) = (Broker::with(2), Store::new(), Log::default());
        let suspect = marked(&broker, &store, marks).await;
        let running = Running::start(waiting(&broker, &store, &log));
        broker.until(|world| !world.settled.is_empty()).await;
        assert_eq!(broker.settled(), [(1, "succeeded")]);
        assert!(broker.world().settled[0].at < 5 * SECOND, "it waited for the suspect");
        assert_eq!(store.inner.begin(suspect).await.unwrap(), marks, "nobody is blamed meanwhile");
        store.inner.end(suspect, marks).await.unwrap();
        broker.until_empty().await;
        running.finish().await;
        let attempts = [1, 2, 3].map(|attempt| format!("0: attempt {attempt}, {marks} crashes"));
        let of_suspect = log.lines().into_iter().filter(|line| line.starts_with('0'));
        assert_eq!(of_suspect.collect::<Vec<_>>(), attempts);
        assert_eq!((store.calls("begin"), store.calls("end")), (3, 3), "each attempt is marked");
        assert_eq!(store.inner.begin(suspect).await.unwrap(), 0, "it is over");
    }
}

#[tokio::test(start_paused = true)]
async fn g4_a_suspect_waits_for_nobody_who_waits_for_the_next_attempt() {
    let (broker, store, log) = (Broker::with(3), Store::new(), Log::default());
    broker.handed_out(1, 2);
    let running = Running::start(waiting(&broker, &store, &log));
    broker.until(|world| world.settled.len() == 2).await;
    assert_eq!(broker.settled(), [(1, "succeeded"), (2, "succeeded")]);
    assert!(broker.world().settled[1].at < 5 * SECOND, "they waited for one that waits");
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.settled_as("dead"), [0]);
}

/// It runs alone each time: what begins while it waits has ended when it runs again.
#[tokio::test(start_paused = true)]
async fn g3_a_suspect_that_has_waited_runs_alone_again() {
    let (broker, store, log) = (Broker::with(30), Store::new(), Log::default());
    broker.handed_out(0, 2);
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let noted = noted.clone();
        async move {
            noted.note(format!("+{}", position(&delivery)));
            sleep(SECOND * (1 + position(&delivery) as u32 % 7)).await;
            noted.note(format!("-{}", position(&delivery)));
            if position(&delivery) == 0 { Err(HandlerError::msg("down")) } else { Ok(()) }
        }
    });
    let work = work.derived().policy(policy(3, 3 * SECOND)).concurrency(4);
    let consumer = Consumer::builder(broker.source())
        .handler(work.clock(store.clock.clone()).build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    let (lines, mut runs, mut attempts) = (log.lines(), 0, 0);
    for (at, line) in lines.iter().enumerate() {
        if line == "+0" {
            assert_eq!((runs, lines[at + 1].as_str()), (0, "-0"), "{lines:?}");
            attempts += 1;
        }
        runs += if line.starts_with('+') { 1 } else { -1 };
    }
    assert_eq!(attempts, 3);
    let last = lines.iter().rposition(|line| line == "+0").unwrap();
    assert!(lines[..last].iter().any(|line| line == "+1"), "and while it waited: {lines:?}");
}

/// A process that ends while a suspect waits has not died of it, though the mark could not be removed at first.
#[tokio::test(start_paused = true)]
async fn g3_a_crash_while_a_suspect_waits_is_not_counted() {
    for marks in [0, 1] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let suspect = marked(&broker, &store, marks).await;
        let running = Running::start(waiting(&broker, &store, &log));
        log.until(|lines| lines.len() == 1).await;
        sleep(SECOND).await;
        running.kill().await;
        assert_eq!(store.inner.begin(suspect).await.unwrap(), marks);
    }
}

/// A message that waits in the process between its attempts is marked before each of them.
#[tokio::test(start_paused = true)]
async fn g3_what_kills_after_a_wait_in_the_process_is_found() {
    let (broker, store) = (Broker::with(2), Store::new());
    broker.handed_out(0, 2);
    for life in 1..=20 {
        let log = Log::default();
        let seen = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            let seen = seen.clone();
            async move {
                match (position(&delivery), delivery.attempt()) {
                    (0, 1) => Err(HandlerError::msg("down")),
                    (0, _) => {
                        seen.note("fatal");
                        std::future::pending().await
                    }
                    _ => Ok(()),
                }
            }
        });
        let work = work.derived().policy(policy(5, SECOND).with_max_crashes(3));
        let consumer = Consumer::builder(broker.source())
            .handler(work.clock(store.clock.clone()).build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone());
        let running = Running::start(consumer.build().unwrap());
        let died = tokio::select! {
            () = log.until(|lines| !lines.is_empty()) => true,
            () = broker.until_empty() => false,
        };
        if !died {
            running.finish().await;
            break;
        }
        running.kill().await;
        broker.crash();
        assert!(life < 4, "it is given up some day");
    }
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].crashes), (Reason::MaxCrashes, 3));
    assert_eq!(broker.settled(), [(1, "succeeded"), (0, "dead")]);
}

/// Its attempts are kept: they were made.
#[tokio::test(start_paused = true)]
async fn g3_a_suspect_whose_next_mark_cannot_be_written_is_not_run_and_keeps_its_attempts() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    broker.handed_out(0, 2);
    let running = Running::start(waiting(&broker, &store, &log));
    log.until(|lines| lines.len() == 1).await;
    store.fail("begin", 1, StoreErrorKind::Unavailable);
    log.until(|lines| lines.len() == 2).await;
    assert_eq!(broker.settled(), [(0, "escalated")]);
    log.until(|lines| lines.len() == 3).await;
    running.finish().await;
    let attempts = [1, 2, 3].map(|attempt| format!("0: attempt {attempt}, 0 crashes"));
    assert_eq!(log.lines(), attempts);
}

/// A stop while it waits for its turn, or for its time: it is postponed with its attempts, and leaves no mark.
#[tokio::test(start_paused = true)]
async fn g3_a_stop_while_a_suspect_waits_keeps_its_attempts_and_leaves_no_mark() {
    for busy in [false, true] {
        let (broker, store, log) = (Broker::with(2), Store::new(), Log::default());
        let suspect = marked(&broker, &store, 1).await;
        let noted = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            let noted = noted.clone();
            async move {
                noted.note(seen(&delivery));
                if position(&delivery) == 1 {
                    sleep(20 * SECOND).await;
                    return Ok(());
                }
                Err(HandlerError::msg("down"))
            }
        });
        let work = work.derived().policy(policy(3, 5 * SECOND)).clock(store.clock.clone());
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone());
        let running = Running::start(consumer.build().unwrap());
        log.until(|lines| lines.len() == 2).await;
        sleep(if busy { 10 * SECOND } else { SECOND }).await;
        assert_eq!(log.lines().len(), 2);
        running.finish().await;
        assert_eq!(broker.settled(), [(0, "escalated"), (1, "succeeded")]);
        assert_eq!(store.letters().await[0].attempts, 1);
        assert_eq!(store.inner.begin(suspect).await.unwrap(), 0);
    }
}

/// An ordered consumer: message 0 takes long, and in a process that is stopped longer than that.
fn deployed(broker: &Broker, store: &Store, log: &Log, takes: Duration) -> Consumer {
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let noted = noted.clone();
        async move {
            noted.note(format!("+{}", position(&delivery)));
            if position(&delivery) == 0 {
                sleep(takes).await;
            }
            noted.note(format!("-{}", position(&delivery)));
        }
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.clock(store.clock.clone()).order_by(key_of).build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone())
        .shutdown_deadline(SECOND);
    consumer.build().unwrap()
}

/// Message 0 is cut off each time, and those behind it in the line of its key are given back.
#[tokio::test(start_paused = true)]
async fn g4_what_orderly_stops_cut_off_or_give_back_is_no_suspect() {
    let (broker, store) = (Broker::new(), Store::new());
    (0..3).for_each(|_| broker.publish("a"));
    for deploys in 1..=4 {
        let log = Log::default();
        let running = Running::start(deployed(&broker, &store, &log, 600 * SECOND));
        log.until(|lines| !lines.is_empty()).await;
        broker.until(|world| world.fetched == 3 * deploys).await;
        let report = running.stop().await;
        assert_eq!((report.unsettled, report.deferred), (1, 2));
        broker.crash();
    }
    broker.publish("b");
    let log = Log::default();
    let running = Running::start(deployed(&broker, &store, &log, 60 * SECOND));
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(log.lines(), ["+0", "+3", "-3", "-0", "+1", "-1", "+2", "-2"], "nobody ran alone");
    for offset in 0..3 {
        let origin = Origin::new("script", "orders", Position::Offset(offset));
        let letter = LetterId::of(&origin, None, "orders.handle");
        assert_eq!(store.inner.explained(letter).await.unwrap(), 0, "it is over");
    }
}

/// Only the deliveries that ended so are explained by it.
#[tokio::test(start_paused = true)]
async fn g3_what_kills_is_found_between_orderly_stops() {
    let (broker, store) = (Broker::with(1), Store::new());
    for life in 1..=20 {
        let log = Log::default();
        let noted = log.clone();
        let work = handler("orders.handle", move |_: Delivery| {
            noted.note("runs");
            std::future::pending::<()>()
        });
        let work = work.policy(RetryPolicy::never().with_max_crashes(2));
        let consumer = Consumer::builder(broker.source())
            .handler(work.clock(store.clock.clone()).build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .shutdown_deadline(SECOND);
        let running = Running::start(consumer.build().unwrap());
        let died = tokio::select! {
            () = log.until(|lines| !lines.is_empty()) => true,
            () = broker.until_empty() => false,
        };
        match life % 2 {
            _ if !died => {
                running.finish().await;
                break;
            }
            0 => drop(running.stop().await),
            _ => running.kill().await,
        }
        broker.crash();
        assert!(life < 12, "it is given up some day");
    }
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].crashes), (Reason::MaxCrashes, 2));
}

/// A stop that the transport has not counted needs no explanation, and would hide a crash.
#[tokio::test(start_paused = true)]
async fn g3_a_stop_that_is_not_counted_explains_nothing() {
    for counts_stops in [true, false] {
        let (broker, store, log) = (Broker::new(), Store::new(), Log::default());
        broker.publish("a");
        broker.set(|world| world.counts_no_stops = !counts_stops).handed_out(0, 1);
        let running = Running::start(deployed(&broker, &store, &log, 600 * SECOND));
        log.until(|lines| !lines.is_empty()).await;
        assert_eq!(running.stop().await.unsettled, 1);
        assert_eq!(store.calls("explain"), u32::from(counts_stops));
        broker.crash();
        let running = Running::start(deployed(&broker, &store, &log, SECOND));
        broker.until_empty().await;
        running.finish().await;
        assert_eq!(store.calls("explained"), u32::from(counts_stops));
    }
}

/// The store does not answer when the process stops: a suspect then, which is no worse than before.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_no_longer_for_a_store_than_it_may() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    broker.handed_out(0, 1);
    let running = Running::start(deployed(&broker, &store, &log, 600 * SECOND));
    log.until(|lines| !lines.is_empty()).await;
    store.slow(600 * SECOND);
    let asked = tokio::time::Instant::now();
    assert_eq!(running.stop().await.unsettled, 1);
    assert!(asked.elapsed() < 3 * SECOND);
}

/// Its claim is given back: one that only ended would count as a crash.
#[tokio::test(start_paused = true)]
async fn g3_a_letter_that_an_orderly_stop_cuts_off_has_not_crashed() {
    for ordered in [true, false] {
        let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
        let noted = log.clone();
        let build = || {
            let noted = noted.clone();
            let work = handler("orders.handle", move |delivery: Delivery| {
                let noted = noted.clone();
                async move {
                    noted.note(delivery.crashes());
                    match delivery.generation() {
                        0 => Err(HandlerError::msg("refused").permanent()),
                        _ => std::future::pending().await,
                    }
                }
            });
            let work = work.derived().clock(store.clock.clone());
            let work = if ordered { work.order_by(key_of) } else { work };
            let consumer = Consumer::builder(broker.source())
                .handler(work.build().unwrap())
                .dead_letters(store.clone())
                .clock(store.clock.clone())
                .shutdown_deadline(SECOND);
            consumer.build().unwrap()
        };
        let running = Running::start(build());
        broker.until_empty().await;
        store.replay().await;
        log.until(|lines| lines.len() == 2).await;
        let report = running.stop().await;
        assert_eq!((report.deferred, report.unsettled), (1, 0), "{report}");
        let running = Running::start(build());
        log.until(|lines| lines.len() == 3).await;
        running.finish().await;
        assert_eq!((log.lines(), store.calls("begin")), (["0"; 3].map(str::to_owned).into(), 0));
    }
}

/// What we gave back ourselves explains a delivery: an outage must not put a backlog on suspects.
#[tokio::test(start_paused = true)]
async fn a_message_that_was_given_back_is_no_suspect() {
    let (broker, store) = (Broker::with(1), Store::new());
    store.fail("put", 5, StoreErrorKind::Unavailable);
    let work = handler("orders.handle", |_: Delivery| async {
        Err::<(), _>(HandlerError::msg("refused").permanent())
    })
    .derived();
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .crash_marks(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.world().fetched, 6);
    assert_eq!(store.calls("begin"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_suspect_whose_mark_cannot_be_written_does_not_run() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    broker.handed_out(0, 5);
    store.fail("begin", 1, StoreErrorKind::Unavailable);
    let consumer = Consumer::builder(broker.source())
        .handler(noting(&log))
        .dead_letters(store.clone())
        .crash_marks(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.settled.len() == 1).await;
    assert!(log.lines().is_empty());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.settled(), [(0, "deferred"), (0, "succeeded")]);
}

/// A stop that cuts a suspect off is not a crash.
#[tokio::test(start_paused = true)]
async fn a_suspect_that_is_cut_off_leaves_no_mark() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    broker.handed_out(0, 5);
    let seen = log.clone();
    let work = handler("orders.handle", move |_: Delivery| {
        seen.note("runs");
        std::future::pending::<()>()
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.policy(policy(1, SECOND)).build().unwrap())
        .dead_letters(store.clone())
        .crash_marks(store.clone())
        .shutdown_deadline(SECOND);
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines == ["runs"]).await;
    let report = running.stop().await;
    assert_eq!(report.unsettled, 1);
    assert_eq!((store.calls("begin"), store.calls("end")), (1, 1));
}
