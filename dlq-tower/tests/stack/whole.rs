//! All layers in their order.

use dlq_core::idempotency::BoxIdempotency;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::store::Letters;
use dlq_core::{Cause, Disposition, Reason};
use dlq_letters::memory::MemoryStore;
use dlq_tower::catch_panic::CatchPanicLayer;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::metrics::MetricsLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::timeout::TimeoutLayer;
use dlq_tower::trace::TraceLayer;
use tower::ServiceBuilder;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_stack_of_every_layer_retries_buries_and_recognises() {
    let store = MemoryStore::new().clock(clock());
    let keys = MemoryIdempotency::new().clock(clock());
    let handler = Handler::new([
        // The first message: two setbacks, then success.
        Act::Fail(down()),
        Act::Take(secs(60)),
        Act::Succeed,
        // The second one: dies of a panic.
        Act::Fail(down()),
        Act::Panic("a bug"),
    ]);
    let service = ServiceBuilder::new()
        .layer(TraceLayer::new())
        .layer(MetricsLayer::new())
        .layer(DeadLetterLayer::new(store.clone()).retry_queue(store.clone()).clock(clock()))
        .layer(RetryLayer::new(policy(3, secs(1))).clock(clock()))
        .layer(ConcurrencyLayer::new(4))
        .layer(IdempotencyLayer::new(BoxIdempotency::new(keys), |d| d.message().key().cloned()))
        .layer(TimeoutLayer::new(secs(10)).clock(clock()))
        .layer(CatchPanicLayer::new().clock(clock()))
        .layer(ClassifyLayer::derived().clock(clock()))
        .service(handler.clone());

    let first = call(&service, delivery(1)).await.unwrap();
    assert!(matches!(first.disposition(), Disposition::Succeeded), "{first:?}");
    let again = call(&service, delivery(1)).await.unwrap();
    assert!(matches!(again.disposition(), Disposition::Duplicate), "{again:?}");

    let second = call(&service, delivery(2)).await.unwrap();
    let Disposition::Dead(letter) = second.into_disposition() else { panic!("it panicked") };
    assert_eq!((letter.reason, letter.cause), (Reason::Permanent, Some(Cause::Panic)));
    assert_eq!(handler.runs(), 5);

    let stored = store.get(letter.id).await.unwrap().unwrap();
    assert_eq!(stored.history, letter.history);
    let causes: Vec<_> = stored.history.attempts().iter().map(|a| a.failure.cause).collect();
    assert_eq!(causes, [Cause::Error, Cause::Panic]);
    assert_eq!(stored.message.payload(), delivery(2).message().payload());
}
