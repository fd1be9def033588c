//! Handlers that a `macro_rules!` writes: each part may come from the macro or from who calls it.

use std::time::Duration;

use bytes::Bytes;
use dlq_tower::core::{Classification, ErrorClass, Message, Reason};
use dlq_tower::extract::Json;
use dlq_tower::handler::Handles as _;

use crate::fixture::{Payment, bytes, delivery, dies, payment, succeeds};

#[derive(Debug, thiserror::Error, dlq_tower::Classify)]
pub(crate) enum Failure {
    #[error("bad")]
    Bad,
    #[error("worse: {0}")]
    Worse(u32),
}

/// Everything from who calls.
macro_rules! everything {
    (
        $(#[$meta:meta])* $visibility:vis $name:ident($($argument:pat_param, $ty:ty);*) -> $out:ty, $stable:literal,
        $once:expr, $order:expr, $terminal:pat, $condition:expr, $judge:expr, $attempts:literal, $timeout:literal,
        $state:ty, $body:expr
    ) => {
        $(#[$meta])*
        #[dlq_tower::dlq_handler(
            name = $stable,
            idempotency_key = $once,
            order_by = $order,
            terminal = $terminal if $condition,
            classify = $judge,
            max_attempts = $attempts,
            timeout = $timeout,
            state = $state,
        )]
        $visibility async fn $name($($argument: $ty),*) -> $out {
            $body
        }
    };
}

fn judge(_: &Failure) -> Classification {
    Classification::permanent()
}

everything! {
    /// Documented.
    pub(crate) whole(Json(_payment), Json<Payment>; _raw, Bytes) -> Result<(), Failure>, "macros.whole",
    |p: &Payment| p.id, move |p| -> String { p.customer.to_string() }, Failure::Bad | Failure::Worse(_), true, judge,
    2, "3s", (), Err(Failure::Worse(3))
}

/// Only the name from who calls.
macro_rules! named {
    ($($name:ident),*) => {$(
        #[dlq_tower::dlq_handler(order_by = |p: &Payment| p.id, terminal = |_| true)]
        async fn $name(Json(_payment): Json<Payment>) -> Result<(), Failure> {
            Err(Failure::Bad)
        }
    )*};
}
named!(first, second);

/// Only the name from the macro.
macro_rules! fixed {
    ($key:expr, $judge:expr) => {
        #[dlq_tower::dlq_handler(idempotency_key = $key, order_by = $key, classify = $judge, max_attempts = 1)]
        async fn fixed(Json(_payment): Json<Payment>) -> Result<(), Failure> {
            Err(Failure::Bad)
        }
    };
}
fixed!(|p: &Payment| p.customer, |_: &Failure| ErrorClass::Permanent);

/// A macro in a macro, and a key with its type.
macro_rules! outer {
    ($name:ident, $out:ty, $key:expr) => {
        macro_rules! inner {
            ($ty:ty) => {
                #[dlq_tower::dlq_handler(order_by = $key)]
                async fn $name(_: $ty) -> $out {
                    Ok(())
                }
            };
        }
        inner!(Bytes);
    };
}
outer!(nested, Result<(), Failure>, |bytes: &Bytes| -> usize { bytes.len() });

#[tokio::test]
async fn every_part_may_come_from_either_side() {
    let stack = whole::handler()
        .idempotency(dlq_tower::core::idempotency::memory::MemoryIdempotency::new())
        .build()
        .unwrap();
    assert_eq!((stack.name(), stack.policy().max_attempts()), ("macros.whole", 2));
    assert_eq!(stack.timeout(), Some(Duration::from_secs(3)));
    assert_eq!(stack.order_key(&payment("a", 7, 1)).unwrap(), "7");
    assert_eq!(dies(&stack, payment("a", 7, 1)).await.reason, Reason::Permanent);

    for stack in [first::handler().build().unwrap(), second::handler().build().unwrap()] {
        assert_eq!(stack.order_key(&payment("a", 7, 1)).unwrap(), "a");
        assert_eq!(dies(&stack, payment("a", 7, 1)).await.reason, Reason::Permanent);
    }
    assert_eq!(first::handler().build().unwrap().name(), "handler.macros.first");

    let store = dlq_tower::core::idempotency::memory::MemoryIdempotency::new();
    let stack = fixed::handler().idempotency(store).build().unwrap();
    assert_eq!(stack.order_key(&payment("a", 7, 1)).unwrap(), "7");
    assert_eq!(dies(&stack, payment("a", 7, 1)).await.reason, Reason::Permanent);

    let stack = nested::handler().build().unwrap();
    assert_eq!(stack.order_key(&bytes("four")).unwrap(), "4");
    succeeds(&stack, delivery(Message::new("s", "x"))).await;
}
