//! Outage protection: an outage buries no backlog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlq_core::idempotency::Idempotency;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::store::Schedule;
use dlq_core::{DeadLetter, Delivery, Position, Reason, RetryPolicy, Status, StoreErrorKind};
use dlq_tower::consumer::{Consumer, ConsumerBuilder, OutagePolicy};
use dlq_tower::handler::{HandlerError, HandlerStack, handler};
use tokio::time::{Instant, sleep};

use crate::broker::Broker;
use crate::faulty::Store;
use crate::keys::Durable;
use crate::support::{Log, Running, SECOND, policy, position, soon};

fn protection() -> OutagePolicy {
    OutagePolicy::new().minimum(10).ratio(0.5).pause(5 * SECOND, 40 * SECOND)
}

/// What the handlers depend on.
#[derive(Clone, Debug, Default)]
struct Dependency {
    works: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Dependency {
    fn handler(&self, retry: RetryPolicy, store: &Store, poison: Option<u64>) -> HandlerStack {
        let this = self.clone();
        let work = handler("orders.handle", move |delivery: Delivery| {
            this.calls.fetch_add(1, Ordering::Relaxed);
            let works = this.works.load(Ordering::Relaxed);
            async move {
                if works && poison != Some(position(&delivery)) {
                    return Ok(());
                }
                Err(HandlerError::msg("connection refused"))
            }
        });
        work.policy(retry).clock(store.clock.clone()).build().unwrap()
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    fn repair(&self) {
        self.works.store(true, Ordering::Relaxed);
    }
}

fn consumer(broker: &Broker, store: &Store, work: HandlerStack) -> ConsumerBuilder {
    Consumer::builder(broker.source())
        .handler(work)
        .dead_letters(store.clone())
        .clock(store.clock.clone())
        .outage(protection())
        .max_in_flight(8)
}

#[tokio::test(start_paused = true)]
async fn g10_an_outage_buries_nothing_and_counts_no_attempt() {
    let (broker, store, log) = (Broker::with(200), Store::new(), Log::default());
    let dependency = Dependency::default();
    let (seen, this) = (log.clone(), dependency.clone());
    let work = handler("orders.handle", move |delivery: Delivery| {
        this.calls.fetch_add(1, Ordering::Relaxed);
        let works = this.works.load(Ordering::Relaxed);
        if works {
            seen.note(format!("{}: {}", position(&delivery), delivery.attempt()));
        }
        async move { if works { Ok(()) } else { Err(HandlerError::msg("connection refused")) } }
    });
    let work = work.policy(policy(2, SECOND)).clock(store.clock.clone()).build().unwrap();
    let consumer = consumer(&broker, &store, work).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let open = health.wait_for(|health| health.outage).await.unwrap();
    assert!(open.is_healthy(), "it is not the consumer that is ill");
    let before = dependency.calls();
    // What was counted of each until then. Letters are dead, records wait for their next attempt.
    let counted = |letters: Vec<DeadLetter>| -> BTreeMap<u64, (bool, u32)> {
        let of = |letter: &DeadLetter| match letter.origin.position() {
            Position::Offset(offset) => *offset,
            other => unreachable!("the script counts: {other}"),
        };
        let is_dead = |letter: &DeadLetter| letter.state.status == Status::Pending;
        letters.iter().map(|one| (of(one), (is_dead(one), one.attempts))).collect()
    };
    let noticed = counted(store.letters().await);
    assert!(noticed.len() < 10, "no more than it took to notice: {noticed:?}");

    sleep(300 * SECOND).await;
    assert_eq!(counted(store.letters().await), noticed, "nothing more, however long it lasts");
    let probes = dependency.calls() - before;
    // Pauses of 5, 10, 20 and 40 s; two attempts for each of up to three probes, and those that were in flight.
    assert!((10..100).contains(&probes), "few are tried: {probes}");

    dependency.repair();
    health.wait_for(|health| !health.outage).await.unwrap();
    broker.until_empty().await;
    let over = |status: &Status| [Status::Pending, Status::Resolved].contains(status);
    while !store.statuses().await.iter().all(over) {
        sleep(SECOND).await;
    }
    let report = running.stop().await;
    assert_eq!(report.handled + report.dead, 200, "{report}");
    assert!(report.dead < 10, "{report}");
    let letters = store.letters().await;
    assert_eq!(letters.len(), noticed.len(), "retry records and letters");
    assert!(letters.iter().all(|letter| letter.crashes == 0));
    // Each goes on with the attempts that were counted before the outage was noticed.
    let mut runs = log.lines();
    let attempt = |position| match noticed.get(&position) {
        None => Some(1),
        Some((false, made)) => Some(made + 1),
        Some((true, _)) => None,
    };
    let mut expected: Vec<_> = (0..200)
        .filter_map(|position| Some(format!("{position}: {}", attempt(position)?)))
        .collect();
    runs.sort();
    expected.sort();
    assert_eq!(runs, expected);
}

/// As it comes, without a word about outages.
#[tokio::test(start_paused = true)]
async fn g10_a_consumer_is_protected_unless_told_otherwise() {
    let (broker, store, dependency) = (Broker::with(2_000), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
    let consumer = consumer.clock(store.clock.clone()).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    soon(health.wait_for(|health| health.outage)).await.unwrap();
    sleep(600 * SECOND).await;
    let buried = store.letters().await.len();
    assert!(buried < OutagePolicy::default().minimum as usize, "{buried} until it was noticed");
    dependency.repair();
    broker.until_empty().await;
    assert_eq!(running.stop().await.handled, 2_000 - buried as u64);
}

/// A handful of messages that fail are at fault themselves, for all that is known.
#[tokio::test(start_paused = true)]
async fn a_small_consumer_whose_messages_all_fail_has_no_outage() {
    let (broker, store, dependency) = (Broker::with(40), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
    let running = Running::start(consumer.clock(store.clock.clone()).build().unwrap());
    broker.until_empty().await;
    // Later ones add up to nothing.
    for _ in 0..10 {
        sleep(60 * SECOND).await;
        (0..40).for_each(|_| broker.publish(""));
        broker.until_empty().await;
    }
    assert_eq!((running.stop().await.dead, broker.settled_as("deferred").len()), (440, 0));
}

/// The layer counts each attempt at once, and knows nothing of outages: what it has counted is taken back.
#[tokio::test(start_paused = true)]
async fn g10_an_outage_counts_no_attempt_at_a_key() {
    attempts_at(MemoryIdempotency::new()).await;
    attempts_at(Durable::new(Duration::ZERO)).await;
}

async fn attempts_at(keys: impl Idempotency + Clone) {
    let (broker, store, log) = (Broker::with(40), Store::new(), Log::default());
    let dependency = Dependency::default();
    let (works, seen) = (Arc::clone(&dependency.works), log.clone());
    let work = handler("orders.handle", move |delivery: Delivery| {
        let (works, seen) = (works.load(Ordering::Relaxed), seen.clone());
        async move {
            if works {
                seen.note(format!("{}: {}", position(&delivery), delivery.attempt()));
                // One failure of its own each.
                if delivery.attempt() > 1 {
                    return Ok(());
                }
            }
            Err(HandlerError::msg("connection refused"))
        }
    });
    let key = |delivery: &Delivery| position(delivery).to_string();
    let work = work.policy(policy(2, SECOND)).idempotency(keys).idempotency_key(key);
    let work = work.clock(store.clock.clone()).build().unwrap();
    let outage = protection().ratio(1.0).probes(2);
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
    let consumer = consumer.clock(store.clock.clone()).outage(outage);
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    let written = store.letters().await.len();
    sleep(300 * SECOND).await;
    let deferred = broker.settled_as("deferred");
    assert!(deferred.len() > 31, "in flight when it began, and probes: {deferred:?}");
    dependency.repair();
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.dead as usize, store.letters().await.len()), (written, written), "{report}");
    for position in deferred {
        let runs = [format!("{position}: 1"), format!("{position}: 2")];
        let of_it = format!("{position}: ");
        let seen: Vec<_> =
            log.lines().into_iter().filter(|line| line.starts_with(&of_it)).collect();
        assert_eq!(seen, runs);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_fetched_during_a_pause() {
    let (broker, store, dependency) = (Broker::with(100), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let consumer = consumer(&broker, &store, work).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    let opened = Instant::now();
    // What was in flight ends at once.
    tokio::task::yield_now().await;
    sleep(Duration::from_millis(10)).await;
    let fetched = broker.world().fetched;
    sleep(4 * SECOND).await;
    assert_eq!(broker.world().fetched, fetched);
    broker.until(|world| world.fetched > fetched).await;
    assert_eq!(opened.elapsed().as_secs(), 5);
    running.finish().await;
    assert_eq!(broker.held(), 0, "all were given back");
}

/// A deploy in the middle of an outage: the probes that have failed are no more at fault than those before.
#[tokio::test(start_paused = true)]
async fn g10_a_stop_while_probes_are_out_buries_nothing() {
    let (broker, store, dependency) = (Broker::with(1), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let consumer = consumer(&broker, &store, work).outage(protection().minimum(1));
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    sleep(6 * SECOND).await;
    assert_eq!(dependency.calls(), 2, "a probe has failed, and waits for others");
    let report = running.stop().await;
    assert_eq!((report.dead, report.deferred), (0, 2), "{report}");
    assert!(store.letters().await.is_empty());
}

/// A suspect runs alone, and its failure is judged beside others: else it would hold up the very probe that it waits for.
#[tokio::test(start_paused = true)]
async fn g4_a_suspect_among_the_probes_does_not_hold_up_the_others() {
    let (broker, store, dependency) = (Broker::with(1), Store::new(), Dependency::default());
    broker.handed_out(0, 9);
    dependency.repair();
    let work = dependency.handler(RetryPolicy::never(), &store, Some(0));
    let outage = protection().minimum(1).probes(2);
    let consumer = consumer(&broker, &store, work).outage(outage).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    broker.publish("");
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(broker.settled_as("succeeded"), [1]);
    assert_eq!(broker.settled_as("dead"), [0], "it is itself at fault");
    let last = broker.world().settled.last().unwrap().at;
    assert_eq!(last.as_secs(), 5, "after the first pause there was no other");
}

/// A probe that fails while another succeeds has failed by itself: it counts, and it does not keep the circuit open.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_itself_at_fault_dies_and_ends_no_recovery() {
    let (broker, store, dependency) = (Broker::with(60), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, Some(0));
    let mut running = Vec::new();
    let consumer = consumer(&broker, &store, work).build().unwrap();
    let mut health = consumer.health();
    running.push(Running::start(consumer));
    health.wait_for(|health| health.outage).await.unwrap();
    let buried = store.letters().await.len();
    dependency.repair();
    health.wait_for(|health| !health.outage).await.unwrap();
    broker.until_empty().await;
    let report = running.remove(0).stop().await;
    let letters = store.letters().await;
    assert!(
        letters.iter().any(|letter| *letter.origin.position() == dlq_core::Position::Offset(0))
    );
    assert!(letters.len() <= buried + 1, "{} letters, {buried} before", letters.len());
    assert_eq!(report.dead as usize, letters.len());
    assert_eq!(report.handled as usize, 60 - letters.len());
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_are_no_outage() {
    let (broker, store) = (Broker::with(100), Store::new());
    let work = handler("orders.handle", |_: Delivery| async {
        Err::<(), _>(HandlerError::msg("bad amount").permanent())
    })
    .derived();
    let consumer = consumer(&broker, &store, work.build().unwrap()).build().unwrap();
    let running = Running::start(consumer);
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.dead, report.deferred), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn without_protection_each_message_dies_of_its_own_attempts() {
    let (broker, store, dependency) = (Broker::with(50), Store::new(), Dependency::default());
    let work = dependency.handler(policy(2, SECOND), &store, None);
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store.clone());
    let consumer = consumer.without_outage_protection();
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    let report = running.stop().await;
    assert_eq!((report.dead, dependency.calls()), (50, 100));
    assert!(store.letters().await.iter().all(|letter| letter.reason == Reason::Exhausted));
}

#[tokio::test(start_paused = true)]
async fn the_automatic_schedule_waits_for_the_end_of_an_outage() {
    let (broker, store, dependency) = (Broker::with(40), Store::new(), Dependency::default());
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let schedule = Schedule::enabled().every(60 * SECOND);
    let consumer = consumer(&broker, &store, work).schedule(schedule).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    let runs = store.calls("run_schedule");
    sleep(600 * SECOND).await;
    assert_eq!(store.calls("run_schedule"), runs, "it would send letters back in vain");
    dependency.repair();
    broker.until_empty().await;
    // Those that died before it was noticed come back by themselves.
    while store.statuses().await.iter().any(|status| *status != Status::Resolved) {
        sleep(10 * SECOND).await;
    }
    running.finish().await;
}

/// A claim whose lease ended in our hands would count as a crash of its message.
#[tokio::test(start_paused = true)]
async fn g10_letters_that_were_claimed_wait_out_an_outage_in_the_store() {
    // Those that wait in the queue are given back; also where the store does not answer the first time.
    for refusals in [0, 1] {
        letters_wait_out_an_outage(refusals).await;
    }
}

async fn letters_wait_out_an_outage(refusals: u32) {
    let (broker, store, dependency) = (Broker::with(40), Store::new(), Dependency::default());
    // Letters of an earlier outage, all sent back at once.
    let work = dependency.handler(RetryPolicy::never(), &store, None);
    let running = Running::start(
        Consumer::builder(broker.source())
            .handler(work.clone())
            .dead_letters(store.clone())
            .clock(store.clock.clone())
            .build()
            .unwrap(),
    );
    broker.until_empty().await;
    running.finish().await;
    let _ = store.replay().await;

    let consumer =
        consumer(&broker, &store, work).claim_lease(6 * SECOND).max_in_flight(64).build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    sleep(SECOND).await;
    store.fail("finish", refusals, StoreErrorKind::Unavailable);
    sleep(600 * SECOND).await;
    dependency.repair();
    while store.statuses().await.contains(&Status::Replaying)
        || running.handle.health().get().outage
    {
        sleep(SECOND).await;
    }
    running.finish().await;
    let letters = store.letters().await;
    assert_eq!(letters.len(), 40);
    assert!(letters.iter().all(|letter| letter.crashes == 0), "no process died");
    assert_eq!(store.calls("begin"), 0, "and nobody is suspected of it");
    let again = letters.iter().filter(|letter| letter.generation > 0).count();
    assert!(again < 10, "no more died again than it took to notice: {again}");
}
