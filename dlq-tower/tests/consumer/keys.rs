//! What a consumer does for idempotency keys besides having them claimed.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::idempotency::{Idempotency, IdempotencyClaim, IdempotencyToken, Release};
use dlq_core::{Delivery, StoreError, StoreErrorKind};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerBuilder, handler};
use dlq_tower::idempotency::IdempotencyLayer;
use futures_util::FutureExt as _;
use tokio::time::sleep;

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, clock, position};

/// Like a store in a database: it takes its time for each answer.
#[derive(Clone, Debug)]
pub(crate) struct Durable {
    memory: MemoryIdempotency,
    answers_after: Duration,
    /// Says each time that it has forgotten as many as it was to.
    never_done: bool,
    /// So many releases of the dead get no answer.
    refuses_dead: Arc<AtomicU32>,
    /// So many claims get no answer.
    refuses_claims: Arc<AtomicU32>,
}

impl Durable {
    pub(crate) fn new(answers_after: Duration) -> Self {
        let memory = MemoryIdempotency::new().clock(clock());
        Self {
            memory,
            answers_after,
            never_done: false,
            refuses_dead: Arc::default(),
            refuses_claims: Arc::default(),
        }
    }

    /// The next `times` that the counts of a key are to start over, nothing is recorded.
    pub(crate) fn refuse_dead(&self, times: u32) {
        self.refuses_dead.store(times, Ordering::Relaxed);
    }

    /// What is known of a key at this moment.
    pub(crate) fn claim_now(&self, key: &'static str) -> IdempotencyClaim {
        let claim = self.memory.claim("orders.handle".into(), key.into(), SECOND);
        claim.now_or_never().expect("memory does not wait").expect("it answers")
    }
}

impl Idempotency for Durable {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        tokio::task::yield_now().await;
        let refuses = |left: u32| left.checked_sub(1);
        if self.refuses_claims.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuses).is_ok() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "claim a key"));
        }
        self.memory.claim(consumer, key, lease).await
    }
    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        self.memory.extend(token, lease).await
    }
    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        sleep(self.answers_after).await;
        self.memory.complete(token, keep).await
    }
    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        sleep(self.answers_after).await;
        let refuses = |left: u32| left.checked_sub(1).filter(|_| release == Release::Dead);
        if self.refuses_dead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuses).is_ok() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "release"));
        }
        self.memory.release(token, release).await
    }
    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        if self.never_done { Ok(u64::from(limit)) } else { self.memory.purge(limit).await }
    }
}

fn keyed<F>(
    work: HandlerBuilder<F>,
    keys: &Durable,
) -> HandlerBuilder<F, (), dlq_tower::handler::Unclassified, Durable> {
    work.idempotency(keys.clone())
        .idempotency_key(|delivery: &Delivery| position(delivery).to_string())
}

/// One that was cut off did not crash: its key is free when the run has returned, and a deploy costs nothing (G3).
#[tokio::test(start_paused = true)]
async fn a_handler_that_was_cut_off_leaves_its_key_free_and_uncounted() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let keys = Durable::new(SECOND / 2);
    let seen = log.clone();
    let work = handler("orders.handle", move |_: Delivery| {
        seen.note("runs");
        pending::<()>()
    });
    let consumer = Consumer::builder(broker.source())
        .handler(keyed(work, &keys).build().unwrap())
        .dead_letters(store)
        .shutdown_deadline(5 * SECOND);
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.len() == 1).await;
    let held = keys.claim_now("0");
    assert!(matches!(held, IdempotencyClaim::InFlight { .. }), "{held:?}");
    let report = running.stop().await;
    assert_eq!(report.unsettled, 1);
    let free = keys.claim_now("0");
    assert!(matches!(free, IdempotencyClaim::New { attempts: 0, crashes: 0, .. }), "{free:?}");
}

/// Messages with a key are put off while their store does not answer, which the health says until it does again (G9).
#[tokio::test(start_paused = true)]
async fn g9_a_store_of_keys_that_does_not_answer_is_told_of() {
    let (broker, store, keys) = (Broker::with(1), Store::new(), Durable::new(SECOND / 2));
    keys.refuses_claims.store(3, Ordering::Relaxed);
    let work = handler("orders.handle", |_: Delivery| async {});
    let work = keyed(work, &keys).build().unwrap();
    let consumer = Consumer::builder(broker.source()).handler(work).dead_letters(store);
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    let ill = health.wait_for(|health| health.keys_error.is_some()).await.unwrap();
    assert!(!ill.is_healthy(), "{ill:?}");
    assert!(ill.keys_error.is_some_and(|why| why.contains("claim a key")));
    broker.until_empty().await;
    assert!(health.get().is_healthy());
    assert_eq!(running.stop().await.handled, 1);
}

/// A store that does not answer does not hold up the stop for long.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_keys_for_a_second_at_most() {
    let (broker, store, log) = (Broker::with(1), Store::new(), Log::default());
    let keys = Durable::new(3600 * SECOND);
    let seen = log.clone();
    let work = handler("orders.handle", move |_: Delivery| {
        seen.note("runs");
        pending::<()>()
    });
    let consumer = Consumer::builder(broker.source())
        .handler(keyed(work, &keys).build().unwrap())
        .dead_letters(store)
        .shutdown_deadline(5 * SECOND);
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.len() == 1).await;
    let asked = tokio::time::Instant::now();
    running.finish().await;
    assert_eq!(asked.elapsed().as_secs(), 6);
    let held = keys.claim_now("0");
    assert!(matches!(held, IdempotencyClaim::InFlight { .. }), "{held:?}");
}

/// Keys do not grow without end: what was kept long enough is forgotten, and nobody has to ask.
#[tokio::test(start_paused = true)]
async fn keys_that_were_kept_long_enough_are_forgotten_by_themselves() {
    const MANY: u64 = 2_500;
    let (broker, store) = (Broker::with(MANY), Store::new());
    let (keys, lasting) = (Durable::new(Duration::ZERO), Durable::new(Duration::ZERO));
    let work = |keys: &Durable, keep: Duration| {
        let work = handler("orders.handle", |_: Delivery| async {});
        keyed(work, keys).idempotency_keep(keep).build().unwrap()
    };
    let run = |broker: &Broker, work| {
        let consumer = Consumer::builder(broker.source()).handler(work);
        Running::start(consumer.dead_letters(store.clone()).build().unwrap())
    };
    let other = Broker::with(3);
    let running = run(&broker, work(&keys, SECOND));
    let lasts = run(&other, work(&lasting, 3600 * SECOND));
    broker.until_empty().await;
    other.until_empty().await;
    sleep(65 * SECOND).await;
    running.finish().await;
    lasts.finish().await;
    assert_eq!(keys.purge(u32::MAX).await.unwrap(), 0, "nothing is left to forget");
    let known = lasting.claim_now("1");
    assert!(matches!(known, IdempotencyClaim::Done { .. }), "{known:?}");
}

/// A store with a great deal to forget holds up no other.
#[tokio::test(start_paused = true)]
async fn stores_forget_in_turn() {
    let broker = Broker::with(0);
    let busy = Durable { never_done: true, ..Durable::new(Duration::ZERO) };
    let keys = Durable::new(Duration::ZERO);
    for key in 0..2_500_u32 {
        let claim = keys.claim("orders.handle".into(), key.to_string().into(), SECOND).await;
        let IdempotencyClaim::New { token, .. } = claim.unwrap() else { panic!("it is new") };
        assert!(keys.complete(token, SECOND).await.unwrap());
    }
    let other = IdempotencyLayer::new(keys.clone(), |_| None);
    let consumer = Consumer::builder(broker.source())
        .handler(keyed(handler("orders.handle", |_: Delivery| async {}), &busy).build().unwrap())
        .key_janitor(other.key_janitor())
        .dead_letters(Store::new());
    let running = Running::start(consumer.build().unwrap());
    sleep(65 * SECOND).await;
    running.finish().await;
    assert_eq!(keys.purge(u32::MAX).await.unwrap(), 0, "nothing is left to forget");
}
