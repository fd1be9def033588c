use dlq_core::Delivery;

use super::{FromDelivery, Rejection};

/// The whole delivery.
impl<S> FromDelivery<S> for Delivery {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(delivery.clone())
    }

    fn from_last(delivery: Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(delivery)
    }
}
