use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::idempotency::{
    BoxIdempotency, Idempotency, IdempotencyClaim, IdempotencyToken, Release,
};
use dlq_core::{Clock, Reason, StoreError, StoreErrorKind, Timestamp};
use dlq_tower::classify::{Classify, ClassifyLayer};
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::{Done, Setback, Verdict};
use futures_util::FutureExt as _;
use tower::{Layer, Service, ServiceBuilder};

use crate::support::*;

type Once =
    dlq_tower::idempotency::Idempotency<Classify<Handler, fn(&Fail) -> dlq_core::Classification>>;

pub(crate) fn keyed<I: Idempotency + Clone>(store: &I) -> IdempotencyLayer {
    IdempotencyLayer::new(BoxIdempotency::new(store.clone()), |d| d.message().key().cloned())
        .lease(secs(30))
}

fn once(layer: &IdempotencyLayer, handler: &Handler) -> Once {
    let judge: fn(&Fail) -> dlq_core::Classification = judge;
    layer.layer(ClassifyLayer::new(judge).layer(handler.clone()))
}

fn memory() -> MemoryIdempotency {
    MemoryIdempotency::new().clock(clock())
}

/// Takes its time before each answer: not immediate.
#[derive(Clone, Debug)]
struct Patient(MemoryIdempotency);

impl Idempotency for Patient {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        tokio::task::yield_now().await;
        self.0.claim(consumer, key, lease).await
    }
    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        self.0.extend(token, lease).await
    }
    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        self.0.complete(token, keep).await
    }
    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        self.0.release(token, release).await
    }
    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.0.purge(limit).await
    }
}

/// A layer over a store that is asked in place, and one over a store that is waited for, each with what is in it.
pub(crate) fn both() -> [(MemoryIdempotency, IdempotencyLayer); 2] {
    let (immediate, patient) = (memory(), memory());
    assert!(immediate.immediate().is_some() && Patient(memory()).immediate().is_none());
    let layers = (keyed(&immediate), keyed(&Patient(patient.clone())));
    [(immediate, layers.0), (patient, layers.1)]
}

pub(crate) async fn claim(store: &impl Idempotency) -> IdempotencyClaim {
    store.claim(Arc::from(CONSUMER), Bytes::from("payment-1"), secs(30)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_message_is_handled_once() {
    for (_, layer) in both() {
        let handler = Handler::default();
        let service = once(&layer, &handler);
        assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
        assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Duplicate);
        assert_eq!(call(&service, delivery(2)).await.unwrap(), Done::Succeeded);
        let other = delivery(1).with_consumer("mail.send");
        assert_eq!(call(&service, other).await.unwrap(), Done::Succeeded, "another consumer's own");
        assert_eq!(handler.runs(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_key_is_just_handled() {
    let handler = Handler::default();
    let layer = IdempotencyLayer::new(BoxIdempotency::new(Broken), |_| None);
    let service = once(&layer, &handler);
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_elsewhere_does_not_run() {
    for (store, layer) in both() {
        let handler = Handler::default();
        let service = once(&layer, &handler);
        let _theirs = claim(&store).await;
        tokio::time::advance(secs(10)).await;
        let Setback::InFlight(found) = call(&service, delivery(1)).await.unwrap_err() else {
            panic!("it is in flight")
        };
        assert_eq!((found.remaining(), found.why()), (secs(20), "in flight elsewhere"));
        assert_eq!(handler.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_frees_the_key_and_is_counted() {
    for (_, layer) in both() {
        let handler = Handler::new([Act::Fail(down()), Act::Fail(down())]);
        let service = once(&layer, &handler);
        failed(call(&service, delivery(1)).await.unwrap_err());
        let attempt = failed(call(&service, delivery(1)).await.unwrap_err());
        assert_eq!(attempt.number, 2, "the broker says 1, the claim remembers one more");
        assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
        let attempts: Vec<_> = handler.seen().iter().map(|seen| seen.attempt).collect();
        assert_eq!(attempts, [1, 2, 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_claim_anew_and_count_alike() {
    for (store, layer) in both() {
        let handler = Handler::always(down());
        let keys = layer.key_janitor();
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new(policy(3, secs(1))))
            .layer(layer)
            .layer(ClassifyLayer::new(judge))
            .service(handler.clone());
        let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else {
            panic!("it is down")
        };
        assert_eq!((dead.reason, dead.attempts, handler.runs()), (Reason::Exhausted, 3, 3));
        let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("down") };
        assert_eq!(
            (dead.attempts, handler.runs()),
            (4, 4),
            "no more than one run without a letter"
        );
        assert_eq!(keys.start_over(&delivery(1)).await.unwrap(), None);
        let IdempotencyClaim::New { token, attempts, .. } = claim(&store).await else {
            panic!("free")
        };
        assert_eq!(attempts, 0, "its letter counts from here on");
        tokio::time::advance(secs(10)).await;
        let held = keys.start_over(&delivery(1)).await.unwrap();
        assert_eq!(held, Some(secs(20)), "whoever is at it goes on with the counts");
        assert!(store.complete(token, secs(60)).await.unwrap());
        assert_eq!(keys.start_over(&delivery(1)).await.unwrap(), None);
        assert!(matches!(claim(&store).await, IdempotencyClaim::Done { .. }), "done stays done");
    }
}

/// The next message with the key of a dead one is another message: it dies of its own attempts and crashes (G3).
#[tokio::test(start_paused = true)]
async fn a_message_inherits_nothing_from_a_dead_one_with_its_key() {
    for (store, layer) in both() {
        let refused = bad();
        let acts = [down(), down(), down(), down(), refused, down(), down(), down()];
        let handler = Handler::new(acts.map(Act::Fail));
        let keys = layer.key_janitor();
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new(policy(3, secs(1))))
            .layer(layer.max_crashes(2))
            .layer(ClassifyLayer::new(judge))
            .service(handler.clone());
        for (reason, attempts) in
            [(Reason::Exhausted, 3), (Reason::Permanent, 2), (Reason::Exhausted, 3)]
        {
            let died = verdict(&service, delivery(1)).await;
            let Verdict::Dead(dead) = died else { panic!("it is down: {died:?}") };
            assert_eq!((dead.reason, dead.attempts), (reason, attempts));
            if reason == Reason::Exhausted {
                assert_eq!(keys.start_over(&delivery(1)).await.unwrap(), None);
            }
        }
        assert_eq!(handler.runs(), 8);
        for _ in 0..2 {
            let crash = claim(&store).await;
            assert!(matches!(crash, IdempotencyClaim::New { .. }), "{crash:?}");
            tokio::time::advance(secs(31)).await;
        }
        for _ in 0..3 {
            let died = verdict(&service, delivery(1)).await;
            let Verdict::Dead(dead) = died else { panic!("it kills: {died:?}") };
            assert_eq!(
                (dead.reason, dead.crashes),
                (Reason::MaxCrashes, 2),
                "not run without a letter"
            );
        }
        assert_eq!(keys.start_over(&delivery(1)).await.unwrap(), None);
        let next = verdict(&service, delivery(1)).await;
        assert_eq!(next, Verdict::Done(Done::Succeeded), "not buried unrun");
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_is_extended_while_the_handler_runs() {
    for (store, layer) in both() {
        let handler = Handler::new([Act::Take(secs(300))]);
        let service = once(&layer, &handler);
        let mut slow = Box::pin(call(&service, delivery(1)));
        assert!(futures_util::poll!(slow.as_mut()).is_pending());
        let watch = async {
            for _ in 0..29 {
                tokio::time::sleep(secs(10)).await;
                assert!(matches!(claim(&store).await, IdempotencyClaim::InFlight { .. }));
            }
        };
        let (outcome, ()) = tokio::join!(slow, watch);
        assert_eq!(outcome.unwrap(), Done::Succeeded);
        assert!(matches!(claim(&store).await, IdempotencyClaim::Done { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_dropped_midway_gives_its_claim_back_uncounted() {
    for (store, layer) in both() {
        let handler = Handler::new([Act::Take(secs(300))]);
        let service = once(&layer, &handler);
        assert!(tokio::time::timeout(secs(1), call(&service, delivery(1))).await.is_err());
        layer.drained().await;
        let free = claim(&store).await;
        assert!(matches!(free, IdempotencyClaim::New { attempts: 0, crashes: 0, .. }), "{free:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_ended_without_a_word_are_crashes() {
    for (store, layer) in both() {
        let handler = Handler::default();
        let layer = layer.max_crashes(2);
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new(policy(3, secs(1))))
            .layer(layer)
            .layer(ClassifyLayer::new(judge))
            .service(handler.clone());
        let _crash = claim(&store).await;
        tokio::time::advance(secs(31)).await;
        let _crash = claim(&store).await;
        tokio::time::advance(secs(31)).await;
        let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("it kills") };
        assert_eq!((dead.reason, dead.crashes), (Reason::MaxCrashes, 2));
        assert_eq!(handler.runs(), 0);
        let replayed = delivery(1).with_death(dlq_core::Death {
            letter: dlq_core::LetterId::from_bytes([3; 16]),
            generation: 1,
        });
        let again = verdict(&service, replayed).await;
        assert_eq!(again, Verdict::Done(Done::Succeeded), "a replay has its chance");
    }
}

/// A clock that somebody sets.
#[derive(Debug)]
struct Set(Mutex<Timestamp>);

impl Clock for Set {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

/// Whoever is at the key extends it by the new time; what waits for them would not know of it for as long as it was.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_makes_nobody_wait_longer_than_a_lease() {
    let clock = Arc::new(Set(Mutex::new(start())));
    let store = MemoryIdempotency::new().clock(clock.clone());
    let (layer, handler) = (keyed(&store), Handler::default());
    let service = once(&layer, &handler);
    let _held = claim(&store).await;
    *clock.0.lock().unwrap() = start().before(secs(7200));
    let outcome = call(&service, delivery(1)).await.unwrap_err();
    let remaining = match &outcome {
        Setback::InFlight(found) => found.remaining(),
        other => panic!("{other}"),
    };
    assert!(remaining <= secs(30), "{outcome:?}");
    let left = layer.key_janitor().start_over(&delivery(1)).await.unwrap();
    assert!(left.is_some_and(|left| left <= secs(30)), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_sees_how_often_it_crashed() {
    for (store, layer) in both() {
        let handler = Handler::default();
        let service = once(&layer, &handler);
        let _crash = claim(&store).await;
        tokio::time::advance(secs(31)).await;
        assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
        assert_eq!(handler.seen()[0].crashes, 1);
    }
}

/// Answers nothing.
#[derive(Clone, Debug)]
struct Broken;

fn no_answer<T>() -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Unavailable, "answer"))
}

impl Idempotency for Broken {
    async fn claim(
        &self,
        _: Arc<str>,
        _: Bytes,
        _: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        no_answer()
    }
    async fn extend(&self, _: IdempotencyToken, _: Duration) -> Result<bool, StoreError> {
        no_answer()
    }
    async fn complete(&self, _: IdempotencyToken, _: Duration) -> Result<bool, StoreError> {
        no_answer()
    }
    async fn release(&self, _: IdempotencyToken, _: Release) -> Result<bool, StoreError> {
        no_answer()
    }
    async fn purge(&self, _: u32) -> Result<u64, StoreError> {
        no_answer()
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_defers_the_message() {
    let handler = Handler::default();
    let service = once(&keyed(&Broken), &handler);
    let outcome = call(&service, delivery(1)).await.unwrap_err();
    assert!(matches!(outcome, Setback::Deferred { .. }), "{outcome}");
    assert_eq!(handler.runs(), 0);
}

/// Claims, and then answers no more; counts what it was asked.
#[derive(Clone, Debug)]
struct Forgetful {
    memory: MemoryIdempotency,
    extended: Arc<AtomicU32>,
    completed: Arc<AtomicU32>,
}

impl Idempotency for Forgetful {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        self.memory.claim(consumer, key, lease).await
    }
    async fn extend(&self, _: IdempotencyToken, _: Duration) -> Result<bool, StoreError> {
        self.extended.fetch_add(1, SeqCst);
        no_answer()
    }
    async fn complete(&self, _: IdempotencyToken, _: Duration) -> Result<bool, StoreError> {
        self.completed.fetch_add(1, SeqCst);
        no_answer()
    }
    async fn release(&self, _: IdempotencyToken, _: Release) -> Result<bool, StoreError> {
        no_answer()
    }
    async fn purge(&self, _: u32) -> Result<u64, StoreError> {
        no_answer()
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_stays_a_success_when_its_mark_cannot_be_written() {
    let store = Forgetful { memory: memory(), extended: Arc::default(), completed: Arc::default() };
    let handler = Handler::new([Act::Take(secs(25)), Act::Fail(down())]);
    let service = once(&keyed(&store), &handler);
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
    assert_eq!(store.extended.load(SeqCst), 2, "tried again after a failed extension");
    assert_eq!(store.completed.load(SeqCst), 1);
    failed(call(&service, delivery(2)).await.unwrap_err());
}

/// Does not answer for a while when a claim ends.
#[derive(Clone, Debug)]
struct Passing {
    memory: MemoryIdempotency,
    left: Arc<AtomicU32>,
}

impl Passing {
    fn answers(&self) -> bool {
        self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err()
    }
}

impl Idempotency for Passing {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        self.memory.claim(consumer, key, lease).await
    }
    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        self.memory.extend(token, lease).await
    }
    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        if self.answers() { self.memory.complete(token, keep).await } else { no_answer() }
    }
    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        if self.answers() { self.memory.release(token, release).await } else { no_answer() }
    }
    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.memory.purge(limit).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_out_for_a_while_hears_of_it_later() {
    let store = Passing { memory: memory(), left: Arc::new(AtomicU32::new(3)) };
    let layer = keyed(&store);
    let handler = Handler::new([Act::Succeed]);
    let service = once(&layer, &handler);
    let begun = tokio::time::Instant::now();
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for it");
    layer.drained().await;
    tokio::time::sleep(secs(60)).await;
    let again = call(&service, delivery(1)).await.unwrap();
    assert_eq!((again, handler.runs()), (Done::Duplicate, 1), "past the lease");

    let store = Passing { memory: memory(), left: Arc::new(AtomicU32::new(3)) };
    let layer = keyed(&store);
    let service = once(&layer, &Handler::new([Act::Fail(down())]));
    failed(call(&service, delivery(1)).await.unwrap_err());
    layer.drained().await;
    let free = claim(&store.memory).await;
    assert!(
        matches!(free, IdempotencyClaim::New { attempts: 1, crashes: 0, .. }),
        "an attempt, and no crash: {free:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_immediate_store_makes_nothing_wait() {
    let (store, handler) = (memory(), Handler::default());
    let service = once(&keyed(&store), &handler);
    let mut running = Box::pin(call(&service, delivery(1)));
    assert!(futures_util::poll!(running.as_mut()).is_ready(), "at the first poll");
    assert!(matches!(claim(&store).await, IdempotencyClaim::Done { .. }));
}

#[test]
fn a_claim_on_an_immediate_store_is_given_back_at_once_without_a_runtime() {
    let (store, handler) = (MemoryIdempotency::new(), Handler::default());
    let mut service = once(&keyed(&store), &handler);
    drop(Service::call(&mut service, delivery(1)));
    let free = claim(&store).now_or_never();
    assert!(
        matches!(free, Some(IdempotencyClaim::New { attempts: 0, crashes: 0, .. })),
        "{free:?}"
    );
}
