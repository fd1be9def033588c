//! Classify, panic guard, timeout, permits.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::policy::PanicPolicy;
use dlq_core::{Cause, Delivery, ErrorClass};
use dlq_tower::catch_panic::CatchPanicLayer;
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::{Done, Verdict};
use dlq_tower::timeout::TimeoutLayer;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn an_error_is_read_whole_and_timed() {
    let layer = ClassifyLayer::derived().clock(clock()).location("src/pay.rs:7:1");
    let service = ServiceBuilder::new().layer(layer).service(service_fn(|_: Delivery| async {
        tokio::time::sleep(secs(2)).await;
        Err::<(), _>(bad())
    }));
    let attempt = failed(call(&service, delivery(1).with_attempt(3)).await.unwrap_err());
    assert_eq!((attempt.number, attempt.generation), (3, 0));
    let failure = attempt.failure;
    assert_eq!((failure.class, failure.cause), (ErrorClass::Permanent, Cause::Error));
    assert_eq!(failure.messages, ["bad amount", "invalid digit found in string"]);
    assert!(failure.error_type.ends_with("support::Fail"), "{}", failure.error_type);
    assert_eq!(failure.location.as_deref(), Some("src/pay.rs:7:1"));
    assert_eq!((failure.at, failure.duration), (start().after(secs(2)), secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_closure_judges_and_success_is_done() {
    let handler = Handler::new([Act::Fail(ask_again(secs(9)))]);
    let service = ServiceBuilder::new().layer(ClassifyLayer::new(judge)).service(handler);
    let attempt = failed(call(&service, delivery(1)).await.unwrap_err());
    assert_eq!(attempt.failure.class, ErrorClass::Transient);
    assert_eq!(attempt.failure.retry_after, Some(secs(9)));
    assert_eq!(attempt.failure.location, None, "our own source is not where it happened");
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_permanent_failure_unless_told() {
    for (layer, class) in [
        (CatchPanicLayer::new(), ErrorClass::Permanent),
        (CatchPanicLayer::new().policy(PanicPolicy::Retry), ErrorClass::Transient),
    ] {
        let handler = Handler::new([Act::Panic("index out of range")]);
        let service = ServiceBuilder::new()
            .layer(layer)
            .layer(ClassifyLayer::new(judge))
            .service(handler.clone());
        let attempt = failed(call(&service, delivery(1).with_attempt(2)).await.unwrap_err());
        assert_eq!(attempt.number, 2);
        assert_eq!((attempt.failure.class, attempt.failure.cause), (class, Cause::Panic));
        assert_eq!(attempt.failure.message(), "index out of range");
        assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded, "it goes on");
    }
}

/// Panics again when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("and again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panics_outside_of_a_poll_are_caught_as_well() {
    let in_call = service_fn(|_: Delivery| {
        if true {
            panic!("before the future");
        }
        async { Ok::<(), Fail>(()) }
    });
    let service = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(ClassifyLayer::new(judge))
        .service(in_call);
    let attempt = failed(call(&service, delivery(1)).await.unwrap_err());
    assert_eq!(attempt.failure.message(), "before the future");

    let odd_payload = service_fn(|_: Delivery| async {
        std::panic::panic_any(Grenade);
        #[expect(unreachable_code, reason = "gives the block its type")]
        Ok::<(), Fail>(())
    });
    let service = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(ClassifyLayer::new(judge))
        .service(odd_payload);
    let attempt = failed(call(&service, delivery(1)).await.unwrap_err());
    assert!(attempt.failure.message().contains("not text"), "{}", attempt.failure.message());

    let mut grenade = Some(Grenade);
    let held = std::future::poll_fn(move |_| {
        assert!(grenade.is_none(), "while holding");
        grenade.take();
        std::task::Poll::Ready(Ok::<(), Fail>(()))
    });
    let mut held = Some(held);
    let mut service = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(ClassifyLayer::new(judge))
        .service(service_fn(move |_: Delivery| held.take().unwrap()));
    let outcome = service.ready().await.unwrap().call(delivery(1)).await;
    assert_eq!(failed(outcome.unwrap_err()).failure.message(), "while holding");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_cut_off_in_time() {
    let layer = TimeoutLayer::new(secs(10)).clock(clock());
    let handler = Handler::new([Act::Take(secs(11)), Act::Take(secs(9))]);
    let service =
        ServiceBuilder::new().layer(layer).layer(ClassifyLayer::new(judge)).service(handler);
    let attempt = failed(call(&service, delivery(1).with_attempt(4)).await.unwrap_err());
    assert_eq!(attempt.number, 4);
    let failure = attempt.failure;
    assert_eq!((failure.class, failure.cause), (ErrorClass::Transient, Cause::Timeout));
    assert_eq!((failure.at, failure.duration), (start().after(secs(10)), secs(10)));
    assert_eq!(call(&service, delivery(1)).await.unwrap(), Done::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_off_is_dropped_before_the_failure_is_reported() {
    let alive = Arc::new(());
    let inside = Arc::clone(&alive);
    let mut service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(secs(1)))
        .layer(ClassifyLayer::new(judge))
        .service(service_fn(move |_: Delivery| {
            let held = Arc::clone(&inside);
            async move {
                std::future::pending::<()>().await;
                drop(held);
                Ok::<(), Fail>(())
            }
        }));
    let mut running = Box::pin(service.ready().await.unwrap().call(delivery(1)));
    let outcome = (&mut running).await;
    assert!(outcome.is_err());
    assert_eq!(Arc::strong_count(&alive), 2, "the handler keeps one, its future none");
}

/// It would be no failure at all: no attempt would be counted, and the message come again without end.
#[tokio::test(start_paused = true)]
async fn g3_what_panics_while_it_is_cut_off_has_failed_of_its_timeout() {
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(policy(2, secs(1))))
        .layer(TimeoutLayer::new(secs(1)))
        .layer(CatchPanicLayer::new())
        .layer(ClassifyLayer::new(judge))
        .service(service_fn(|_: Delivery| async {
            let _held = Grenade;
            std::future::pending::<Result<(), Fail>>().await
        }));
    let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("it lives") };
    assert_eq!((dead.cause, dead.attempts), (Some(Cause::Timeout), 2));
}

#[tokio::test(start_paused = true)]
async fn permits_are_shared_and_given_back() {
    let handler = Handler::new([Act::Take(secs(5)), Act::Take(secs(5)), Act::Take(secs(5))]);
    let service = ServiceBuilder::new()
        .layer(ConcurrencyLayer::new(2))
        .layer(ClassifyLayer::new(judge))
        .service(handler.clone());
    let begin = Instant::now();
    let three = [1, 2, 3].map(|offset| call(&service, delivery(offset)));
    for outcome in futures_util::future::join_all(three).await {
        assert_eq!(outcome.unwrap(), Done::Succeeded);
    }
    let starts: Vec<_> = handler.seen().iter().map(|seen| seen.at - begin).collect();
    assert_eq!(starts, [Duration::ZERO, Duration::ZERO, secs(5)]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_gives_its_permit_back() {
    let handler = Handler::new([Act::Take(secs(3600))]);
    let service = ServiceBuilder::new()
        .layer(ConcurrencyLayer::new(0))
        .layer(ClassifyLayer::new(judge))
        .service(handler);
    let dropped = tokio::time::timeout(secs(1), call(&service, delivery(1))).await;
    assert!(dropped.is_err());
    assert_eq!(call(&service, delivery(2)).await.unwrap(), Done::Succeeded);
}
