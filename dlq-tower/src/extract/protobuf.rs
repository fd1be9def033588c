use std::ops::{Deref, DerefMut};

use dlq_core::Delivery;

use super::{FromDelivery, Payload, Rejection, payload};

/// The payload, read as a Protocol Buffers message.
///
/// Refused as `decode` when it is not a `T`, and as `malformed` when there is no payload (a tombstone): take
/// `Option<Protobuf<T>>` where those are expected. An empty payload is a message whose fields have their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protobuf<T>(pub T);

impl<T: prost::Message + Default + 'static> Payload for Protobuf<T> {
    type Value = T;

    fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
        let bytes = super::bytes::payload::<T>(delivery, "Protocol Buffers")?;
        T::decode(&bytes[..]).map(Self).map_err(|error| {
            Rejection::decode(format!(
                "expected `{}` as Protocol Buffers, found {} bytes that differ",
                std::any::type_name::<T>(),
                bytes.len()
            ))
            .with_source(error)
        })
    }

    fn value(&self) -> &T {
        &self.0
    }
}

impl<T: prost::Message + Default + 'static, S> FromDelivery<S> for Protobuf<T> {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        payload::take(delivery)
    }
}

impl<T> Deref for Protobuf<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Protobuf<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
