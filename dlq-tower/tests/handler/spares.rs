//! What a message leaves behind in its handler's stack for later ones: a place, and nothing of itself.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dlq_tower::core::idempotency::memory::MemoryIdempotency;
use dlq_tower::core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_tower::core::{Cause, Delivery, Message, Reason, TokioClock};
use dlq_tower::handler::{HandlerStack, handler};
use dlq_tower::stage::{Done, Verdict};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::fixture::*;

/// A payload that tells when it is gone.
fn watched() -> (Delivery, Weak<()>) {
    struct Watched(#[expect(dead_code, reason = "held, not read")] Arc<()>);
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            b"{}"
        }
    }
    let alive = Arc::new(());
    let gone = Arc::downgrade(&alive);
    (delivery(Message::new("payments", Bytes::from_owner(Watched(alive)))), gone)
}

fn succeeding() -> HandlerStack {
    handler("payments.charge", async |_: Delivery| ()).concurrency(1).build().unwrap()
}

#[tokio::test]
async fn nothing_of_a_message_is_kept_when_it_is_done() {
    let stack = succeeding();
    for _ in 0..3 {
        let (delivery, payload) = watched();
        succeeds(&stack, delivery).await;
        assert!(payload.upgrade().is_none(), "its payload is still somewhere");
    }
}

/// A handler's future that lets go of nothing when it completes.
struct Clinging(Delivery);

impl Future for Clinging {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.message().payload().is_some() { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[tokio::test]
async fn nor_is_what_a_future_clings_to() {
    let stack = handler("payments.charge", Clinging).timeout(Duration::from_secs(9)).build();
    let stack = stack.unwrap();
    for _ in 0..3 {
        let (delivery, payload) = watched();
        succeeds(&stack, delivery).await;
        assert!(payload.upgrade().is_none(), "its payload is still in the future");
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_has_its_whole_timeout_and_its_own_claim() {
    let now = dlq_tower::core::Timestamp::from_millis(0);
    let clock = Arc::new(TokioClock::starting_at(now));
    let store = MemoryIdempotency::new().clock(clock);
    let work = async |_: Delivery| tokio::time::sleep(Duration::from_secs(60)).await;
    let stack = handler("payments.charge", work)
        .timeout(Duration::from_secs(90))
        .idempotency(store.clone())
        .idempotency_key(|delivery: &Delivery| delivery.message().key().cloned())
        .idempotency_lease(Duration::from_secs(30));
    let stack = stack.build().unwrap();
    let keyed = |key: &'static str| delivery(Message::new("payments", "{}").with_key(key));
    for key in ["a", "", "b", "c"] {
        let began = tokio::time::Instant::now();
        let other = async {
            tokio::time::sleep(Duration::from_secs(45)).await;
            let (consumer, key) = (Arc::from("payments.charge"), Bytes::from(key));
            store.claim(consumer, key, Duration::from_secs(1)).await.unwrap()
        };
        let (ran, claim) = tokio::join!(run(&stack, keyed(key)), other);
        assert_eq!(ran, Verdict::Done(Done::Succeeded));
        assert_eq!(began.elapsed(), Duration::from_secs(60), "one attempt");
        if key.is_empty() {
            assert!(matches!(claim, IdempotencyClaim::New { .. }), "it has no key: {claim:?}");
        } else {
            assert!(matches!(claim, IdempotencyClaim::InFlight { .. }), "extended: {claim:?}");
            assert_eq!(run(&stack, keyed(key)).await, Verdict::Done(Done::Duplicate));
        }
    }
}

#[tokio::test]
async fn a_panic_in_a_place_that_was_used_before_is_a_failure_like_any_other() {
    // Panics where it is called, before there is a future.
    let work = |message: Message| {
        assert!(message.payload().is_some_and(|payload| payload != "bad"), "a bad one");
        std::future::ready(())
    };
    let stack = handler("payments.charge", work).concurrency(1).build().unwrap();
    for _ in 0..3 {
        succeeds(&stack, bytes("{}")).await;
        let dead = dies(&stack, bytes("bad")).await;
        assert_eq!(dead.cause, Some(Cause::Panic));
    }
}

#[tokio::test]
async fn nothing_of_a_handler_is_kept_when_it_is_gone() {
    struct Held(Arc<()>);
    let alive = Arc::new(());
    let gone = Arc::downgrade(&alive);
    let held = Arc::new(Held(alive));
    let stack = handler("payments.charge", move || {
        let held = Arc::clone(&held);
        async move { drop(Arc::clone(&held.0)) }
    });
    let stack = stack.build().unwrap();
    succeeds(&stack, bytes("{}")).await;
    succeeds(&stack, bytes("{}")).await;
    assert!(gone.upgrade().is_some());
    drop(stack);
    assert!(gone.upgrade().is_none(), "spares keep the handler that keeps them");
}

#[tokio::test]
async fn a_place_begins_anew_whatever_happened_in_it() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    // Fails twice and succeeds, and so on; what is bad fails always.
    let flaky = move |message: Message| {
        let run = counted.fetch_add(1, SeqCst);
        let bad = message.payload().is_some_and(|payload| payload == "bad");
        async move { if run % 3 == 2 && !bad { Ok(()) } else { Err("no") } }
    };
    let stack = handler("payments.charge", flaky).policy(at_once(3)).concurrency(1);
    let stack = stack.build().unwrap();
    for message in 1..=3 {
        succeeds(&stack, bytes("{}")).await;
        assert_eq!(runs.load(SeqCst), 3 * message, "each has its three attempts");
        let dead = dies(&stack, bytes("bad")).await;
        assert_eq!((dead.reason, dead.attempts, dead.history.len()), (Reason::Exhausted, 3, 3));
        runs.fetch_sub(3, SeqCst);
    }
}

/// Counted until it is dropped.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn places_are_as_many_as_messages_in_flight_and_permits_as_many_as_there_are() {
    let gate = Arc::new(Semaphore::new(0));
    let running = Arc::new(AtomicUsize::new(0));
    let work = {
        let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
        move |_: Delivery| {
            let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
            async move {
                running.fetch_add(1, SeqCst);
                let _running = Running(running);
                let _ = gate.acquire().await.map(|permit| permit.forget());
            }
        }
    };
    let stack = handler("payments.charge", work).concurrency(3).build().unwrap();
    for _ in 0..3 {
        // One that is dropped midway leaves no place, and takes no permit with it.
        let dropped = tokio::time::timeout(Duration::from_secs(1), run(&stack, bytes("{}"))).await;
        assert!(dropped.is_err());
        let open = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(running.load(SeqCst), 3);
            gate.add_permits(100);
        };
        tokio::join!(join_all((0..100).map(|_| succeeds(&stack, bytes("{}")))), open);
    }
}
