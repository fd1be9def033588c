//! G5: order, while messages are retried.

use std::time::Duration;

use dlq_core::{Delivery, Reason, StoreErrorKind};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerError, HandlerStack, handler};
use tokio::time::sleep;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position};

/// A broker with one message for each key.
fn keyed(keys: &[&str]) -> Broker {
    let broker = Broker::new();
    keys.iter().for_each(|key| broker.publish(key));
    broker
}

/// Notes what succeeds; message 0 fails so often before.
fn first_fails(log: &Log, store: &Store, failures: u32, delay: Duration) -> HandlerStack {
    let log = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let log = log.clone();
        async move {
            if position(&delivery) == 0 && delivery.attempt() <= failures {
                return Err(HandlerError::msg("down"));
            }
            // The later a message, the faster: order must not be luck.
            sleep(SECOND / (position(&delivery) as u32 + 1)).await;
            log.note(position(&delivery));
            Ok(())
        }
    });
    let key = |delivery: &Delivery| delivery.message().key().cloned();
    let work = work.policy(policy(5, delay)).clock(store.clock.clone()).order_by(key);
    work.build().unwrap()
}

fn index(lines: &[String], position: u64) -> usize {
    lines.iter().position(|line| *line == position.to_string()).expect("it was handled")
}

#[tokio::test(start_paused = true)]
async fn g5_a_key_keeps_its_order_while_a_message_is_retried_and_others_go_on() {
    let (broker, store, log) =
        (keyed(&["a", "b", "a", "b", "a", "c"]), Store::new(), Log::default());
    let consumer = Consumer::builder(broker.source())
        .handler(first_fails(&log, &store, 2, 3 * SECOND))
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    let lines = log.lines();
    assert!(
        index(&lines, 0) < index(&lines, 2) && index(&lines, 2) < index(&lines, 4),
        "{lines:?}"
    );
    assert!(index(&lines, 1) < index(&lines, 3), "{lines:?}");
    assert!(index(&lines, 5) < index(&lines, 0), "other keys do not wait: {lines:?}");
    assert_eq!(lines.len(), 6);
}

/// A wait beyond the limit of in-process delays would go to the retry queue, and overtaken. It is spent in the process.
#[tokio::test(start_paused = true)]
async fn g5_a_long_wait_is_spent_in_the_process() {
    let (broker, store, log) = (keyed(&["a", "a", "b"]), Store::new(), Log::default());
    let consumer = Consumer::builder(broker.source())
        .handler(first_fails(&log, &store, 2, 600 * SECOND))
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!(log.lines(), ["2", "0", "1"]);
    assert_eq!((report.handled, report.retried, report.deferred), (3, 0, 0));
    assert!(store.letters().await.is_empty());
    let last = broker.world().settled.last().unwrap().at;
    assert_eq!(last.as_secs(), 1201, "two waits, as the policy says");
}

/// Attempts are counted on, also across long waits.
#[tokio::test(start_paused = true)]
async fn g5_a_message_that_dies_lets_the_next_one_go() {
    let (broker, store, log) = (keyed(&["a", "a"]), Store::new(), Log::default());
    let consumer = Consumer::builder(broker.source())
        .handler(first_fails(&log, &store, 99, 60 * SECOND))
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!(broker.settled(), [(0, "dead"), (1, "succeeded")]);
    assert_eq!((report.dead, report.handled), (1, 1));
    let letters = store.letters().await;
    assert_eq!((letters[0].reason, letters[0].attempts), (Reason::Exhausted, 5));
    assert_eq!(letters[0].history.len(), 5);
}

/// A letter that cannot be written holds its key, and no other.
#[tokio::test(start_paused = true)]
async fn g5_order_is_kept_while_letters_cannot_be_written() {
    let (broker, store, log) = (keyed(&["a", "a"]), Store::new(), Log::default());
    store.fail("put", 3, StoreErrorKind::Unavailable);
    let consumer = Consumer::builder(broker.source())
        .handler(first_fails(&log, &store, 99, SECOND))
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!(broker.settled(), [(0, "dead"), (1, "succeeded")]);
    assert_eq!((report.route_errors, report.deferred), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn g5_a_stop_gives_a_key_back_in_order() {
    let (broker, store, log) = (keyed(&["a", "a", "a"]), Store::new(), Log::default());
    let consumer = Consumer::builder(broker.source())
        .handler(first_fails(&log, &store, 1, 600 * SECOND))
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.fetched == 3).await;
    sleep(SECOND).await;
    let report = running.stop().await;
    assert_eq!(report.deferred, 3);
    assert!(broker.settled_as("deferred").len() == 3 && log.lines().is_empty());

    let work = first_fails(&log, &store, 0, SECOND);
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(log.lines(), ["0", "1", "2"]);
}

/// G6: another one has it, or will have it. Its outcome here would count for nothing, and its run come beside theirs.
#[tokio::test(start_paused = true)]
async fn g6_what_is_lost_while_it_waits_is_not_run() {
    // In the line of its key, and for its turn behind a suspect.
    for (keys, deliveries, runs) in
        [(["a", "a"], 0, ["0", "0", "1"]), (["a", "b"], 2, ["0", "1", "0"])]
    {
        let (broker, store, log) = (keyed(&keys), Store::new(), Log::default());
        broker.set(|world| world.lease = Some(9 * SECOND)).handed_out(0, deliveries);
        let seen = log.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            seen.note(position(&delivery));
            sleep(60 * SECOND)
        });
        let work = work.order_by(|delivery: &Delivery| delivery.message().key().cloned());
        let consumer = Consumer::builder(broker.source())
            .handler(work.build().unwrap())
            .dead_letters(store.clone())
            .clock(store.clock.clone());
        let running = Running::start(consumer.build().unwrap());
        broker.until(|world| world.fetched == 2).await;
        log.until(|lines| lines.len() == 1).await;
        broker.set(|world| world.lose_leases = true);
        // Two of its leases end meanwhile.
        sleep(25 * SECOND).await;
        broker.set(|world| world.lose_leases = false);
        broker.until_empty().await;
        running.finish().await;
        assert_eq!(log.lines(), runs, "what runs goes on, what waits is run where it is");
        assert_eq!(broker.settled_as("succeeded").len(), 2);
    }
}

/// A message that has run and waits for its next attempt keeps its place, whoever else has it: what comes again is behind those
/// behind it.
#[tokio::test(start_paused = true)]
async fn g5_what_is_lost_between_two_attempts_keeps_its_place_in_line() {
    let (broker, store, log) = (keyed(&["a", "a", "a"]), Store::new(), Log::default());
    broker.set(|world| world.lease = Some(9 * SECOND));
    let noted = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let noted = noted.clone();
        async move {
            // Long enough for the next one to stand in line.
            sleep(SECOND).await;
            noted.note(format!("{}: attempt {}", position(&delivery), delivery.attempt()));
            let fails = position(&delivery) == 1 && delivery.attempt() == 1;
            if fails { Err(HandlerError::msg("down")) } else { Ok(()) }
        }
    });
    let work = work.policy(policy(2, 60 * SECOND)).clock(store.clock.clone());
    let work = work.order_by(|delivery: &Delivery| delivery.message().key().cloned());
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.len() == 2).await;
    broker.set(|world| world.lose_lease_of = Some(1));
    log.until(|lines| lines.contains(&"2: attempt 1".to_owned())).await;
    broker.set(|world| world.lose_lease_of = None);
    broker.until_empty().await;
    running.finish().await;
    let line = ["0: attempt 1", "1: attempt 1", "1: attempt 2", "2: attempt 1"];
    assert_eq!(log.lines()[..4], line);
}
