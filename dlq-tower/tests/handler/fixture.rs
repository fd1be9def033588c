//! What every test here needs: deliveries, and verdicts looked into.

use bytes::Bytes;
use dlq_tower::core::{
    Cause, Delivery, ErrorClass, Failure, Message, Origin, Position, Reason, RetryPolicy,
};
use dlq_tower::handler::Handles;
use dlq_tower::stage::{GivenUp, Verdict};
use serde::Deserialize;

pub(crate) use dlq_tower::stage::Done;

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) customer: u64,
    pub(crate) cents: i64,
}

pub(crate) fn payment(id: &str, customer: u64, cents: i64) -> Delivery {
    let json = format!(r#"{{"id":"{id}","customer":{customer},"cents":{cents}}}"#);
    delivery(Message::new("payments", json))
}

pub(crate) fn delivery(message: Message) -> Delivery {
    Delivery::new(message, Origin::new("memory", "payments", Position::Offset(7)))
}

pub(crate) fn bytes(payload: &'static str) -> Delivery {
    delivery(Message::new("payments", Bytes::from_static(payload.as_bytes())))
}

pub(crate) async fn run(handler: &impl Handles, delivery: Delivery) -> Verdict {
    let Ok(verdict) = handler.clone().call(delivery).await;
    verdict
}

pub(crate) async fn succeeds(handler: &impl Handles, delivery: Delivery) {
    assert_eq!(run(handler, delivery).await, Verdict::Done(Done::Succeeded));
}

pub(crate) async fn dies(handler: &impl Handles, delivery: Delivery) -> GivenUp {
    match run(handler, delivery).await {
        Verdict::Dead(given_up) => *given_up,
        other => panic!("expected a death, found {other:?}"),
    }
}

/// Asserts that the handler refused the message unseen, and returns why.
pub(crate) async fn refuses(handler: &impl Handles, delivery: Delivery, cause: Cause) -> Failure {
    let given_up = dies(handler, delivery).await;
    assert_eq!((given_up.reason, given_up.attempts), (Reason::Permanent, 1));
    let failure = given_up.history.last().unwrap().clone();
    assert_eq!((failure.class, failure.cause), (ErrorClass::Permanent, cause), "{failure}");
    failure
}

/// As many attempts, without a wait in between.
pub(crate) fn at_once(attempts: u32) -> RetryPolicy {
    use dlq_tower::core::policy::Backoff;
    RetryPolicy::new()
        .with_max_attempts(attempts)
        .with_backoff(Backoff::constant(std::time::Duration::ZERO))
}
