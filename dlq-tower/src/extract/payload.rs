use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dlq_core::Delivery;

use super::Rejection;
use crate::handler::ToKey;

/// An extractor of the payload. Key closures are given its value.
///
/// For a format of your own, implement this, and [`FromDelivery`](super::FromDelivery) with [`take`]:
///
/// ```
/// use dlq_tower::core::Delivery;
/// use dlq_tower::extract::{self, FromDelivery, Payload, Rejection};
///
/// struct Csv(Vec<String>);
///
/// impl Payload for Csv {
///     type Value = Vec<String>;
///
///     fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
///         let payload = delivery.message().payload().ok_or_else(|| Rejection::absent("a tombstone"))?;
///         match std::str::from_utf8(payload) {
///             Ok(line) => Ok(Self(line.split(',').map(str::to_owned).collect())),
///             Err(error) => Err(Rejection::decode("expected a line of text").with_source(error)),
///         }
///     }
///
///     fn value(&self) -> &Self::Value {
///         &self.0
///     }
/// }
///
/// impl<S> FromDelivery<S> for Csv {
///     fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
///         extract::take(delivery)
///     }
/// }
/// ```
pub trait Payload: Sized + Send + 'static {
    /// Value that key closures get.
    type Value;

    /// Decodes the payload of `delivery`.
    ///
    /// # Errors
    ///
    /// When it cannot be decoded, or there is none.
    fn decode(delivery: &Delivery) -> Result<Self, Rejection>;

    /// Returns the value that key closures get.
    fn value(&self) -> &Self::Value;
}

/// The value that a key closure has seen, until the handler takes it.
struct Slot<P>(Mutex<Seen<P>>);

enum Seen<P> {
    Nothing,
    Value(P),
    /// A key closure panicked over it, with this message.
    Panicked(String),
}

impl<P> Slot<P> {
    fn lock(&self) -> MutexGuard<'_, Seen<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the payload: the value that a key closure has seen in this attempt, else decoded now.
///
/// # Errors
///
/// When the payload cannot be decoded, or a key closure panicked over it: without its key the message cannot be
/// handled once, or in order.
pub fn take<P: Payload>(delivery: &Delivery) -> Result<P, Rejection> {
    if let Some(slot) = delivery.decoded::<Slot<P>>() {
        // The value is handed over and not copied, since a payload's type need not be `Clone`. A later attempt decodes
        // anew.
        match std::mem::replace(&mut *slot.lock(), Seen::Nothing) {
            Seen::Nothing => {}
            Seen::Value(value) => return Ok(value),
            Seen::Panicked(message) => {
                return Err(Rejection::malformed(format!(
                    "expected a payload with a key, but the key closure panicked: {message}"
                )));
            }
        }
    }
    P::decode(delivery)
}

/// A key of the payload, for [`HandlerBuilder::idempotency_key`](crate::handler::HandlerBuilder::idempotency_key) and
/// [`HandlerBuilder::order_by`](crate::handler::HandlerBuilder::order_by).
///
/// ```
/// use dlq_tower::extract::{Json, by_payload};
/// use dlq_tower::handler::handler;
/// # #[derive(serde::Deserialize)] struct Payment { customer: String }
/// # async fn charge(Json(payment): Json<Payment>) { let _ = payment.customer; }
///
/// let charge = handler("payments.charge", charge)
///     .order_by(by_payload::<Json<Payment>, _, _>(|payment| payment.customer.clone()));
/// # charge.build().unwrap();
/// ```
///
/// A payload that cannot be decoded has no key; the handler's own extractor will refuse it.
pub fn by_payload<P, F, K>(key: F) -> impl Fn(&Delivery) -> Option<Bytes> + Send + Sync + 'static
where
    P: Payload,
    F: Fn(&P::Value) -> K + Send + Sync + 'static,
    K: ToKey,
{
    move |delivery| {
        let slot = delivery.decoded::<Slot<P>>().unwrap_or_else(|| {
            let slot = Arc::new(Slot::<P>(Mutex::new(Seen::Nothing)));
            delivery.keep_decoded(Arc::clone(&slot));
            slot
        });
        let mut seen = slot.lock();
        // Key closures and the handler share what was decoded of one type, so that a run decodes its payload once.
        if matches!(*seen, Seen::Nothing) {
            *seen = Seen::Value(P::decode(delivery).ok()?);
        }
        // After a panic of one key closure the others are not run: the message is given up in any case.
        let Seen::Value(payload) = &*seen else { return None };
        match catch_unwind(AssertUnwindSafe(|| key(payload.value()).into_key())) {
            Ok(key) => key,
            Err(payload) => {
                let message = text_of(&*payload);
                tracing::error!(
                    subject = delivery.message().subject(),
                    panic = %message,
                    "a key closure panicked; its message will be given up"
                );
                *seen = Seen::Panicked(message);
                None
            }
        }
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is not text").to_owned()
}
