use dlq_core::{Delivery, Headers};

use super::{FromDelivery, Rejection};

/// All headers of the message, in order.
impl<S> FromDelivery<S> for Headers {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(delivery.message().headers().clone())
    }
}
