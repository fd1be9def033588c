//! Every option of `#[dlq_handler]`, and that the function stays one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlq_tower::core::idempotency::memory::MemoryIdempotency;
use dlq_tower::core::policy::{Backoff, Jitter, PanicPolicy, RetryPolicy, duration};
use dlq_tower::core::{Cause, ErrorClass, Reason};
use dlq_tower::extract::{Attempt, Json, State};
use dlq_tower::handler::Handles;
use dlq_tower::stage::Verdict;
use dlq_tower::{Classify, dlq_handler};
use tokio::time::Instant;

use crate::fixture::{Done, Payment, bytes, dies, payment, run, succeeds};

#[derive(Debug, thiserror::Error, Classify)]
enum ChargeError {
    #[error("provider timed out")]
    #[classify(transient)]
    Timeout,
    #[error("rate limited for {after:?}")]
    #[classify(transient, retry_after = after)]
    RateLimited { after: Duration },
    #[error("amount must be positive")]
    #[classify(transient)]
    BadAmount,
}

/// Counts runs, and answers by the amount.
#[derive(Clone, Default)]
struct Gateway(Arc<AtomicU32>);

impl Gateway {
    fn charge(&self, payment: &Payment) -> Result<(), ChargeError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match payment.cents {
            1.. => Ok(()),
            0 => Err(ChargeError::Timeout),
            -9 => Err(ChargeError::RateLimited { after: Duration::from_secs(3) }),
            _ => Err(ChargeError::BadAmount),
        }
    }

    fn runs(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[dlq_handler(
    name = "payments.charge",
    aliases = ["payments.bill", "billing"],
    max_attempts = 4,
    max_crashes = 2,
    backoff = exponential("200ms", factor = 3, max = "2s", jitter = none),
    max_in_process_delay = "1m",
    timeout = "10s",
    concurrency = 2,
    terminal = ChargeError::BadAmount,
    idempotency_key = |p: &Payment| p.id,
    order_by = |p: &Payment| p.customer,
)]
async fn charge(
    Json(payment): Json<Payment>,
    _attempt: Attempt,
    State(gateway): State<Gateway>,
) -> Result<(), ChargeError> {
    gateway.charge(&payment)
}

#[tokio::test]
async fn the_function_stays_callable() {
    let json = Json(Payment { id: "a".to_owned(), customer: 1, cents: 5 });
    let gateway = Gateway::default();
    charge(json, Attempt::new(1, None), State(gateway.clone())).await.unwrap();
    assert_eq!(gateway.runs(), 1);
}

#[test]
fn every_option_arrives() {
    let stack = charge::handler()
        .with_state(Gateway::default())
        .idempotency(MemoryIdempotency::new())
        .build()
        .unwrap();
    let names: Vec<_> = stack.names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["payments.charge", "payments.bill", "billing"]);
    let backoff = Backoff::exponential(Duration::from_millis(200))
        .factor(3.0)
        .max(Duration::from_secs(2))
        .jitter(Jitter::None);
    let policy = RetryPolicy::new()
        .with_max_attempts(4)
        .with_max_crashes(2)
        .with_backoff(backoff)
        .with_max_in_process_delay(Duration::from_secs(60));
    assert_eq!(stack.policy(), &policy);
    assert_eq!(stack.timeout(), Some(Duration::from_secs(10)));
    assert_eq!(stack.concurrency(), Some(2));
    assert!(stack.is_ordered());
    assert_eq!(stack.order_key(&payment("a", 77, 1)).unwrap(), "77");
}

#[tokio::test(start_paused = true)]
async fn it_retries_classifies_and_is_idempotent() {
    let gateway = Gateway::default();
    let stack = charge::handler()
        .with_state(gateway.clone())
        .idempotency(MemoryIdempotency::new())
        .build()
        .unwrap();

    succeeds(&stack, payment("a", 1, 5)).await;
    assert_eq!(run(&stack, payment("a", 1, 5)).await, Verdict::Done(Done::Duplicate));
    assert_eq!(gateway.runs(), 1);

    let begin = Instant::now();
    let dead = dies(&stack, payment("b", 1, 0)).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Exhausted, 4));
    assert_eq!(&*dead.consumer, "payments.charge");
    assert_eq!(begin.elapsed().as_millis(), 200 + 600 + 1800);
    let failure = dead.history.last().unwrap();
    assert_eq!(failure.message(), "provider timed out");
    assert!(failure.error_type.ends_with("ChargeError"), "{failure:?}");
    let location = failure.location.as_deref().unwrap();
    assert!(location.contains("tests/handler/attribute.rs:"), "{location}");

    let begin = Instant::now();
    let _ = dies(&stack, payment("c", 1, -9)).await;
    assert_eq!(begin.elapsed().as_secs(), 9, "what the error asks for wins over the policy");

    let dead = dies(&stack, payment("d", 1, -1)).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 1), "`terminal` beats the derive");
}

mod orders {
    #[dlq_tower::dlq_handler(idempotency_key = |p: &bytes::Bytes| p)]
    pub(super) async fn handle(_: bytes::Bytes) {}

    pub(super) mod r#return {
        #[dlq_tower::dlq_handler]
        pub(crate) async fn handle() {}
    }
}

mod payments {
    #[dlq_tower::dlq_handler(idempotency_key = |p: &bytes::Bytes| p)]
    pub(super) async fn handle(_: bytes::Bytes) {}
}

#[tokio::test]
async fn g1_functions_of_one_name_in_two_modules_share_no_keys() {
    let store = MemoryIdempotency::new();
    let orders = orders::handle::handler().idempotency(store.clone()).build().unwrap();
    let payments = payments::handle::handler().idempotency(store).build().unwrap();
    succeeds(&orders, bytes("one key")).await;
    succeeds(&payments, bytes("one key")).await;
    assert_eq!(run(&orders, bytes("one key")).await, Verdict::Done(Done::Duplicate));
}

#[test]
fn the_default_name_is_the_module_path_and_the_function() {
    #[dlq_handler]
    async fn plain() {}
    let stack = orders::r#return::handle::handler().build().unwrap();
    assert_eq!(stack.name(), "handler.attribute.orders.return.handle");
    let stack = plain::handler().build().unwrap();
    assert_eq!(stack.name(), "handler.attribute.plain");
    assert_eq!(stack.policy(), &RetryPolicy::new());
    assert_eq!((stack.timeout(), stack.concurrency(), stack.is_ordered()), (None, None, false));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_cut_off_at_its_timeout() {
    #[dlq_handler(timeout = "3s", max_attempts = 1)]
    async fn slow() {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let begin = Instant::now();
    let dead = dies(&slow::handler().build().unwrap(), bytes("")).await;
    assert_eq!((dead.cause, dead.reason), (Some(Cause::Timeout), Reason::Exhausted));
    assert_eq!(begin.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_permanent_unless_said_otherwise() {
    #[dlq_handler]
    async fn falls() {
        panic!("fell");
    }
    #[dlq_handler(panic = retry, max_attempts = 2, backoff = constant("1ms"))]
    async fn tries_again() {
        panic!("fell");
    }
    let dead = dies(&falls::handler().build().unwrap(), bytes("")).await;
    assert_eq!((dead.cause, dead.attempts), (Some(Cause::Panic), 1));
    assert_eq!(dead.history.last().unwrap().message(), "fell");
    let stack = tries_again::handler().build().unwrap();
    assert_eq!(stack.policy().panic(), PanicPolicy::Retry);
    assert_eq!(dies(&stack, bytes("")).await.attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn concurrency_limits_attempts_of_all_clones() {
    #[dlq_handler(concurrency = 2)]
    async fn busy() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let stack = busy::handler().build().unwrap();
    let begin = Instant::now();
    let runs = (0..6).map(|_| succeeds(&stack, bytes("")));
    futures_util::future::join_all(runs).await;
    assert_eq!(begin.elapsed().as_secs(), 3);
}

mod terminal {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("answered {status}")]
    struct HttpError {
        status: u16,
    }

    impl HttpError {
        fn is_bad(&self) -> bool {
            self.status < 500
        }
    }

    fn status(payload: &bytes::Bytes) -> Result<(), HttpError> {
        Err(HttpError { status: std::str::from_utf8(payload).unwrap().parse().unwrap() })
    }

    #[dlq_handler(max_attempts = 1, terminal = HttpError { status: 400..=499 })]
    async fn by_pattern(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1, terminal = HttpError { status: 404 } | HttpError { status: 410 })]
    async fn by_several(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1, terminal = HttpError { status } if *status < 500)]
    async fn by_condition(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1, terminal = error if error.is_bad())]
    async fn by_binding_and_condition(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1, terminal = |error| error.is_bad())]
    async fn by_closure(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1, classify = |error: &HttpError| {
        if error.is_bad() { ErrorClass::Permanent } else { ErrorClass::Transient }
    })]
    async fn by_classify(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    fn judge(error: &HttpError) -> dlq_tower::core::Classification {
        if error.is_bad() { ErrorClass::Permanent.into() } else { ErrorClass::Transient.into() }
    }

    #[dlq_handler(max_attempts = 1, classify = judge)]
    async fn by_function(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[dlq_handler(max_attempts = 1)]
    async fn by_nothing(payload: bytes::Bytes) -> Result<(), HttpError> {
        status(&payload)
    }

    #[tokio::test]
    async fn permanent_errors_are_told_from_others() {
        let permanent_at_404 = [
            by_pattern::handler().build().unwrap(),
            by_several::handler().build().unwrap(),
            by_condition::handler().build().unwrap(),
            by_binding_and_condition::handler().build().unwrap(),
            by_closure::handler().build().unwrap(),
            by_classify::handler().build().unwrap(),
            by_function::handler().build().unwrap(),
        ];
        for stack in &permanent_at_404 {
            assert_eq!(dies(stack, bytes("404")).await.reason, Reason::Permanent, "{stack:?}");
            assert_eq!(dies(stack, bytes("503")).await.reason, Reason::Exhausted, "{stack:?}");
        }
        let unclassified = by_nothing::handler().build().unwrap();
        assert_eq!(dies(&unclassified, bytes("404")).await.class, ErrorClass::Transient);
    }
}

mod backoff {
    use super::*;

    #[dlq_handler(backoff = constant("1s", jitter = equal))]
    async fn constant() {}
    #[dlq_handler(backoff = linear("1s", increment = "2s", max = "10s", jitter = full))]
    async fn linear() {}
    #[dlq_handler(backoff = linear("1s"))]
    async fn linear_by_its_start() {}
    #[dlq_handler(backoff = exponential("100ms", factor = 1.5))]
    async fn exponential() {}
    #[dlq_handler(backoff = decorrelated("100ms", max = "5s"))]
    async fn decorrelated() {}
    #[dlq_handler(backoff = ladder("30s", "5m", "1h"))]
    async fn ladder() {}

    #[test]
    fn all_read_as_their_text_form_does() {
        let cases = [
            (constant::handler().build(), "constant(1s, jitter = equal)"),
            (linear::handler().build(), "linear(1s, increment = 2s, max = 10s, jitter = full)"),
            (linear_by_its_start::handler().build(), "linear(1s)"),
            (exponential::handler().build(), "exponential(100ms, factor = 1.5)"),
            (decorrelated::handler().build(), "decorrelated(100ms, max = 5s)"),
            (ladder::handler().build(), "ladder(30s, 5m, 1h)"),
        ];
        for (stack, text) in cases {
            let expected: Backoff = text.parse().unwrap();
            assert_eq!(stack.unwrap().policy().backoff(), &expected);
        }
        assert_eq!(ladder::handler().build().unwrap().policy().max_attempts(), 4);
    }

    #[test]
    fn durations_read_as_in_configuration() {
        #[dlq_handler(timeout = " 1h 30m 2 ms ", max_in_process_delay = "1d2us3ns")]
        async fn timed() {}
        let stack = timed::handler().build().unwrap();
        assert_eq!(stack.timeout().unwrap(), duration::parse(" 1h 30m 2 ms ").unwrap());
        assert_eq!(stack.policy().max_in_process_delay(), duration::parse("1d2us3ns").unwrap());
    }
}

mod elsewhere {
    pub(crate) use dlq_tower as framework;
}

#[test]
fn the_crate_can_be_re_exported() {
    #[dlq_handler(crate = crate::attribute::elsewhere::framework, name = "x", order_by = |p: &bytes::Bytes| p)]
    async fn re_exported(_payload: bytes::Bytes) {}
    let stack = re_exported::handler().build().unwrap();
    assert_eq!(stack.order_key(&bytes("k")).unwrap(), "k");
}

#[test]
fn raw_names_are_names() {
    #[dlq_handler]
    async fn r#type() {}
    assert_eq!(r#type::handler().build().unwrap().name(), "handler.attribute.type");
}

#[tokio::test]
async fn an_extractor_for_one_state_is_named_with_it() {
    struct App {
        tenant: String,
    }
    struct Tenant(String);
    impl dlq_tower::extract::FromDelivery<App> for Tenant {
        fn from_delivery(
            _: &dlq_tower::core::Delivery,
            app: &App,
        ) -> Result<Self, dlq_tower::extract::Rejection> {
            Ok(Self(app.tenant.clone()))
        }
    }
    #[dlq_handler(state = App)]
    async fn for_app(Tenant(tenant): Tenant) {
        assert_eq!(tenant, "north");
    }
    let app = App { tenant: "north".to_owned() };
    succeeds(&for_app::handler().with_state(app).build().unwrap(), bytes("")).await;
}
