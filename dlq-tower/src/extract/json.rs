use std::ops::{Deref, DerefMut};

use dlq_core::Delivery;
use serde::de::DeserializeOwned;

use super::{FromDelivery, Payload, Rejection, payload};

/// The payload, read as JSON.
///
/// Refused as `decode` when it is not JSON or not a `T` (the rejection names the path to the field that differs), and
/// as `malformed` when there is no payload (a tombstone): take `Option<Json<T>>` where those are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> Payload for Json<T> {
    type Value = T;

    fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
        let bytes = super::bytes::payload::<T>(delivery, "JSON")?;
        // The path costs time, so it is looked for only where it will be read.
        serde_json::from_slice(bytes).map(Self).map_err(|plain| {
            let mut reader = serde_json::Deserializer::from_slice(bytes);
            let path = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
                Err(error) if error.path().iter().next().is_some() => {
                    format!(" at `{}`", error.path())
                }
                _ => String::new(),
            };
            Rejection::decode(format!(
                "expected `{}` as JSON, found {} bytes that differ{path}",
                std::any::type_name::<T>(),
                bytes.len()
            ))
            .with_source(plain)
        })
    }

    fn value(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned + Send + 'static, S> FromDelivery<S> for Json<T> {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        payload::take(delivery)
    }
}

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Json<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
