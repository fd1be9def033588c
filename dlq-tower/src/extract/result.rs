use dlq_core::Delivery;

use super::{FromDelivery, Rejection};

/// The refusal is handed to the handler, which judges it itself.
impl<T: FromDelivery<S>, S> FromDelivery<S> for Result<T, Rejection> {
    fn from_delivery(delivery: &Delivery, state: &S) -> Result<Self, Rejection> {
        Ok(T::from_delivery(delivery, state))
    }
}
