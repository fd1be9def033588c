//! Layers of `tower` and of one's own around the function of a handler, and around those of a router.

use std::future::{Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use dlq_tower::classify::ClassifyErrorsLayer;
use dlq_tower::core::idempotency::memory::MemoryIdempotency;
use dlq_tower::core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_tower::core::{BoxError, Cause, Classification, Delivery, ErrorClass, Reason, TokioClock};
use dlq_tower::dlq_handler;
use dlq_tower::extract::{Json, State};
use dlq_tower::handler::{
    AttemptFuture, HandlerService, HandlerStack, InvalidConfig, ShareLayer, handler,
};
use dlq_tower::retry::RunLoop;
use dlq_tower::router::Router;
use dlq_tower::stage::{Setback, Verdict};
use futures_util::future::join_all;
use futures_util::{FutureExt as _, TryFutureExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{Layer, Service};

use crate::fixture::*;

/// Record of calls, in order.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A layer that notes its name at each attempt.
#[derive(Clone)]
struct Mark(&'static str, Journal);

impl<S> Layer<S> for Mark {
    type Service = Marked<S>;

    fn layer(&self, inner: S) -> Marked<S> {
        Marked { inner, mark: self.clone(), is_ready: false }
    }
}

struct Marked<S> {
    inner: S,
    mark: Mark,
    is_ready: bool,
}

impl<S: Clone> Clone for Marked<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), mark: self.mark.clone(), is_ready: false }
    }
}

impl<S: Service<Delivery>> Service<Delivery> for Marked<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.is_ready = true;
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> S::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been polled ready");
        self.mark.1.note(format!("{} {}", self.mark.0, delivery.attempt()));
        self.inner.call(delivery)
    }
}

#[derive(Debug, thiserror::Error, dlq_tower::Classify)]
enum ChargeError {
    #[error("the provider is down")]
    #[classify(transient)]
    Down,
    #[error("amount must be positive")]
    #[classify(permanent)]
    BadAmount,
}

#[dlq_handler(name = "payments.charge", max_attempts = 3, backoff = constant("1s"))]
async fn charge(
    Json(payment): Json<Payment>,
    State(journal): State<Journal>,
) -> Result<(), ChargeError> {
    journal.note(format!("charge {}", payment.id));
    match payment.cents {
        1.. => Ok(()),
        0 => Err(ChargeError::Down),
        _ => Err(ChargeError::BadAmount),
    }
}

async fn charge_by_hand(
    payment: Json<Payment>,
    journal: State<Journal>,
) -> Result<(), ChargeError> {
    charge(payment, journal).await
}

/// The same handler by the attribute and without it, with what `layer` adds.
macro_rules! both {
    ($journal:expr, |$builder:ident| $layers:expr) => {
        [
            {
                let $builder = charge::handler().with_state($journal.clone());
                $layers.build().unwrap()
            },
            {
                let $builder = handler("payments.charge", charge_by_hand)
                    .policy(charge::handler().build_policy())
                    .derived()
                    .with_state($journal.clone());
                $layers.build().unwrap()
            },
        ]
    };
}

/// The policy that the attribute sets.
trait BuildPolicy {
    fn build_policy(self) -> dlq_tower::core::RetryPolicy;
}

impl<C> BuildPolicy for dlq_tower::handler::HandlerBuilder<charge, (), C>
where
    C: dlq_tower::core::Classifier<ChargeError> + Clone + Send + Sync + 'static,
{
    fn build_policy(self) -> dlq_tower::core::RetryPolicy {
        self.with_state(Journal::default()).build().unwrap().policy().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_layer_wraps_the_earlier_at_every_attempt() {
    let journal = Journal::default();
    let mark = |name| Mark(name, journal.clone());
    for stack in both!(journal, |builder| builder.layer(mark("inner")).layer(mark("outer"))) {
        assert_eq!(stack.policy().max_attempts(), 3, "settings are kept");
        succeeds(&stack, payment("a", 1, 5)).await;
        assert_eq!(journal.take(), ["outer 1", "inner 1", "charge a"]);
        let dead = dies(&stack, payment("b", 1, 0)).await;
        assert_eq!((dead.reason, dead.attempts), (Reason::Exhausted, 3));
        let each = |n| [format!("outer {n}"), format!("inner {n}"), "charge b".to_owned()];
        assert_eq!(journal.take(), [each(1), each(2), each(3)].concat());
        let dead = dies(&stack, bytes("no JSON")).await;
        assert_eq!(dead.cause, Some(Cause::Decode), "extractors reject as ever");
        journal.take();
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_passes_through_a_box_unchanged() {
    let journal = Journal::default();
    let second = Duration::from_secs(1);
    let never = |_: &BoxError| -> Classification { unreachable!("it is the handler's own") };
    let plain = both!(journal, |builder| builder);
    let boxed = both!(journal, |builder| builder.layer(TimeoutLayer::new(second)));
    let judged = both!(journal, |builder| {
        builder.layer((ClassifyErrorsLayer::new(never), TimeoutLayer::new(second)))
    });
    for stacks in [&boxed, &judged] {
        for (stack, plain) in stacks.iter().zip(&plain) {
            for cents in [0, -1] {
                let dead = dies(stack, payment("a", 1, cents)).await;
                let expected = dies(plain, payment("a", 1, cents)).await;
                let failures = |dead: &dlq_tower::stage::GivenUp| {
                    let failures = dead.history.attempts().iter().map(|attempt| {
                        let failure = &attempt.failure;
                        let words = (failure.error_type.clone(), failure.message().to_owned());
                        (attempt.number, failure.class, words, failure.location.clone())
                    });
                    failures.collect::<Vec<_>>()
                };
                assert_eq!(failures(&dead), failures(&expected));
                assert_eq!(dead.reason, expected.reason);
            }
        }
    }
}

/// An error of a layer, around that of what is inside.
#[derive(Debug, thiserror::Error)]
enum GateError {
    #[error("the gate is closed")]
    Closed,
    #[error("passed the gate")]
    Inside(#[source] Setback),
}

/// Lets the first attempt of each message in, and no other.
#[derive(Clone)]
struct Gate<S = ()>(S);

impl<S> Layer<S> for Gate {
    type Service = Gate<S>;

    fn layer(&self, inner: S) -> Gate<S> {
        Gate(inner)
    }
}

impl Service<Delivery> for Gate<HandlerService> {
    type Response = dlq_tower::stage::Done;
    type Error = GateError;
    type Future = futures_util::future::Either<
        Ready<Result<Self::Response, GateError>>,
        futures_util::future::MapErr<AttemptFuture, fn(Setback) -> GateError>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), GateError>> {
        self.0.poll_ready(cx).map_err(GateError::Inside)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        if delivery.attempt() > 1 {
            return ready(Err(GateError::Closed)).left_future();
        }
        self.0.call(delivery).map_err(GateError::Inside as fn(Setback) -> GateError).right_future()
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_layer_is_judged_as_the_user_says() {
    let journal = Journal::default();
    let judge = |error: &GateError| match error {
        GateError::Closed => ErrorClass::Permanent,
        GateError::Inside(_) => ErrorClass::Transient,
    };
    for stack in
        both!(journal, |builder| builder.layer((ClassifyErrorsLayer::new(judge), Gate(()))))
    {
        succeeds(&stack, payment("a", 1, 5)).await;
        let dead = dies(&stack, payment("a", 1, -1)).await;
        assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 1));
        assert_eq!(dead.history.last().unwrap().message(), "amount must be positive");
        let dead = dies(&stack, payment("a", 1, 0)).await;
        assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 2));
        let closed = dead.history.last().unwrap();
        assert_eq!(closed.message(), "the gate is closed");
        assert!(closed.error_type.ends_with("GateError"), "{}", closed.error_type);
    }
    // A boxed error is transient unless somebody says otherwise.
    let slow = || handler("slow", async || std::future::pending::<()>().await).policy(at_once(2));
    let limit = TimeoutLayer::new(Duration::from_secs(1));
    let dead = dies(&slow().layer(limit.clone()).build().unwrap(), bytes("")).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Exhausted, 2));
    let judge = ClassifyErrorsLayer::new(|error: &BoxError| match error.is::<Elapsed>() {
        true => ErrorClass::Permanent,
        false => ErrorClass::Transient,
    });
    let dead = dies(&slow().layer((judge, limit)).build().unwrap(), bytes("")).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 1));
    assert_eq!(dead.history.last().unwrap().duration, Duration::from_secs(1));
}

const RATE: Duration = Duration::from_secs(10);

fn one_per_rate() -> RateLimitLayer {
    RateLimitLayer::new(1, RATE)
}

/// Notes after how many seconds each message ran.
fn timed(
    name: &'static str,
    journal: &Journal,
) -> dlq_tower::handler::HandlerBuilder<
    impl dlq_tower::handler::HandlerFn<(), (Delivery,), Error = std::convert::Infallible> + use<>,
> {
    let (journal, began) = (journal.clone(), Instant::now());
    handler(name, move |_: Delivery| {
        journal.note(format!("{name} {}", began.elapsed().as_secs()));
        ready(())
    })
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_holds_for_all_attempts_of_a_handler() {
    let journal = Journal::default();
    // The wait is no part of the time that an attempt may take.
    let stack = timed("a", &journal)
        .layer(ShareLayer::new(one_per_rate()))
        .timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    join_all((0..4).map(|_| succeeds(&stack, bytes("")))).await;
    assert_eq!(journal.take(), ["a 0", "a 10", "a 20", "a 30"]);
}

#[tokio::test(start_paused = true)]
async fn a_router_gives_its_layers_to_all_handlers_once_or_each() {
    let journal = Journal::default();
    let mark = |name| Mark(name, journal.clone());
    let run_all = async |router: Result<Router, InvalidConfig>| {
        let router = router.unwrap();
        let messages = ["a", "b", "a", "b"]
            .map(|subject| run(&router, delivery(dlq_tower::core::Message::new(subject, ""))));
        for verdict in join_all(messages).await {
            assert_eq!(verdict, Verdict::Done(Done::Succeeded));
        }
        let mut took = journal.take();
        took.sort();
        took
    };
    let routes = || Router::new().route("a", timed("a", &journal)).route("b", timed("b", &journal));
    let shared = routes().layer(ShareLayer::new(one_per_rate())).build();
    assert_eq!(run_all(shared).await, ["a 0", "a 20", "b 10", "b 30"]);

    // A clone of the layer on each is the same; a layer of its own on each is not.
    let layer = ShareLayer::new(one_per_rate());
    let cloned = Router::new()
        .route("a", timed("a", &journal).layer(layer.clone()))
        .route("b", timed("b", &journal).layer(layer));
    assert_eq!(run_all(cloned.build()).await, ["a 0", "a 20", "b 10", "b 30"]);
    let apart = Router::new()
        .route("a", timed("a", &journal).layer(ShareLayer::new(one_per_rate())))
        .route("b", timed("b", &journal).layer(ShareLayer::new(one_per_rate())));
    assert_eq!(run_all(apart.build()).await, ["a 0", "a 10", "b 0", "b 10"]);

    // Around the handler's own, also for a handler that was built before, for the fallback, and for routes to come.
    let built = timed("built", &journal).layer(mark("own")).build().unwrap();
    let router = Router::new()
        .layer(mark("first"))
        .layer(mark("second"))
        .route("a", built.clone())
        .route("b", built)
        .fallback(timed("fallback", &journal))
        .build()
        .unwrap();
    assert_eq!(router.handlers().count(), 2);
    for subject in ["a", "b", "c"] {
        succeeds(&router, delivery(dlq_tower::core::Message::new(subject, ""))).await;
    }
    let built = ["second 1", "first 1", "own 1", "built 0"];
    let fallback = ["second 1", "first 1", "fallback 0"];
    assert_eq!(journal.take(), [&built[..], &built, &fallback].concat());
}

/// Runs one message, then drops one that waits, and returns when further ones ran.
async fn after_a_dropped_wait(stack: &HandlerStack, journal: &Journal) -> Vec<String> {
    succeeds(stack, bytes("")).await;
    let mut waits = Box::pin(run(stack, bytes("")));
    let mut behind = Box::pin(run(stack, bytes("")));
    assert!(waits.as_mut().now_or_never().is_none() && behind.as_mut().now_or_never().is_none());
    tokio::time::sleep(RATE / 2).await;
    drop(waits);
    assert_eq!(behind.await, Verdict::Done(Done::Succeeded));
    succeeds(stack, bytes("")).await;
    journal.take()
}

#[tokio::test(start_paused = true)]
async fn who_is_dropped_while_waiting_takes_nothing_along() {
    let journal = Journal::default();
    let store = MemoryIdempotency::new()
        .clock(Arc::new(TokioClock::starting_at(dlq_tower::core::Timestamp::EPOCH)));
    let stack = timed("a", &journal)
        .concurrency(2)
        .layer(ShareLayer::new(one_per_rate()))
        .idempotency(store.clone())
        .idempotency_key(|delivery: &Delivery| delivery.message().key().cloned());
    let stack = stack.build().unwrap();
    assert_eq!(after_a_dropped_wait(&stack, &journal).await, ["a 0", "a 10", "a 20"]);

    // Nor does it keep its key.
    let keyed =
        |key: &'static str| delivery(dlq_tower::core::Message::new("payments", "").with_key(key));
    let mut waits = Box::pin(run(&stack, keyed("k")));
    assert!(waits.as_mut().now_or_never().is_none());
    let claim = || store.claim("a".into(), "k".into(), RATE);
    assert!(matches!(claim().await.unwrap(), IdempotencyClaim::InFlight { .. }));
    drop(waits);
    let IdempotencyClaim::New { attempts, crashes, .. } = claim().await.unwrap() else {
        panic!("the key is still claimed")
    };
    assert_eq!((attempts, crashes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_a_layer_that_can_be_cloned_is_not_lost_either() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waits_at = Arc::clone(&gate);
    let stack = handler("a", move |_: Delivery| {
        let gate = Arc::clone(&waits_at);
        async move { gate.acquire().await.unwrap().forget() }
    });
    let stack = stack.layer(ConcurrencyLimitLayer::new(1)).build().unwrap();
    let mut runs = Box::pin(run(&stack, bytes("")));
    let mut dropped = Box::pin(run(&stack, bytes("")));
    let mut waits = Box::pin(run(&stack, bytes("")));
    for message in [&mut runs, &mut dropped, &mut waits] {
        assert!(message.as_mut().now_or_never().is_none());
    }
    gate.add_permits(1);
    assert_eq!(runs.await, Verdict::Done(Done::Succeeded));
    // It was granted the permit, and has not been polled since.
    drop(dropped);
    gate.add_permits(1);
    assert_eq!(waits.await, Verdict::Done(Done::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_does_not_hold_up_a_stop_and_counts_nothing() {
    let journal = Journal::default();
    let stack = timed("a", &journal).layer(ShareLayer::new(one_per_rate())).build().unwrap();
    succeeds(&stack, bytes("")).await;
    let stop = CancellationToken::new();
    let handed = bytes("").with_extension(Arc::new(RunLoop::new(stop.clone())));
    let mut waits = Box::pin(run(&stack, handed));
    assert!(waits.as_mut().now_or_never().is_none());
    stop.cancel();
    let verdict = waits.now_or_never().expect("it goes at once");
    assert_eq!(verdict, Verdict::Defer { after: Duration::ZERO, why: "the consumer stops" });
    assert_eq!(journal.take(), ["a 0"]);
}

/// Calls the service inside in a task of its own.
struct Apart<S>(S);

impl<S> Service<Delivery> for Apart<S>
where
    S: Service<Delivery, Response = Done, Error = Setback, Future: Send + 'static>,
{
    type Response = Done;
    type Error = Setback;
    type Future = futures_util::future::BoxFuture<'static, Result<Done, Setback>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Setback>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let mut apart = JoinSet::new();
        apart.spawn(self.0.call(delivery));
        Box::pin(async move { apart.join_next().await.unwrap().unwrap() })
    }
}

/// The handler of an attempt travels with the message.
#[tokio::test]
async fn a_shared_layer_may_call_its_service_in_another_task() {
    let journal = Journal::default();
    let shared = ShareLayer::new(tower::layer::layer_fn(Apart));
    for name in ["a", "b"] {
        let stack = timed(name, &journal).layer(shared.clone()).build().unwrap();
        succeeds(&stack, bytes("")).await;
    }
    assert_eq!(journal.take(), ["a 0", "b 0"]);
}

/// Readiness of a service.
#[derive(Clone, Copy)]
enum Unready {
    Fails,
    Panics,
}

#[derive(Clone)]
struct Broken<S>(S, Unready);

impl<S: Service<Delivery, Error = Setback>> Service<Delivery> for Broken<S> {
    type Response = S::Response;
    type Error = BoxError;
    type Future = futures_util::future::ErrInto<S::Future, BoxError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.1 {
            Unready::Fails => Poll::Ready(Err("out of order".into())),
            Unready::Panics => panic!("no idea"),
        }
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        self.0.call(delivery).err_into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_cannot_become_ready_defers_and_one_that_panics_fails() {
    let built = |unready| {
        let layer = tower::layer::layer_fn(move |inner| Broken(inner, unready));
        handler("a", async |_: Delivery| ()).layer(layer).build().unwrap()
    };
    let Verdict::Defer { after, why } = run(&built(Unready::Fails), bytes("")).await else {
        panic!("no attempt was made")
    };
    assert_eq!((after, why), (Duration::from_secs(1), "the handler is not ready"));
    let panics = built(Unready::Panics);
    for _ in 0..2 {
        let dead = dies(&panics, bytes("")).await;
        assert_eq!((dead.cause, dead.attempts), (Some(Cause::Panic), 1));
    }
    // A lock that somebody panicked in is as good as before.
    let journal = Journal::default();
    let shared = ShareLayer::new(Mark("shared", journal.clone()));
    let stack = handler("a", async |delivery: Delivery| {
        assert!(delivery.message().payload().is_some_and(|payload| !payload.is_empty()));
    });
    let stack = stack.layer(shared).build().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| run(&stack, bytes("")).now_or_never()));
    assert!(matches!(panicked.unwrap(), Some(Verdict::Dead(_))));
    succeeds(&stack, bytes("x")).await;
}
