use dlq_core::{Delivery, Message};

use super::{FromDelivery, Rejection};

/// The whole message.
impl<S> FromDelivery<S> for Message {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(delivery.message().clone())
    }
}
