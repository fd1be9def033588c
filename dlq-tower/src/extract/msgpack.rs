use std::ops::{Deref, DerefMut};

use dlq_core::Delivery;
use serde::de::DeserializeOwned;

use super::{FromDelivery, Payload, Rejection, payload};

/// The payload, read as MessagePack.
///
/// Refused as `decode` when it is not MessagePack or not a `T`, or when bytes are left over; as `malformed` when there
/// is no payload (a tombstone): take `Option<MsgPack<T>>` where those are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsgPack<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> Payload for MsgPack<T> {
    type Value = T;

    fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
        let bytes = super::bytes::payload::<T>(delivery, "MessagePack")?;
        let expected = || {
            let name = std::any::type_name::<T>();
            format!("expected `{name}` as MessagePack, found {} bytes", bytes.len())
        };
        let mut rest = &bytes[..];
        let value = rmp_serde::from_read(&mut rest).map_err(|error| {
            Rejection::decode(format!("{} that differ", expected())).with_source(error)
        })?;
        // The reader stops after one value. What follows it shows that the payload is something else.
        if !rest.is_empty() {
            return Err(Rejection::decode(format!("{} with {} left over", expected(), rest.len())));
        }
        Ok(Self(value))
    }

    fn value(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned + Send + 'static, S> FromDelivery<S> for MsgPack<T> {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        payload::take(delivery)
    }
}

impl<T> Deref for MsgPack<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MsgPack<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
