//! Handler of the benches of consumers: each message succeeds, or each dies.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlq_core::{Classification, Classify, Delivery};
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;
use dlq_tower::extract::State;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Refused;

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
pub(crate) enum Fate {
    Success,
    Death,
}

/// Counts messages down.
#[derive(Clone)]
pub(crate) struct Counting {
    fate: Fate,
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

#[dlq_handler(name = "bench.work")]
pub(crate) async fn work(
    delivery: Delivery,
    State(counting): State<Counting>,
) -> Result<(), Refused> {
    black_box(delivery.message().payload().map(bytes::Bytes::len));
    if counting.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        counting.done.notify_one();
    }
    match counting.fate {
        Fate::Success => Ok(()),
        Fate::Death => Err(Refused),
    }
}

impl Counting {
    /// Makes a count of so many messages with this fate.
    pub(crate) fn new(fate: Fate, count: usize) -> Self {
        Self { fate, left: Arc::new(AtomicUsize::new(count)), done: Arc::new(Notify::new()) }
    }

    /// Measures `consumer` until the last of so many messages is settled and the consumer has ended.
    ///
    /// # Errors
    ///
    /// When not every message was settled.
    pub(crate) async fn measure(
        self,
        consumer: Consumer,
        count: usize,
    ) -> Result<Duration, Box<dyn std::error::Error>> {
        let start = Instant::now();
        let report = consumer.run(self.done.notified()).await;
        let time = start.elapsed();
        let settled = match self.fate {
            Fate::Success => report.handled,
            Fate::Death => report.dead,
        };
        if usize::try_from(settled)? < count || report.unsettled > 0 {
            return Err(format!("not every message was settled: {report}").into());
        }
        Ok(time)
    }
}
