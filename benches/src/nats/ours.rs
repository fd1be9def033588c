//! A consumer as a user composes it: the attribute's stack, source, retry queue and sink of NATS.

use std::time::Duration;

use async_nats::Client;
use dlq_nats::NatsTransport;
use dlq_tower::consumer::Consumer;

use super::{Failed, STREAM, SUBJECT, Shape};
pub(super) use crate::work::Fate;
use crate::work::{Counting, work};

/// Default number of calls that write letters at once.
pub(super) const WRITERS: usize = 2;

/// Measures consuming so many messages, until the last one is settled and the consumer has ended.
pub(super) async fn consume(
    client: &Client,
    durable: &str,
    shape: Shape,
    count: usize,
    fate: Fate,
    writers: usize,
    confirm: bool,
) -> Result<Duration, Failed> {
    let orders = NatsTransport::new(STREAM)
        .name("bench.work")
        .durable(durable)
        .subject(SUBJECT)
        .prefetch(shape.prefetch)
        .confirm_acks(confirm)
        .max_ack_pending(shape.unsettled());
    let state = Counting::new(fate, count);
    let consumer = Consumer::on(orders, client)
        .handler(work::handler().with_state(state.clone()).build()?)
        .without_crash_marks()
        .routing(move |layer| layer.writers(writers))
        .max_in_flight(shape.in_flight)
        .open()
        .await?;
    state.measure(consumer, count).await
}
