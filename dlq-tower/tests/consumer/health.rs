//! G9: nothing dies in silence.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::Schedule;
use dlq_core::{DeliveredFrom, Delivery, Status, StoreErrorKind, TokioClock, TransportErrorKind};
use dlq_tower::consumer::{
    Consumer, ConsumerBuilder, ConsumerHealth, Ended, IN_FLIGHT, PAUSED, Part, RunState,
    SETTLE_ERRORS_TOTAL,
};
use dlq_tower::handler::{HandlerError, handler};
use dlq_tower::metrics::MESSAGES_IN_DLQ_TOTAL;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::time::{Instant, sleep, timeout};

use crate::broker::Broker;
use crate::faulty::Store;
use crate::store_source::due;
use crate::support::{Running, SECOND, soon};

fn consumer(broker: &Broker, store: &Store) -> ConsumerBuilder {
    let work = handler("orders.handle", |_: Delivery| async {}).build().unwrap();
    Consumer::builder(broker.source()).handler(work).dead_letters(store.clone())
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_for_a_while_is_asked_again_and_shown() {
    let (broker, store) = (Broker::with(1), Store::new());
    broker.set(|world| world.errors.extend([TransportErrorKind::Unavailable; 5]));
    let consumer = consumer(&broker, &store).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| health.source_error.is_some()).await.unwrap();
    assert!(!ill.is_healthy() && ill.lost.is_empty());
    broker.until_empty().await;
    assert!(running.handle.health().get().is_healthy());
    let report = running.stop().await;
    assert_eq!((report.handled, report.lost_tasks, report.ended), (1, 0, Ended::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_source_without_messages_is_healthy_again_after_a_while() {
    let (broker, store) = (Broker::new(), Store::new());
    broker.set(|world| world.errors.extend([TransportErrorKind::Unavailable; 2]));
    let consumer = consumer(&broker, &store).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| !health.is_healthy()).await.unwrap();
    health.wait_for(|health| health.is_healthy()).await.unwrap();
    running.finish().await;
}

/// What cannot be read is told, and whatever else there is does not wait for it.
#[tokio::test(start_paused = true)]
async fn g9_a_source_that_holds_damage_is_told_of_and_does_not_pause() {
    let (broker, store) = (Broker::new(), Store::new());
    broker.set(|world| world.errors.push_back(TransportErrorKind::Corrupt));
    let consumer = consumer(&broker, &store).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| health.source_error.is_some()).await.unwrap();
    assert!(!ill.is_healthy() && ill.lost.is_empty());
    broker.set(|world| world.errors.extend([TransportErrorKind::Corrupt; 20]));
    let begun = Instant::now();
    broker.publish("");
    broker.until_empty().await;
    assert!(begun.elapsed() < SECOND, "it paused for {:?}", begun.elapsed());
    assert_eq!(running.stop().await.handled, 1);
}

/// An error now and then is not one after another.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_well_again_begins_with_short_pauses() {
    let (broker, store) = (Broker::new(), Store::new());
    let consumer = consumer(&broker, &store).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    for _ in 0..12 {
        broker.set(|world| world.errors.push_back(TransportErrorKind::Unavailable));
        health.wait_for(|health| !health.is_healthy()).await.unwrap();
        let begun = Instant::now();
        health.wait_for(ConsumerHealth::is_healthy).await.unwrap();
        assert!(begun.elapsed() < 31 * SECOND, "{:?}", begun.elapsed());
    }
    running.finish().await;
}

#[tokio::test(start_paused = true)]
async fn g9_a_source_that_fails_for_good_ends_the_run() {
    let (broker, store) = (Broker::with(2), Store::new());
    let consumer = consumer(&broker, &store).build().unwrap();
    let health = consumer.health();
    let running = Running::start(consumer);
    broker.until_empty().await;
    broker.set(|world| world.errors.push_back(TransportErrorKind::Unexpected));
    let report = running.ended().await;
    assert!(matches!(&report.ended, Ended::SourceFailed(why) if why.contains("fetch")), "{report}");
    assert_eq!((report.handled, report.lost_tasks), (2, 1));
    let health = health.get();
    assert_eq!((health.state, health.lost[0].part), (RunState::Stopped, Part::Source));
}

#[tokio::test(start_paused = true)]
async fn g9_a_source_that_panics_is_told_from_one_that_ends() {
    let (broker, store) = (Broker::new(), Store::new());
    broker.set(|world| world.panics = true);
    let report = Running::start(consumer(&broker, &store).build().unwrap()).ended().await;
    let Ended::SourceFailed(why) = &report.ended else { panic!("{report}") };
    assert_eq!(why, "panicked: the source panics");
}

#[tokio::test(start_paused = true)]
async fn g9_a_store_source_that_dies_is_reported_and_the_rest_goes_on() {
    let (broker, store) = (Broker::new(), Store::new());
    store.panic("claim");
    let consumer = consumer(&broker, &store).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| !health.lost.is_empty()).await.unwrap();
    assert!(!ill.is_healthy());
    assert_eq!((ill.lost[0].part, ill.state), (Part::StoreSource, RunState::Running));
    assert!(ill.lost[0].why.contains("the store panics"), "{ill:?}");
    broker.publish("");
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.lost_tasks, report.ended), (1, 1, Ended::Stopped));
}

/// Whatever the store says: a table that was renamed is there again, a right is granted.
#[tokio::test(start_paused = true)]
async fn g9_a_store_source_that_fails_is_ill_and_well_again_with_its_store() {
    for kind in [StoreErrorKind::NotFound, StoreErrorKind::Corrupt, StoreErrorKind::Unexpected] {
        let (broker, store) = (Broker::new(), due(1).await);
        store.fail("claim", u32::MAX, kind);
        let consumer = consumer(&broker, &store).clock(store.clock.clone()).build().unwrap();
        let mut health = consumer.health();
        let running = Running::start(consumer);
        let ill = health.wait_for(|health| !health.is_healthy()).await.unwrap();
        let why = ill.store_error.unwrap_or_default();
        assert!(why.contains(&kind.to_string()), "{why}");
        assert_eq!((ill.lost.as_slice(), ill.state), (&[][..], RunState::Running));
        broker.publish("");
        broker.until_empty().await;
        sleep(3600 * SECOND).await;
        let asked = store.calls("claim");
        assert!((100..300).contains(&asked), "less and less often: {asked}");
        assert!(!running.handle.health().get().is_healthy());
        store.fail("claim", 0, kind);
        health.wait_for(ConsumerHealth::is_healthy).await.unwrap();
        soon(async {
            while store.statuses().await != [Status::Resolved] {
                sleep(SECOND).await;
            }
        })
        .await;
        let report = running.stop().await;
        assert_eq!((report.handled, report.lost_tasks, report.ended), (2, 0, Ended::Stopped));
    }
}

#[tokio::test(start_paused = true)]
async fn g9_one_refused_call_does_not_end_the_store_source() {
    let (broker, store) = (Broker::new(), Store::new());
    store.fail("claim", 7, StoreErrorKind::Unavailable);
    store.fail("next_due", 3, StoreErrorKind::Unavailable);
    let running = Running::start(consumer(&broker, &store).build().unwrap());
    sleep(600 * SECOND).await;
    assert!(store.calls("claim") > 100, "it is asked on and on");
    assert!(running.handle.health().get().is_healthy());
    assert_eq!(running.stop().await.lost_tasks, 0);
}

#[tokio::test(start_paused = true)]
async fn g9_a_schedule_that_dies_is_reported_and_the_rest_goes_on() {
    let (broker, store) = (Broker::with(1), Store::new());
    store.fail("run_schedule", 1, StoreErrorKind::Refused);
    let consumer = consumer(&broker, &store).schedule(Schedule::enabled()).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| !health.lost.is_empty()).await.unwrap();
    assert_eq!(ill.lost[0].part, Part::Schedule);
    broker.until_empty().await;
    assert_eq!(running.stop().await.handled, 1);
}

/// A machine whose clock is ahead does not ask ten times a second, nor one that is behind too late.
#[tokio::test(start_paused = true)]
async fn the_schedule_runs_by_the_clock_of_the_store() {
    for hours in [0, 2] {
        let (broker, store) = (Broker::with(1), Store::new());
        let now = store.clock.now().before(3600 * SECOND).after(hours * 3600 * SECOND);
        let schedule = Schedule::enabled().every(60 * SECOND);
        let consumer = consumer(&broker, &store).schedule(schedule);
        let consumer = consumer.clock(Arc::new(TokioClock::starting_at(now))).build().unwrap();
        let running = Running::start(consumer);
        broker.until_empty().await;
        sleep(630 * SECOND).await;
        assert_eq!(store.calls("run_schedule"), 11, "{hours}");
        let _ = running.stop().await;
    }
}

/// In flight, paused, and settlements that failed, so long after the start of a consumer whose only message takes a
/// second, cannot be buried at first, and not be given back either.
async fn metrics_after(moment: Duration) -> [f64; 3] {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (broker, store) = (Broker::with(1), Store::new());
    store.fail("put", 1, StoreErrorKind::Unavailable);
    broker.set(|world| world.refuse_settles = 1);
    let work = handler("orders.handle", |_: Delivery| async {
        sleep(SECOND).await;
        Err::<(), _>(HandlerError::msg("refused").permanent())
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.derived().build().unwrap())
        .dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    sleep(moment).await;
    // A snapshot starts every metric over, hence one per run.
    let snapshot = snapshotter.snapshot().into_vec();
    broker.until_empty().await;
    running.finish().await;
    [IN_FLIGHT, PAUSED, SETTLE_ERRORS_TOTAL].map(|name| {
        let of_consumer = |key: &metrics::Key| {
            key.name() == name && key.labels().any(|label| label.value() == "orders.handle")
        };
        let found = snapshot.iter().find(|(key, ..)| of_consumer(key.key()));
        match found.map(|(.., value)| value) {
            Some(DebugValue::Gauge(value)) => value.0,
            Some(DebugValue::Counter(count)) => *count as f64,
            other => panic!("{name} is {other:?}"),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn metrics_show_what_is_in_flight_and_whether_fetching_pauses() {
    assert_eq!(metrics_after(SECOND / 2).await, [1.0, 0.0, 0.0], "it runs");
    assert_eq!(metrics_after(SECOND * 3 / 2).await, [0.0, 1.0, 1.0], "fetching pauses");
    assert_eq!(metrics_after(SECOND * 5 / 2).await, [0.0, 0.0, 1.0], "it is written, and over");
}

#[tokio::test(start_paused = true)]
async fn g9_a_run_that_is_dropped_is_seen_at_once() {
    let (broker, store) = (Broker::new(), Store::new());
    let consumer = consumer(&broker, &store).build().unwrap();
    let health = consumer.health();
    let mut run = Box::pin(consumer.run(std::future::pending()));
    assert!(timeout(SECOND, run.as_mut()).await.is_err(), "it goes on");
    assert_eq!(health.get().state, RunState::Running);
    drop(run);
    let gone = health.get();
    assert_eq!((gone.state, gone.lost[0].part), (RunState::Stopped, Part::Run));
    assert!(!gone.is_healthy(), "a consumer that is no more handles nothing");
}

#[tokio::test(start_paused = true)]
async fn one_that_was_asked_to_stop_was_well_to_its_end() {
    let (broker, store) = (Broker::with(1), Store::new());
    let running = Running::start(consumer(&broker, &store).build().unwrap());
    let health = running.handle.health();
    broker.until_empty().await;
    running.finish().await;
    assert_eq!((health.get().state, health.get().is_healthy()), (RunState::Stopped, true));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_asked_for_what_is_due_is_shown_until_it_answers() {
    let (broker, store) = (Broker::new(), Store::new());
    store.fail("claim", 3, StoreErrorKind::Unavailable);
    store.fail("run_schedule", 3, StoreErrorKind::Unavailable);
    let consumer = consumer(&broker, &store).schedule(Schedule::enabled()).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let both = |ill: &ConsumerHealth| ill.store_error.is_some() && ill.schedule_error.is_some();
    let ill = soon(health.wait_for(both)).await.unwrap();
    assert!(!ill.is_healthy() && ill.lost.is_empty());
    soon(health.wait_for(ConsumerHealth::is_healthy)).await.unwrap();
    running.finish().await;
}

/// The record of a letter that dies again is written by its settlement, and until then it proves nothing.
#[tokio::test(start_paused = true)]
async fn a_letter_that_dies_again_says_nothing_before_it_is_written() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (broker, store) = (Broker::with(1), crate::store_source::due(1).await);
    store.fail("put", 1000, StoreErrorKind::Unavailable);
    store.fail("finish", 1000, StoreErrorKind::Unavailable);
    let work = handler("orders.handle", |delivery: Delivery| async move {
        sleep(SECOND / if delivery.delivered_from() == DeliveredFrom::Store { 2 } else { 10 })
            .await;
        Err::<(), _>(HandlerError::msg("refused").permanent())
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.derived().build().unwrap())
        .clock(store.clock.clone())
        .dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    sleep(SECOND * 9 / 10).await;
    assert!(store.calls("finish") > 0, "the letter was to be written");
    let health = running.handle.health().get();
    assert!(health.route_error.is_some(), "it was not: {health:?}");
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if key.key().name() == MESSAGES_IN_DLQ_TOTAL {
            assert!(
                matches!(value, DebugValue::Counter(0)),
                "nothing was written: {key:?} {value:?}"
            );
        }
    }
    store.fail("put", 0, StoreErrorKind::Unavailable);
    store.fail("finish", 0, StoreErrorKind::Unavailable);
    broker.until_empty().await;
    while !store.statuses().await.iter().all(|status| *status == Status::Pending) {
        sleep(SECOND).await;
    }
    assert!(running.handle.health().get().is_healthy());
    running.finish().await;
    let written = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| match value {
        DebugValue::Counter(count) if key.key().name() == MESSAGES_IN_DLQ_TOTAL => count,
        _ => 0,
    };
    let written: u64 = snapshotter.snapshot().into_vec().into_iter().map(written).sum();
    assert_eq!(written, 2, "each once");
}
