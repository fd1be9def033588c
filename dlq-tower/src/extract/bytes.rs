use ::bytes::Bytes;
use dlq_core::Delivery;

use super::{FromDelivery, Payload, Rejection, payload};

/// The payload's bytes, for an extractor that reads them as `T` in `format`.
#[cfg(any(feature = "json", feature = "msgpack", feature = "protobuf"))]
pub(super) fn payload<'a, T>(delivery: &'a Delivery, format: &str) -> Result<&'a Bytes, Rejection> {
    delivery.message().payload().ok_or_else(|| {
        Rejection::absent(format!(
            "expected `{}` as {format}, found no payload (a tombstone)",
            std::any::type_name::<T>()
        ))
    })
}

/// The payload as it is. A tombstone is refused, an empty payload is not.
impl<S> FromDelivery<S> for Bytes {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        payload::take(delivery)
    }
}

impl Payload for Bytes {
    type Value = Self;

    fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
        let payload = delivery.message().payload().cloned();
        payload.ok_or_else(|| Rejection::absent("expected a payload, found none (a tombstone)"))
    }

    fn value(&self) -> &Self {
        self
    }
}
