//! Layers of others between ours.

use dlq_core::{BoxError, Cause, ErrorClass, Reason};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::{Done, Setback, Verdict};
use dlq_tower::timeout::TimeoutLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceBuilder};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_foreign_timeout_counts_as_a_transient_failure_of_this_attempt() {
    let handler = Handler::new([Act::Take(secs(60)), Act::Take(secs(60))]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(4, secs(1))).clock(clock()))
        .layer(tower::timeout::TimeoutLayer::new(secs(10)))
        .layer(ClassifyLayer::new(judge))
        .service(handler.clone());
    let Verdict::Dead(dead) = verdict(&service, delivery(1).with_attempt(3)).await else {
        panic!("it has two attempts left")
    };
    assert_eq!(
        (dead.reason, dead.class, dead.attempts),
        (Reason::Exhausted, ErrorClass::Transient, 4)
    );
    let numbers: Vec<_> = dead.history.attempts().iter().map(|a| a.number).collect();
    assert_eq!(numbers, [3, 4]);
    assert_eq!(dead.history.first().unwrap().at, start().after(secs(10)));
    assert_eq!(dead.cause, Some(Cause::Error));
}

#[tokio::test(start_paused = true)]
async fn a_classified_failure_passes_through_a_foreign_box() {
    let handler = Handler::new([Act::Fail(bad())]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(4, secs(1))))
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(tower::timeout::TimeoutLayer::new(secs(10)))
        .layer(ClassifyLayer::new(judge))
        .service(handler);
    let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("it is bad") };
    assert_eq!((dead.reason, dead.class), (Reason::Permanent, ErrorClass::Permanent));
    assert_eq!(dead.history.last().unwrap().message(), "bad amount");
}

#[tokio::test(start_paused = true)]
async fn foreign_layers_fit_between_any_of_ours() {
    let store = dlq_core::idempotency::memory::MemoryIdempotency::new().clock(clock());
    let store = dlq_core::idempotency::BoxIdempotency::new(store);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::never())
        .layer(tower::timeout::TimeoutLayer::new(secs(10)))
        .layer(IdempotencyLayer::new(store, |delivery| delivery.message().key().cloned()))
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(tower::timeout::TimeoutLayer::new(secs(10)))
        .layer(TimeoutLayer::new(secs(1)))
        .layer(tower::timeout::TimeoutLayer::new(secs(10)))
        .layer(ClassifyLayer::new(judge))
        .service(Handler::default());
    assert_eq!(verdict(&service, delivery(1)).await, Verdict::Done(Done::Succeeded));
    assert_eq!(verdict(&service, delivery(1)).await, Verdict::Done(Done::Duplicate));
}

#[test]
fn a_setback_survives_the_box() {
    let deferred = Setback::Deferred { after: secs(1), why: "outage" };
    let boxed: BoxError = Box::new(deferred.clone());
    assert_eq!(Setback::from(boxed), deferred);
    let attempt = failed(Setback::from(BoxError::from("overloaded")));
    assert_eq!(attempt.failure.message(), "overloaded");
    assert_eq!(attempt.failure.class, ErrorClass::Transient);
}

/// What an error says of itself is as long as it likes, and kept as long as a text may be (G8).
#[tokio::test]
async fn what_an_error_names_itself_is_bounded() {
    use dlq_core::{Classification, Classifier};

    #[derive(Clone)]
    struct Verbose;
    impl Classifier<Fail> for Verbose {
        fn classify(&self, _: &Fail) -> Classification {
            Classification::permanent()
        }
        fn group(&self, _: &Fail) -> Option<String> {
            Some("g".repeat(1 << 20))
        }
        fn location(&self, _: &Fail) -> Option<String> {
            Some("l".repeat(1 << 20))
        }
    }

    let service = ClassifyLayer::new(Verbose).layer(Handler::always(bad()));
    let mut attempt = failed(call(&service, delivery(1)).await.unwrap_err());
    let longest = dlq_core::MAX_TEXT + 10;
    let lengths = |attempt: &dlq_core::Attempt| {
        [&attempt.failure.group, &attempt.failure.location]
            .map(|text| text.as_ref().map_or(0, String::len))
    };
    assert!(lengths(&attempt).iter().all(|length| (1_000..longest).contains(length)));
    let mut history = dlq_core::History::new();
    history.push(attempt.clone());
    history.shorten(100);
    attempt = history.attempts()[0].clone();
    assert!(lengths(&attempt).iter().all(|length| (100..110).contains(length)), "for a header");
}
