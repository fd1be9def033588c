//! Attacks on single layers.

use std::time::Duration;

use dlq_core::policy::{Backoff, Delays, RetryPolicy};
use dlq_core::{Classification, Delivery, Message, Reason, StoreErrorKind};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::idempotency::IdempotencyLayer;
use dlq_tower::retry::RetryLayer;
use dlq_tower::stage::Verdict;
use tower::Layer;

use crate::support::*;

/// G1: a stream that was made anew may give an identity again. That a part of the first message's routing has
/// confirmed says nothing about the second one.
#[tokio::test(start_paused = true)]
async fn g1_what_confirmed_one_message_does_not_confirm_another_of_its_identity() {
    let sink = TestSink::default();
    let feed = TestSink::new([Put::Refuse(StoreErrorKind::Unavailable)]);
    let layer = DeadLetterLayer::new(sink.clone()).feed("feed", feed).clock(clock());
    let judge: fn(&Fail) -> Classification = judge;
    let inner = ClassifyLayer::new(judge).layer(Handler::always(bad()));
    let service = layer.layer(RetryLayer::never().layer(inner));
    let first = delivery(1);
    assert!(call(&service, first.clone()).await.is_err(), "the feed refuses");
    assert_eq!(sink.calls(), [1]);

    let second =
        Delivery::new(Message::new("payments.created", "other bytes"), first.origin().clone())
            .with_consumer(CONSUMER);
    assert_eq!(second.death(CONSUMER), first.death(CONSUMER));
    let _ = call(&service, second).await.unwrap();
    assert_eq!(sink.calls(), [1, 1], "the second message is written before it is settled");
    let _ = call(&service, first).await.unwrap();
    assert_eq!(sink.calls(), [1, 1], "what confirmed the first is still known");
}

/// A table of delays that is too short, say.
#[derive(Debug)]
struct Table;

impl Delays for Table {
    fn delay(&self, attempt: u32, _: u64) -> Option<Duration> {
        Some([secs(1)][attempt as usize - 1])
    }
}

/// The delays are the user's, and stand outside the panic guard, too.
#[tokio::test(start_paused = true)]
async fn g3_a_message_whose_delay_panics_has_no_attempt_left() {
    let handler = Handler::always(down());
    let judge: fn(&Fail) -> Classification = judge;
    let inner = ClassifyLayer::new(judge).layer(handler.clone());
    let policy = RetryPolicy::new().with_max_attempts(5).with_backoff(Backoff::custom(Table));
    let service = RetryLayer::new(policy).layer(inner);
    let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("it lives") };
    assert_eq!((dead.reason, dead.attempts, handler.runs()), (Reason::Exhausted, 2, 2));
    assert_eq!(dead.history.last().unwrap().message(), "the provider is down");
}

/// G9: the function that reads the key is the user's, and stands outside the panic guard.
#[tokio::test(start_paused = true)]
async fn g9_a_key_function_that_panics_fails_its_message() {
    let store = dlq_core::idempotency::BoxIdempotency::new(
        dlq_core::idempotency::memory::MemoryIdempotency::new(),
    );
    let layer = IdempotencyLayer::new(store, |_: &Delivery| panic!("a field that is not there"));
    let judge: fn(&Fail) -> Classification = judge;
    let handler = Handler::default();
    let inner = layer.layer(ClassifyLayer::new(judge).layer(handler.clone()));
    let service = RetryLayer::new(policy(3, secs(1))).layer(inner);
    let Verdict::Dead(dead) = verdict(&service, delivery(1)).await else { panic!("it lives") };
    assert_eq!(dead.cause, Some(dlq_core::Cause::Panic));
    assert_eq!(handler.runs(), 0, "without its key it is not run");
    assert!(dead.history.last().unwrap().report().contains("a field that is not there"));
}
