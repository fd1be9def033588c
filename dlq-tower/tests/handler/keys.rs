//! Key closures: what they are given, and what they cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dlq_tower::core::idempotency::memory::MemoryIdempotency;
use dlq_tower::core::idempotency::{
    BoxIdempotency, Idempotency, IdempotencyClaim, IdempotencyToken, Release,
};
use dlq_tower::core::{Cause, Delivery, Headers, Message, StoreError};
use dlq_tower::dlq_handler;
use dlq_tower::extract::{FromDelivery, Json, Payload, Rejection, by_payload, take};
use dlq_tower::handler::{Handles, handler};
use dlq_tower::stage::Verdict;

use crate::fixture::{Done, Payment, bytes, delivery, payment, refuses, run, succeeds};

#[dlq_handler(order_by = move |p| (p.customer, p.id.as_str()))]
async fn payload_anywhere(_headers: Headers, Json(_payment): Json<Payment>) {}

#[dlq_handler(order_by = |p: &Payment| -> String { format!("c{}", p.customer) })]
async fn payload_optional(_payment: Option<Json<Payment>>) {}

#[dlq_handler(order_by = |p: &Payment| p.customer)]
async fn payload_judged(_payment: Result<Json<Payment>, Rejection>) {}

#[dlq_handler(order_by = |p: &Bytes| p)]
async fn the_first_of_several(_bytes: Bytes, _payment: Json<Payment>) {}

#[test]
fn the_payload_is_found_wherever_it_stands() {
    let key = |stack: &dyn Fn(&Delivery) -> Option<Bytes>| stack(&payment("a", 7, 1)).unwrap();
    let stack = payload_anywhere::handler().build().unwrap();
    assert!(key(&|d| stack.order_key(d)).ends_with(b"a"));
    let stack = payload_optional::handler().build().unwrap();
    assert_eq!(key(&|d| stack.order_key(d)), "c7");
    assert_eq!(stack.order_key(&delivery(Message::tombstone("s"))), None);
    let stack = payload_judged::handler().build().unwrap();
    assert_eq!(key(&|d| stack.order_key(d)), "7");
    assert_eq!(stack.order_key(&bytes("broken")), None);
    let stack = the_first_of_several::handler().build().unwrap();
    assert!(key(&|d| stack.order_key(d)).starts_with(b"{"));
}

#[test]
fn a_key_closure_may_return_early() {
    #[dlq_handler(order_by = |p: &Payment| {
        if p.customer == 0 {
            return None;
        }
        Some(p.customer)
    })]
    async fn optional(_: Json<Payment>) {}

    #[dlq_handler(order_by = |p: &Payment| -> &str {
        if p.customer == 0 {
            return "nobody";
        }
        &p.id
    })]
    async fn borrowed(_: Json<Payment>) {}

    let optional = optional::handler().build().unwrap();
    assert_eq!(optional.order_key(&payment("a", 0, 1)), None);
    assert_eq!(optional.order_key(&payment("a", 7, 1)).unwrap(), "7");
    let borrowed = borrowed::handler().build().unwrap();
    assert_eq!(borrowed.order_key(&payment("a", 0, 1)).unwrap(), "nobody");
    assert_eq!(borrowed.order_key(&payment("a", 7, 1)).unwrap(), "a");
}

/// How often payloads were decoded.
static DECODED: AtomicU32 = AtomicU32::new(0);

/// Not `Clone`, and counts.
struct Counted(u64);

impl Payload for Counted {
    type Value = u64;
    fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
        DECODED.fetch_add(1, Ordering::Relaxed);
        Ok(Self(delivery.message().payload().map_or(0, |payload| payload.len() as u64)))
    }
    fn value(&self) -> &u64 {
        &self.0
    }
}

impl<S> FromDelivery<S> for Counted {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        take(delivery)
    }
}

#[dlq_handler(
    max_attempts = 2, backoff = constant("1ms"),
    order_by = |length: &u64| *length, idempotency_key = |length: &u64| *length,
)]
async fn counts(counted: Counted) -> Result<(), String> {
    if counted.0 == 1 { Err("one".to_owned()) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn a_payload_is_decoded_once_per_attempt() {
    let stack = counts::handler().idempotency(MemoryIdempotency::new()).build().unwrap();
    let delivery = bytes("12");
    stack.order_key(&delivery).unwrap();
    succeeds(&stack, delivery).await;
    assert_eq!(DECODED.swap(0, Ordering::Relaxed), 1);
    let Verdict::Dead(_) = run(&stack, bytes("1")).await else { panic!("expected a death") };
    assert_eq!(DECODED.load(Ordering::Relaxed), 2, "two attempts");
}

#[tokio::test]
async fn an_empty_key_makes_no_duplicates() {
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let stack = handler("h", move |_: Json<Payment>| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
        }
    })
    .idempotency(MemoryIdempotency::new())
    .idempotency_key(by_payload::<Json<Payment>, _, _>(|p| p.id.clone()))
    .build()
    .unwrap();
    succeeds(&stack, payment("", 1, 1)).await;
    succeeds(&stack, payment("", 2, 2)).await;
    succeeds(&stack, payment("x", 1, 1)).await;
    assert_eq!(run(&stack, payment("x", 1, 1)).await, Verdict::Done(Done::Duplicate));
    assert_eq!(runs.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_key_closure_that_panics_kills_its_message_and_nothing_else() {
    #[dlq_handler(order_by = |p: &Payment| { assert!(p.cents > 0, "no cents"); p.customer })]
    async fn touchy(_: Json<Payment>) {}
    let stack = touchy::handler().build().unwrap();
    let delivery = payment("a", 1, -1);
    assert_eq!(stack.order_key(&delivery), None);
    let failure = refuses(&stack, delivery, Cause::Malformed).await;
    assert!(failure.message().contains("panicked: no cents"), "{failure}");
    succeeds(&stack, payment("b", 1, 1)).await;
}

/// The second one's message would be a duplicate of the first one's, and never run.
#[test]
fn g1_two_functions_of_one_name_do_not_share_a_store_of_keys() {
    #[dlq_handler(name = "shop.handle", idempotency_key = |bytes: &Bytes| bytes)]
    async fn orders(_: Bytes) {}
    #[dlq_handler(name = "shop.handle", idempotency_key = |bytes: &Bytes| bytes)]
    async fn payments(_: Bytes) {}

    let store = MemoryIdempotency::new();
    let first = orders::handler().idempotency(store.clone()).build().unwrap();
    let again = orders::handler().idempotency(store.clone()).build().expect("built twice");
    let error = payments::handler().idempotency(store.clone()).build().unwrap_err().to_string();
    for part in ["cannot build the handler `shop.handle`", "::orders`", "::payments`"] {
        assert!(error.contains(part), "expected `{part}` in `{error}`");
    }
    let erased = BoxIdempotency::new(store.clone());
    assert!(payments::handler().idempotency(erased).build().is_err(), "erased, it is the same");
    let renamed = payments::handler().name("shop.pay").alias("shop.handle");
    assert!(renamed.idempotency(store.clone()).build().is_err(), "its former keys are shared");

    assert!(payments::handler().idempotency(MemoryIdempotency::new()).build().is_ok());
    drop((first, again));
    assert!(payments::handler().idempotency(store).build().is_ok(), "nobody has the name any more");
}

/// A handler whose name changes in a new version goes on with what the version before has done.
#[tokio::test]
async fn g1_a_rename_with_an_alias_keeps_done_keys() {
    async fn handle(_: Bytes) {}
    let built = |name: &str, store: &BoxIdempotency| {
        let key = |delivery: &Delivery| delivery.message().payload().cloned();
        handler(name, handle).idempotency_key(key).idempotency(store.clone())
    };
    let stores = [
        BoxIdempotency::new(MemoryIdempotency::new()),
        BoxIdempotency::new(ClaimsOnly(MemoryIdempotency::new())),
    ];
    for store in &stores {
        let before = built("shop.handle", store).build().unwrap();
        succeeds(&before, bytes("handled")).await;
        let after = built("shop.orders", store).alias("shop.handle").build().unwrap();
        assert_eq!(run(&after, bytes("handled")).await, Verdict::Done(Done::Duplicate));
        succeeds(&after, bytes("new")).await;
        assert_eq!(run(&after, bytes("new")).await, Verdict::Done(Done::Duplicate));

        let held = store.claim("shop.handle".into(), "held".into(), Duration::from_secs(9)).await;
        assert!(matches!(held, Ok(IdempotencyClaim::New { .. })));
        let after =
            built("shop.orders", store).alias("shop.handle").in_process_delays(0).build().unwrap();
        let deferred = run(&after, bytes("held")).await;
        assert!(matches!(deferred, Verdict::Defer { .. }), "{deferred:?}");
        let unrelated = built("shop.else", store).build().unwrap();
        succeeds(&unrelated, bytes("handled")).await;
    }
}

/// A store that can only claim, and has to be waited for.
#[derive(Debug)]
struct ClaimsOnly(MemoryIdempotency);

impl Idempotency for ClaimsOnly {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        self.0.claim(consumer, key, lease).await
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        self.0.extend(token, lease).await
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        self.0.complete(token, keep).await
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        self.0.release(token, release).await
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.0.purge(limit).await
    }
}
