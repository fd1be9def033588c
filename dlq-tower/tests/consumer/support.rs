//! Shorthands: running consumers, time, logs.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::policy::Backoff;
use dlq_core::{Delivery, Position, RetryPolicy, SharedClock, Timestamp, TokioClock};
use dlq_tower::consumer::{Consumer, ConsumerHandle, Report};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// No event of a test is later than this.
const PATIENCE: Duration = Duration::from_secs(100_000);

/// Waits for an event; a test that waits in vain fails.
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    timeout(PATIENCE, event).await.expect("the event comes")
}

/// A consumer that runs in the background of a test.
pub(crate) struct Running {
    pub(crate) handle: ConsumerHandle,
    tasks: JoinSet<Report>,
}

impl Running {
    pub(crate) fn start(consumer: Consumer) -> Self {
        let handle = consumer.handle();
        let mut tasks = JoinSet::new();
        tasks.spawn(consumer.run(pending()));
        Self { handle, tasks }
    }

    /// Waits for the end.
    pub(crate) async fn ended(mut self) -> Report {
        soon(self.tasks.join_next()).await.expect("it was started").expect("it does not panic")
    }

    pub(crate) async fn stop(self) -> Report {
        self.handle.stop();
        self.ended().await
    }

    /// Stops it, where it does not matter what it has done; it must have kept all its parts.
    pub(crate) async fn finish(self) {
        let report = self.stop().await;
        assert_eq!(report.lost_tasks, 0, "{report}");
    }

    /// The process dies.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// A clock that moves with tokio's.
pub(crate) fn clock() -> SharedClock {
    Arc::new(TokioClock::starting_at(Timestamp::from_millis(1_700_000_000_000)))
}

/// So many attempts, this long apart.
pub(crate) fn policy(attempts: u32, delay: Duration) -> RetryPolicy {
    RetryPolicy::new().with_max_attempts(attempts).with_backoff(Backoff::constant(delay))
}

/// Which message a delivery is.
pub(crate) fn position(delivery: &Delivery) -> u64 {
    match delivery.origin().position() {
        Position::Offset(offset) => *offset,
        other => unreachable!("the script counts: {other}"),
    }
}

/// What handlers note, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    changed: Arc<Notify>,
}

impl Log {
    pub(crate) fn note(&self, line: impl fmt::Display) {
        self.lines.lock().unwrap().push(line.to_string());
        self.changed.notify_waiters();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) async fn until(&self, condition: impl Fn(&[String]) -> bool) {
        soon(async {
            loop {
                let changed = self.changed.notified();
                if condition(&self.lines()) {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}
