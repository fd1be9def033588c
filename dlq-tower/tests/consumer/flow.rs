//! From receipt to settlement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_core::{Delivery, Reason, RetryPolicy, Status, StoreErrorKind};
use dlq_tower::consumer::{Consumer, Ended};
use dlq_tower::handler::{HandlerError, handler};
use tokio::time::sleep;
use tower::service_fn;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, policy, position};

#[tokio::test(start_paused = true)]
async fn each_message_is_handled_once_and_then_settled() {
    let (broker, store, log) = (Broker::with(20), Store::new(), Log::default());
    let seen = log.clone();
    let work = handler("orders.handle", move |delivery: Delivery| {
        let seen = seen.clone();
        async move { seen.note(format!("{} {}", position(&delivery), delivery.consumer())) }
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .build()
        .unwrap();
    let running = Running::start(consumer);
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (20, 0));
    assert_eq!(report.ended, Ended::Stopped);
    assert_eq!(broker.settled_as("succeeded").len(), 20);
    let mut lines = log.lines();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 20);
    assert!(lines.contains(&"7 orders.handle".to_owned()), "{lines:?}");
    assert_eq!(broker.world().closed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_ends_is_finished() {
    let broker = Broker::with(3);
    broker.set(|world| world.ends = true);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let work = handler("orders.handle", move |_: Delivery| {
        let first = counted.fetch_add(1, Ordering::Relaxed) < 3;
        async move { if first { Err(HandlerError::msg("down")) } else { Ok(()) } }
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.policy(policy(3, SECOND)).build().unwrap())
        .sink(Store::new())
        .build()
        .unwrap();
    let report = Running::start(consumer).ended().await;
    assert_eq!(report.ended, Ended::SourceEnded);
    assert_eq!((report.handled, report.deferred), (3, 0), "what waited for a retry was finished");
    assert_eq!(runs.load(Ordering::Relaxed), 6);
}

/// G4: one permit, one message that waits for its retry; a healthy one does not wait.
#[tokio::test(start_paused = true)]
async fn g4_a_message_that_waits_for_a_retry_does_not_block_the_healthy() {
    let (broker, store) = (Broker::with(5), Store::new());
    let work = handler("orders.handle", |delivery: Delivery| async move {
        if position(&delivery) == 0 && delivery.attempt() == 1 {
            return Err(HandlerError::msg("down"));
        }
        Ok(())
    });
    let work = work.concurrency(1).policy(policy(3, 4 * SECOND)).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    let world = broker.world();
    assert_eq!(world.settled.len(), 5);
    for settled in &world.settled {
        let expected = if settled.position == 0 { 4 * SECOND } else { Duration::ZERO };
        assert_eq!(settled.at.as_secs(), expected.as_secs(), "{settled:?}");
    }
}

/// G4: what is in flight is bounded.
#[tokio::test(start_paused = true)]
async fn g4_no_more_is_fetched_than_there_is_room_for() {
    let broker = Broker::with(50);
    let work = handler("orders.handle", |_: Delivery| sleep(SECOND));
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .sink(Store::new())
        .max_in_flight(4);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!(report.handled, 50);
    assert_eq!(broker.world().peak, 4);
}

/// G4: however many fail, half of the room is left to the healthy; the rest waits in the store.
#[tokio::test(start_paused = true)]
async fn g4_waiting_messages_take_half_of_the_room_at_most() {
    let (broker, store) = (Broker::with(20), Store::new());
    let work = handler("orders.handle", |delivery: Delivery| async move {
        if position(&delivery) < 10 && delivery.attempt() == 1 {
            return Err(HandlerError::msg("down"));
        }
        Ok(())
    });
    let consumer = Consumer::builder(broker.source())
        .handler(work.clock(store.clock.clone()).policy(policy(3, 4 * SECOND)).build().unwrap())
        .dead_letters(store.clone())
        .clock(store.clock.clone())
        .max_in_flight(4);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    broker.until(|world| world.settled.len() == 20).await;
    let delayed = broker.settled_as("escalated").len();
    assert_eq!(delayed, 8, "two wait in the process, the rest in the store");
    for settled in broker.world().settled.iter().filter(|settled| settled.position >= 10) {
        assert!(settled.at < SECOND, "the healthy did not wait: {settled:?}");
    }
    // What went to the store comes back, and goes on where it was.
    while store.statuses().await.iter().any(|status| *status != Status::Resolved) {
        sleep(SECOND).await;
    }
    let report = running.stop().await;
    assert_eq!((report.handled, report.retried, report.dead), (20, 8, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_while_a_slow_handler_runs() {
    let broker = Broker::with(1);
    broker.set(|world| world.lease = Some(9 * SECOND));
    let work = handler("orders.handle", |_: Delivery| sleep(60 * SECOND));
    let consumer =
        Consumer::builder(broker.source()).handler(work.build().unwrap()).sink(Store::new());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!(report.handled, 1);
    let world = broker.world();
    assert_eq!(world.fetched, 1, "it was never handed out a second time");
    assert!((19..=20).contains(&world.extended), "every third of the lease: {}", world.extended);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_while_a_message_waits_for_its_retry() {
    let broker = Broker::with(1);
    broker.set(|world| world.lease = Some(3 * SECOND));
    let work = handler("orders.handle", |delivery: Delivery| async move {
        if delivery.attempt() < 3 { Err(HandlerError::msg("down")) } else { Ok(()) }
    });
    let work = work.policy(policy(3, 5 * SECOND)).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).sink(Store::new());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.world().fetched, 1);
    assert_eq!(broker.settled(), [(0, "succeeded")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_when_its_lease_is_lost() {
    let (broker, log) = (Broker::with(1), Log::default());
    broker.set(|world| {
        world.lease = Some(1000 * SECOND);
        world.lose_leases = true;
    });
    let seen = log.clone();
    let work = handler("orders.handle", move |_: Delivery| {
        let seen = seen.clone();
        async move {
            sleep(900 * SECOND).await;
            seen.note("to the end");
        }
    });
    let consumer =
        Consumer::builder(broker.source()).handler(work.build().unwrap()).sink(Store::new());
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines == ["to the end"]).await;
    running.finish().await;
    assert_eq!(broker.world().extended, 1, "a lost lease is not asked for again");
}

/// G1: nothing is acknowledged while letters cannot be written, and fetching slows down.
#[tokio::test(start_paused = true)]
async fn g1_nothing_is_acknowledged_while_letters_cannot_be_written() {
    let (broker, store) = (Broker::with(3), Store::new());
    store.fail("put", 4, StoreErrorKind::Unavailable);
    let work = handler("orders.handle", |_: Delivery| async {
        Err::<(), _>(HandlerError::msg("refused").permanent())
    })
    .derived();
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone())
        .build()
        .unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| health.route_error.is_some()).await.unwrap();
    assert!(!ill.is_healthy());
    assert!(ill.route_error.unwrap().contains("put"), "it says what failed");
    broker.until_empty().await;
    let well = running.handle.health().get();
    assert!(well.is_healthy(), "{well:?}");
    let report = running.stop().await;
    assert_eq!(report.dead, 3);
    assert!(report.route_errors >= 3, "{report:?}");

    assert_eq!(store.letters().await.len(), 3);
    let world = broker.world();
    let dead: Vec<_> = world.settled.iter().filter(|settled| settled.how == "dead").collect();
    let first_dead = dead.iter().map(|settled| settled.at).min().unwrap();
    assert!(first_dead >= SECOND, "the first pause is a second: {first_dead:?}");
    assert!(world.settled.iter().all(|settled| ["dead", "deferred"].contains(&settled.how)));
    assert_eq!(dead.len(), 3, "each died once");
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_while_letters_cannot_be_written() {
    let (broker, store) = (Broker::with(1), Store::new());
    store.fail("put", 5, StoreErrorKind::Unavailable);
    let work = handler("orders.handle", |_: Delivery| async {
        Err::<(), _>(HandlerError::msg("refused").permanent())
    })
    .derived();
    let work = work.policy(RetryPolicy::never()).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    let world = broker.world();
    let times: Vec<_> = world.settled.iter().map(|settled| settled.at.as_secs()).collect();
    assert_eq!(times, [0, 1, 3, 7, 15, 31], "1, 2, 4, 8 and 16 s");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_is_counted_and_the_message_comes_again() {
    let broker = Broker::with(2);
    broker.set(|world| world.refuse_settles = 1);
    let work = handler("orders.handle", |_: Delivery| async {});
    let consumer =
        Consumer::builder(broker.source()).handler(work.build().unwrap()).sink(Store::new());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (2, 1));
    assert_eq!(broker.world().fetched, 3);
}

#[tokio::test(start_paused = true)]
async fn a_stack_that_panics_costs_its_own_message_only() {
    use dlq_tower::dead_letter::DeadLetterLayer;
    use dlq_tower::stage::{Done, Verdict};
    use tower::ServiceBuilder;

    let broker = Broker::with(3);
    // No panic guard: a verdict that panics.
    let stack = ServiceBuilder::new().layer(DeadLetterLayer::new(Store::new())).service(
        service_fn(|delivery: Delivery| async move {
            assert!(position(&delivery) != 1, "a stack panics");
            Ok::<_, std::convert::Infallible>(Verdict::Done(Done::Succeeded))
        }),
    );
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.settled.len() == 2).await;
    assert_eq!(broker.held(), 1, "it stays with the broker");
    let report = running.stop().await;
    assert_eq!((report.handled, report.unsettled), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn g10_a_claim_in_flight_elsewhere_is_waited_for_uncounted() {
    use dlq_core::idempotency::memory::MemoryIdempotency;
    use dlq_core::idempotency::{BoxIdempotency, Idempotency};

    let (broker, store) = (Broker::with(1), Store::new());
    let claims = BoxIdempotency::new(MemoryIdempotency::new().clock(store.clock.clone()));
    let lease = 30 * SECOND;
    let _claimed = claims.claim("orders.handle".into(), "k".into(), lease).await.unwrap();
    let work = handler("orders.handle", |delivery: Delivery| async move {
        assert_eq!(delivery.attempt(), 1, "to wait is no attempt");
    });
    let work = work.clock(store.clock.clone()).idempotency(claims).idempotency_key(|_| "k");
    let consumer = Consumer::builder(broker.source())
        .handler(work.build().unwrap())
        .dead_letters(store.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.handled, report.dead, report.deferred), (1, 0, 0));
    assert!(store.letters().await.is_empty(), "nothing was routed");
}

#[tokio::test(start_paused = true)]
async fn what_died_has_a_letter_before_it_is_settled() {
    let (broker, store) = (Broker::with(1), Store::new());
    store.slow(3 * SECOND);
    let work =
        handler("orders.handle", |_: Delivery| async { Err::<(), _>(HandlerError::msg("down")) });
    let work = work.policy(policy(3, SECOND)).clock(store.clock.clone()).build().unwrap();
    let consumer = Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .clock(store.clock.clone());
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.world().settled[0].at.as_secs(), 5, "two retries, then the write");
    let letters = store.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason, letters[0].attempts), (Reason::Exhausted, 3));
    assert_eq!(letters[0].history.len(), 3);
}
