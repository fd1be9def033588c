use dlq_core::Delivery;

use super::{FromDelivery, Rejection};

/// `None` when what `T` takes is absent. What is there but broken is still refused.
impl<T: FromDelivery<S>, S> FromDelivery<S> for Option<T> {
    fn from_delivery(delivery: &Delivery, state: &S) -> Result<Self, Rejection> {
        match T::from_delivery(delivery, state) {
            Ok(value) => Ok(Some(value)),
            // A payload that is broken must not pass for one that is absent, or its message would be handled as a
            // tombstone.
            Err(rejection) if rejection.is_absent() => Ok(None),
            Err(rejection) => Err(rejection),
        }
    }
}
