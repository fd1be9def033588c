//! A consumer on the broker in memory.

use dlq_core::memory::MemoryBroker;
use dlq_core::{DelayedRetry, History, RetryQueue};
use dlq_core::{Delivery, Message, StoreErrorKind};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::{HandlerError, handler};
use dlq_tower::router::Router;

use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, clock, policy, soon};

/// A record comes back to the group that had the message, whatever its handlers are called, and to the handler that
/// failed.
#[tokio::test(start_paused = true)]
async fn g1_records_of_several_handlers_come_back_to_their_group() {
    let clock = clock();
    let broker = MemoryBroker::new().clock(clock.clone());
    for subject in ["orders.created", "payments.made"] {
        broker.publish(Message::new(subject, "{}"));
    }
    let log = Log::default();
    let work = |name: &'static str| {
        let seen = log.clone();
        let work = handler(name, move |delivery: Delivery| {
            let (first, seen) = (delivery.attempt() == 1, seen.clone());
            async move {
                seen.note(format!("{name} {}", delivery.attempt()));
                if first { Err(HandlerError::msg("down")) } else { Ok(()) }
            }
        });
        work.policy(policy(3, 60 * SECOND)).clock(clock.clone()).build().unwrap()
    };
    let router = Router::new()
        .route("orders.*", work("orders.handle"))
        .route("payments.*", work("payments.charge"))
        .build()
        .unwrap();
    // Another group that has the messages in flight and handles none.
    let mut others = broker.source("archive");
    let _held = dlq_core::Source::next(&mut others).await.unwrap();
    let consumer = Consumer::builder(broker.source("billing"))
        .handler(router)
        .retry_queue(broker.retry_queue().for_group("billing"))
        .sink(Store::new())
        .clock(clock.clone());
    let running = Running::start(consumer.build().unwrap());
    soon(broker.idle("billing")).await;
    running.finish().await;
    let mut lines = log.lines();
    lines.sort();
    let both = ["orders.handle 1", "orders.handle 2", "payments.charge 1", "payments.charge 2"];
    assert_eq!(lines, both);
    assert_eq!(broker.pending("payments.charge"), 2, "there is no such group");
}

/// With one group nobody has to name it; where it cannot be told, nothing is written to a place that nobody reads.
#[tokio::test(start_paused = true)]
async fn the_group_of_a_record_is_the_one_that_has_the_message() {
    let broker = MemoryBroker::new().clock(clock());
    broker.publish(Message::new("orders", "{}"));
    let mut source = broker.source("billing");
    let (delivery, _held) = dlq_core::Source::next(&mut source).await.unwrap().unwrap();
    let delayed_retry = || DelayedRetry {
        delivery: delivery.clone().with_consumer("orders.handle"),
        consumer: "orders.handle".into(),
        due: dlq_core::Timestamp::EPOCH,
        history: History::new(),
        attempts: 1,
    };
    broker.retry_queue().enqueue(delayed_retry()).await.unwrap();
    assert_eq!(broker.unsettled("billing").len(), 2, "the message and its record");
    let mut other = broker.source("archive");
    let _too = dlq_core::Source::next(&mut other).await.unwrap();
    let refused = broker.retry_queue().enqueue(delayed_retry()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig);
    assert!(refused.to_string().contains("for_group"), "{refused}");
    assert_eq!(broker.unsettled("archive").len(), 1);
}
