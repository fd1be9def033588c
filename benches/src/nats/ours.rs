//! A consumer as a user composes it: the attribute's stack, source, retry lane and sink of NATS.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::Client;
use dlq_core::{Classification, Classify, Delivery};
use dlq_nats::NatsTransport;
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;
use dlq_tower::extract::State;
use tokio::sync::Notify;

use super::{Failed, STREAM, SUBJECT, Shape};

#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl Classify for Refused {
    fn classify(&self) -> Classification {
        Classification::permanent()
    }
}

/// Fate of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Success,
    Death,
}

#[derive(Clone)]
struct Counting {
    fate: Fate,
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

#[dlq_handler(name = "bench.work")]
async fn work(delivery: Delivery, State(counting): State<Counting>) -> Result<(), Refused> {
    black_box(delivery.message().payload().map(bytes::Bytes::len));
    if counting.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        counting.done.notify_one();
    }
    match counting.fate {
        Fate::Success => Ok(()),
        Fate::Death => Err(Refused),
    }
}

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
) -> Result<Duration, Failed> {
    let orders = NatsTransport::new(STREAM)
        .name("bench.work")
        .durable(durable)
        .subject(SUBJECT)
        .prefetch(shape.prefetch)
        .max_ack_pending(shape.unsettled());
    let state =
        Counting { fate, left: Arc::new(AtomicUsize::new(count)), done: Arc::new(Notify::new()) };
    let consumer = Consumer::on(orders, client)
        .handler(work::handler().with_state(state.clone()).build()?)
        .without_crash_marks()
        .routing(move |layer| layer.writers(writers))
        .max_in_hand(shape.in_hand)
        .open()
        .await?;
    let start = Instant::now();
    let report = consumer.run(state.done.notified()).await;
    let time = start.elapsed();
    let settled = match fate {
        Fate::Success => report.handled,
        Fate::Death => report.dead,
    };
    if usize::try_from(settled)? < count || report.unsettled > 0 {
        return Err(format!("not every message was settled: {report}").into());
    }
    Ok(time)
}
