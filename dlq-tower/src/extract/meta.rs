use std::sync::Arc;

use dlq_core::{DeliveredFrom, Delivery, Origin, Timestamp};

use super::{FromDelivery, Rejection};
use crate::trace::TraceContext;

/// Everything known about a delivery besides what the producer sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Meta {
    /// The name of the consumer that it was handed to.
    pub consumer: Arc<str>,
    /// Position of the message at its broker.
    pub origin: Origin,
    /// Way by which the delivery came.
    pub delivered_from: DeliveredFrom,
    /// When the message was published.
    pub published_at: Option<Timestamp>,
    /// Number of times that the broker has handed the message out, including this one.
    pub deliveries: u32,
    /// Number of runs that are known to have ended with the process.
    pub crashes: u32,
    /// Hops to a slower retry stage so far.
    pub delayed_retries: u32,
    /// Times it was sent back from the dead letters.
    pub replays: u32,
    /// Deaths before this delivery.
    pub generation: u32,
    /// The trace in which it was published.
    pub trace: TraceContext,
}

impl<S> FromDelivery<S> for Meta {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        Ok(Self {
            consumer: Arc::clone(delivery.consumer_shared()),
            origin: delivery.origin().clone(),
            delivered_from: delivery.delivered_from(),
            published_at: delivery.message().published_at(),
            deliveries: delivery.deliveries(),
            crashes: delivery.crashes(),
            delayed_retries: delivery.delayed_retries(),
            replays: delivery.replays(),
            generation: delivery.generation(),
            trace: TraceContext::from_headers(delivery.message().headers()),
        })
    }
}
