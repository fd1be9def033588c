//! Stacks composed by hand, whose permits are waited for before a message is called.

use std::fmt;
use std::task::{Context, Poll};

use dlq_core::policy::Backoff;
use dlq_core::{Classification, Classify, Delivery, RetryPolicy};
use dlq_tower::classify::ClassifyLayer;
use dlq_tower::concurrency::ConcurrencyLayer;
use dlq_tower::consumer::{Consumer, OutagePolicy};
use dlq_tower::dead_letter::DeadLetterLayer;
use dlq_tower::retry::RetryLayer;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceBuilder, service_fn};

use crate::broker::Broker;
use crate::faulty::Store;
use crate::support::{Log, Running, SECOND, position};

#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl Classify for Refused {
    fn classify(&self) -> Classification {
        Classification::transient()
    }
}

/// The layers around a service that handles one message at a time.
macro_rules! one_at_a_time {
    ($service:expr) => {
        ServiceBuilder::new()
            .layer(DeadLetterLayer::new(Store::new()))
            .layer(RetryLayer::new(RetryPolicy::new()))
            .layer(ConcurrencyLayer::new(1))
            .layer(ClassifyLayer::derived())
            .service(service_fn($service))
    };
}

#[tokio::test(start_paused = true)]
async fn g4_a_message_that_waits_for_a_permit_waits_for_no_other_message() {
    let broker = Broker::with(2);
    let stack = one_at_a_time!(|_: Delivery| async {
        tokio::time::sleep(SECOND).await;
        Ok::<_, Refused>(())
    });
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let running = Running::start(consumer.build().unwrap());
    broker.until_empty().await;
    assert_eq!(running.stop().await.handled, 2);
}

#[tokio::test(start_paused = true)]
async fn the_permit_of_a_message_that_panicked_is_free_again() {
    let broker = Broker::with(2);
    // No panic guard.
    let stack = one_at_a_time!(|delivery: Delivery| async move {
        assert!(position(&delivery) != 0, "a stack panics");
        Ok::<_, Refused>(())
    });
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let running = Running::start(consumer.build().unwrap());
    broker.until(|world| world.settled.len() == 1).await;
    assert_eq!(broker.settled(), [(1, "succeeded")]);
    assert_eq!(running.stop().await.unsettled, 1);
}

/// The holder of the permit that a message waits for may itself wait for a suspect that waits for that message.
#[tokio::test(start_paused = true)]
async fn g4_who_waits_for_a_permit_holds_up_neither_a_suspect_nor_who_has_the_permit() {
    for suspect in [0, 1, 2] {
        let (broker, store) = (Broker::with(3), Store::new());
        broker.handed_out(suspect, 2);
        let backoff = Backoff::constant(SECOND);
        // One message at a time, from its first attempt to its last.
        let stack = ServiceBuilder::new()
            .concurrency_limit(1)
            .layer(DeadLetterLayer::new(store.clone()))
            .layer(RetryLayer::new(RetryPolicy::new().with_backoff(backoff)))
            .layer(ClassifyLayer::derived())
            .service(service_fn(|delivery: Delivery| async move {
                tokio::time::sleep(SECOND).await;
                if delivery.attempt() < 3 { Err(Refused) } else { Ok(()) }
            }));
        let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
        let consumer = consumer.crash_marks(store.clone()).build().unwrap();
        let running = Running::start(consumer);
        broker.until_empty().await;
        assert_eq!(running.stop().await.handled, 3, "{suspect}");
    }
}

/// In its place it would hold up those behind it.
#[tokio::test(start_paused = true)]
async fn g4_a_suspect_does_not_wait_for_those_that_wait_for_a_permit() {
    let (broker, store, log) = (Broker::with(20), Store::new(), Log::default());
    broker.handed_out(19, 2);
    let seen = log.clone();
    let stack = one_at_a_time!(move |delivery: Delivery| {
        let seen = seen.clone();
        async move {
            seen.note(position(&delivery));
            tokio::time::sleep(SECOND).await;
            Ok::<_, Refused>(())
        }
    });
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let running = Running::start(consumer.crash_marks(store.clone()).build().unwrap());
    log.until(|lines| lines.len() == 2).await;
    // It has asked for its permit in its turn, and nobody runs beside it when it has it.
    assert_eq!(store.calls("begin"), 1);
    broker.until_empty().await;
    running.finish().await;
    assert_eq!(log.lines().len(), 20);
}

/// As of one that the attribute makes: what a probe fails of is the outage's, and its letter is not written.
#[tokio::test(start_paused = true)]
async fn g10_an_outage_buries_nothing_of_a_stack_composed_by_hand() {
    let (broker, store) = (Broker::with(200), Store::new());
    let stack = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(store.clone()))
        .layer(RetryLayer::never())
        .layer(ClassifyLayer::derived())
        .service(service_fn(|_: Delivery| async { Err::<(), _>(Refused) }));
    let protection = OutagePolicy::new().minimum(10).ratio(0.5);
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let consumer = consumer.outage(protection.pause(SECOND, SECOND)).max_in_flight(8);
    let consumer = consumer.build().unwrap();
    let mut health = consumer.health();
    let running = Running::start(consumer);
    health.wait_for(|health| health.outage).await.unwrap();
    let noticed = store.letters().await.len();
    sleep(60 * SECOND).await;
    assert_eq!(store.letters().await.len(), noticed);
    assert_eq!(running.stop().await.dead, noticed as u64);
}

/// Runs each message in a task of its own.
#[derive(Clone)]
struct Apart<S>(S);

impl<S> Service<Delivery> for Apart<S>
where
    S: Service<Delivery, Future: Send + 'static, Response: Send + 'static, Error: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let mut apart = JoinSet::new();
        apart.spawn(self.0.call(delivery));
        Box::pin(async move { apart.join_next().await.unwrap().unwrap() })
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_reaches_a_message_that_waits_in_a_task_of_a_layer() {
    let (broker, log) = (Broker::with(1), Log::default());
    let seen = log.clone();
    let stack = ServiceBuilder::new()
        .layer_fn(Apart)
        .layer(DeadLetterLayer::new(Store::new()))
        .layer(RetryLayer::new(RetryPolicy::new().with_backoff(Backoff::constant(5 * SECOND))))
        .layer(ClassifyLayer::derived())
        .service(service_fn(move |_: Delivery| {
            seen.note("failed");
            async { Err::<(), _>(Refused) }
        }));
    let consumer = Consumer::builder(broker.source()).stack(stack, "orders.handle");
    let running = Running::start(consumer.build().unwrap());
    log.until(|lines| lines.len() == 1).await;
    let stopped = Instant::now();
    assert_eq!(running.stop().await.deferred, 1);
    assert!(stopped.elapsed() < SECOND, "it does not wait for the next attempt");
}
