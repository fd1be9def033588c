//! Attacks on the guarantees: bad moments, extremes, and functions of users that panic.

use std::time::Duration;

use dlq_core::{
    Cause, Delivery, Disposition, Message, Origin, Position, Reason, RetryQueue, Settle, Source,
};
use dlq_tower::consumer::{Consumer, OutagePolicy, RunState};
use dlq_tower::handler::{HandlerError, handler};
use dlq_tower::store_source::StoreSource;
use tokio::time::sleep;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position, soon};

/// G4, G5, G9: the key function runs in the run loop, and its panic must not end that.
#[tokio::test(start_paused = true)]
async fn g5_a_key_function_that_panics_fails_its_message_and_does_not_end_the_consumer() {
    let (broker, store, log) = (Broker::with(3), Store::new(), Log::default());
    let seen = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        seen.note(position(&delivery));
        async {}
    });
    let work = work.order_by(|delivery: &Delivery| {
        assert_ne!(position(delivery), 0, "a field that is not there");
        "same"
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.dead, report.unsettled), (2, 1, 0));
    assert_eq!(log.lines(), ["1", "2"], "without its key it is in no line, and does not run");
    let letters = store.letters().await;
    let letter = &letters[0];
    assert_eq!((letter.reason, letter.cause), (Reason::Permanent, Some(Cause::Panic)));
    assert_eq!(
        (&*letter.consumer, letter.attempts),
        ("orders.handle", 0),
        "its handler did not run"
    );
    let failure = &letter.history.last().unwrap();
    assert!(failure.message().contains("a field that is not there"), "{failure:?}");
    assert_eq!(failure.at, letter.died_at);
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_a_deadline_is_a_stop() {
    let (broker, store) = (Broker::with(1), Store::new());
    let work = handler("orders.handle", |_: Delivery| sleep(1000 * SECOND)).build().unwrap();
    let consumer = Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store)
        .shutdown_deadline(Duration::MAX);
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.fetched == 1).await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (1, 0));
}

/// The longest pause that can be said is a pause.
#[tokio::test(start_paused = true)]
async fn an_outage_may_pause_for_ever() {
    let (broker, store) = (Broker::with(3), Store::new());
    let work = handler("orders.handle", |_: Delivery| async {
        Err::<(), _>(HandlerError::msg("connection refused"))
    });
    let work = work.policy(policy(1, SECOND)).clock(store.clock.clone()).build().unwrap();
    let protection = OutagePolicy::new().minimum(1).pause(Duration::MAX, Duration::MAX);
    let consumer = Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .outage(protection);
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    soon(health.wait_for(|health| health.outage)).await.unwrap();
    let report = running.stop().await;
    assert_eq!((report.unsettled, report.dead), (0, 0), "{report}");
}

/// G4: messages in line behind one that waits take no leave to probe, which that one may need itself.
#[tokio::test(start_paused = true)]
async fn g4_a_line_of_one_key_survives_an_outage() {
    let (broker, store, log) = (Broker::new(), Store::new(), Log::default());
    broker.publish("a");
    broker.publish("");
    let calls = Log::default();
    let seen = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let (seen, calls) = (seen.clone(), calls.clone());
        async move {
            calls.note(position(&delivery));
            let again = calls.lines().iter().filter(|line| *line == "1").count() > 1;
            match position(&delivery) {
                // Waits long for its second attempt.
                0 if delivery.attempt() == 1 => Err(HandlerError::msg("connection refused")),
                // Makes it an outage, and as a probe says nothing.
                1 if again => panic!("bad"),
                1 => {
                    sleep(SECOND).await;
                    Err(HandlerError::msg("connection refused"))
                }
                position => {
                    seen.note(position);
                    Ok(())
                }
            }
        }
    });
    let key = |delivery: &Delivery| delivery.message().key().cloned();
    let work = work.policy(policy(3, 600 * SECOND)).clock(store.clock.clone()).order_by(key);
    let protection = OutagePolicy::new().minimum(2).probes(1).pause(5 * SECOND, 40 * SECOND);
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone())
        .outage(protection);
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    soon(health.wait_for(|health| health.outage)).await.unwrap();
    ["a", "a", "c"].iter().for_each(|key| broker.publish(key));
    broker.until_empty().await;
    let report = running.stop().await;
    let settled = broker.world().settled.clone();
    assert_eq!((report.handled, report.dead), (4, 1), "{report}: {settled:?}");
    assert_eq!(log.lines(), ["4", "0", "2", "3"], "other keys do not wait");
}

/// G4: two sources share what may be in flight, and one that has nothing takes nothing of it.
#[tokio::test(start_paused = true)]
async fn g4_an_idle_store_source_takes_no_room_from_the_main_source() {
    for room in 1..=2 {
        let (broker, store) = (Broker::with(5), Store::new());
        let work = handler("orders.handle", |_: Delivery| sleep(SECOND)).build().unwrap();
        let consumer = Consumer::builder(broker.source())
            .handler(work)
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .max_in_flight(room);
        let running = Running::start(consumer.build().unwrap());
        broker.until_empty().await;
        let report = running.stop().await;
        assert_eq!((report.handled, report.unsettled), (5, 0), "room for {room}");
        let peak = broker.world().peak;
        assert!(peak <= room, "{peak} in flight with room for {room}");
    }
}

/// G4: nor does a source that has nothing keep what is due in the store from running.
#[tokio::test(start_paused = true)]
async fn g4_an_idle_main_source_takes_no_room_from_the_store_source() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let seen = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        seen.note(delivery.attempt());
        async { Err::<(), _>(HandlerError::msg("down")) }
    });
    let work = work.policy(policy(3, 60 * SECOND)).clock(store.clock.clone()).build().unwrap();
    let consumer = Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .clock(store.clock.clone())
        .max_in_flight(1);
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.len() == 3).await;
    running.finish().await;
    assert_eq!(log.lines(), ["1", "2", "3"]);
}

/// G9: a run that is dropped is over, and whoever looks sees it.
#[tokio::test(start_paused = true)]
async fn g9_a_run_that_is_dropped_is_seen_to_have_ended() {
    let (broker, store) = (Broker::with(1), Store::new());
    let work = handler("orders.handle", |_: Delivery| sleep(1000 * SECOND)).build().unwrap();
    let consumer =
        Consumer::builder(broker.source()).handler(work).dead_letters(store).build().unwrap();
    let health = consumer.health();
    let running = Running::start(consumer);
    broker.until(|world| world.fetched == 1).await;
    assert_eq!(health.get().state, RunState::Running);
    running.kill().await;
    assert_eq!(health.get().state, RunState::Stopped);
}

/// G3: a claim that stands too long before it is yielded is not taken for a crash, and is not run beside another.
#[tokio::test(start_paused = true)]
async fn g3_a_claim_that_waits_in_the_queue_keeps_its_lease() {
    let store = Store::new();
    for offset in 0..4 {
        let origin = Origin::new("script", "orders", Position::Offset(offset));
        let delayed_retry = dlq_core::DelayedRetry {
            delivery: Delivery::new(Message::new("orders", "{}"), origin),
            consumer: "orders.handle".into(),
            due: store.clock.now(),
            history: dlq_core::History::new(),
            attempts: 1,
        };
        store.inner.enqueue(delayed_retry).await.unwrap();
    }
    let source = |name: &str| {
        let source = StoreSource::new(store.clone(), ["orders.handle"]).clock(store.clock.clone());
        source.lease(30 * SECOND).owner(name)
    };
    let (mut one, mut other) = (source("one"), source("other"));
    let mut positions = Vec::new();
    for _ in 0..4 {
        // Room comes slowly, and never so slowly that the source is told to give back what it holds.
        let (delivery, mut settle) = one.next().await.unwrap().unwrap();
        settle.extend().await.expect("what is yielded is ours");
        assert_eq!(delivery.crashes(), 0, "nobody crashed");
        positions.push(position(&delivery));
        settle.settle(Disposition::Succeeded).await.unwrap();
        sleep(9 * SECOND).await;
        let poached = tokio::time::timeout(SECOND, other.next()).await;
        if let Ok(Ok(Some((delivery, _)))) = poached {
            panic!("{} was claimed by another", position(&delivery));
        }
        sleep(2 * SECOND).await;
    }
    positions.sort_unstable();
    assert_eq!(positions, [0, 1, 2, 3]);
}
