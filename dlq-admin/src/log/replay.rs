//! Replays of a log, which run in this process.
//!
//! The latest replay of each log is kept in memory, so that its page and the HTTP interface can say how it goes. What was sent
//! is marked by the broker, wherever this process ends.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use dlq_core::replay::{ReplayOutcome, ReplayPlan, ReplayReport};
use dlq_core::store::{Pace, Target};
use dlq_core::{Clock as _, Filter, LetterId, OperationId, StoreError, SystemClock, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::LogFuture;
use crate::shown::skipped;

/// Number of letters that failed and are named one by one.
const SAID: usize = 20;

/// Replay of letters of a [`BrokerLog`](super::BrokerLog) that somebody asks for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogReplay {
    /// Letters that are meant.
    pub filter: Filter,
    /// Destination of the letters.
    pub target: Target,
    /// Maximum number of letters, oldest first.
    pub limit: Option<u64>,
    /// Maximum rate.
    pub pace: Option<Pace>,
    /// Number of replays from which on a letter is not sent; 0 for no such number.
    pub max_replays: u32,
    /// Name of the person or program that asks.
    pub by: String,
}

impl LogReplay {
    pub(crate) const fn new(filter: Filter, target: Target, by: String) -> Self {
        let max_replays = dlq_core::store::OperationSpec::MAX_REPLAYS;
        Self { filter, target, limit: None, pace: None, max_replays, by }
    }
}

type Run = Box<dyn FnOnce(ReplayWatch) -> LogFuture<'static, ReplayReport> + Send>;

/// Replay that was planned, and not begun.
#[must_use = "nothing is sent until it runs"]
pub struct PlannedReplay {
    pub(crate) id: OperationId,
    pub(crate) plan: ReplayPlan,
    run: Run,
}

impl PlannedReplay {
    /// The plan of an operation, and the way to carry it out. `run` sends nothing but what was planned, [tells](ReplayWatch::note)
    /// the outcome of each letter, and ends when it is [asked to](ReplayWatch::stop).
    pub fn new<F>(
        id: OperationId,
        plan: ReplayPlan,
        run: impl FnOnce(ReplayWatch) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<ReplayReport, StoreError>> + Send + 'static,
    {
        Self { id, plan, run: Box::new(move |watch| Box::pin(run(watch))) }
    }
}

impl fmt::Debug for PlannedReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, plan, .. } = self;
        f.debug_struct("PlannedReplay").field("id", id).field("plan", plan).finish_non_exhaustive()
    }
}

/// Connection of a replay that runs with those who watch it.
#[derive(Debug)]
pub struct ReplayWatch(Arc<Sending>);

impl ReplayWatch {
    /// Waits until somebody stops the replay.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut asked = self.0.stop.subscribe();
        async move {
            // The sender is gone with the replay, which was then not asked.
            if asked.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells what became of a letter.
    pub fn note(&self, letter: LetterId, outcome: &ReplayOutcome) {
        let mut told = self.0.told();
        told.report.count(outcome);
        if let ReplayOutcome::Failed(error) = outcome
            && told.failures.len() < SAID
        {
            told.failures.push((letter, error.to_string()));
        }
    }
}

/// Replay that runs, or the latest one that has run.
#[derive(Debug)]
pub(crate) struct Sending {
    id: OperationId,
    pub(crate) to: Target,
    pub(crate) by: String,
    pub(crate) note: String,
    pub(crate) began: Timestamp,
    total: u64,
    stop: watch::Sender<bool>,
    told: Mutex<Told>,
}

/// Facts about a replay that change while it runs.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) report: ReplayReport,
    /// The first letters that failed.
    pub(crate) failures: Vec<(LetterId, String)>,
    /// Error that ended it early.
    pub(crate) error: Option<String>,
    ended: Option<(Timestamp, Instant)>,
}

/// State of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendingState {
    Running,
    /// Somebody has asked it to stop, and it has not yet.
    Stopping,
    Stopped,
    Failed,
    Complete,
}

impl SendingState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Complete => "complete",
        }
    }

    pub(crate) const fn is_over(self) -> bool {
        !matches!(self, Self::Running | Self::Stopping)
    }
}

impl Sending {
    pub(super) fn new(planned: &PlannedReplay, to: Target, by: String, note: String) -> Arc<Self> {
        Arc::new(Self {
            id: planned.id,
            to,
            by,
            note,
            began: SystemClock.now(),
            total: planned.plan.letters,
            stop: watch::Sender::new(false),
            told: Mutex::default(),
        })
    }

    /// Sends, and keeps how that ended.
    pub(super) async fn run(self: Arc<Self>, planned: PlannedReplay) {
        // A replay that panics has ended too, or no other could begin.
        let ending = Ending(Arc::clone(&self));
        let reported = (planned.run)(ReplayWatch(Arc::clone(&self))).await;
        let mut told = self.told();
        match reported {
            Ok(report) => {
                told.error = report.stopped.as_ref().map(logged);
                told.report = report;
            }
            Err(error) => told.error = Some(logged(&error)),
        }
        drop(told);
        drop(ending);
    }

    /// Asks it to stop after the letters that are on their way.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn state(&self) -> SendingState {
        let told = self.told();
        match (&told.ended, &told.error) {
            (None, _) if *self.stop.borrow() => SendingState::Stopping,
            (None, _) => SendingState::Running,
            (Some(_), Some(_)) => SendingState::Failed,
            (Some(_), None) if told.report.left > 0 => SendingState::Stopped,
            (Some(_), None) => SendingState::Complete,
        }
    }

    /// Returns when it ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.told().ended.map(|(_, at)| at)
    }

    /// Returns the document of it.
    pub(crate) fn document(&self) -> Value {
        let state = self.state();
        let told = self.told();
        let report = &told.report;
        let skipped_count: u64 = report.skipped.values().sum();
        let done = report.sent + report.failed + skipped_count;
        // A replay that runs, or that died, does not say how many it has left.
        let left = if report.left > 0 { report.left } else { self.total.saturating_sub(done) };
        let left = if state == SendingState::Complete { 0 } else { left };
        let failures = told.failures.iter();
        let failures: Vec<_> =
            failures.map(|(id, error)| json!({ "id": id, "error": error })).collect();
        json!({
            "id": self.id,
            "state": state.as_str(),
            "to": self.to.to_string(),
            "by": self.by,
            "note": self.note,
            "began": self.began,
            "ended": told.ended.map(|(at, _)| at),
            "total": self.total,
            "sent": report.sent,
            "doubtful": report.doubtful,
            "skipped": skipped(&report.skipped),
            "failed": report.failed,
            "failures": failures,
            "left": left,
            "stopped": told.error,
            "notes": report.notes,
        })
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the text of an error; its sources may quote secrets, and go to the log alone.
fn logged(error: &StoreError) -> String {
    tracing::warn!(error = error as &dyn std::error::Error, "replay of a log stopped");
    error.to_string()
}

/// End of a replay, however it comes.
struct Ending(Arc<Sending>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut told = self.0.told();
        if std::thread::panicking() {
            told.error = Some("the replay died; see the log of this process".to_owned());
        }
        told.ended = Some((SystemClock.now(), Instant::now()));
        let Sending { id, by, .. } = &*self.0;
        let (sent, failed) = (told.report.sent, told.report.failed);
        tracing::info!(operation = %id, by, sent, failed, "replay of a log ended");
    }
}
