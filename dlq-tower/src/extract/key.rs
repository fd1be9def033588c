use std::ops::Deref;

use ::bytes::Bytes;
use dlq_core::Delivery;

use super::{FromDelivery, Rejection};

/// The key of the message. Refused as `malformed` when it has none; an empty key is a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub Bytes);

impl<S> FromDelivery<S> for Key {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        let key = delivery.message().key().cloned();
        key.map(Self).ok_or_else(|| Rejection::absent("expected a key, found none"))
    }
}

impl Deref for Key {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}
