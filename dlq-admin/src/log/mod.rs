//! [`BrokerLog`]: dead letters that stand in a log of a broker, which the console reads and sends back.

mod replay;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::store::{Letters, Target};
use dlq_core::{Clock as _, DeadLetters, StoreError, StoreErrorKind, SystemClock, Timestamp};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use replay::Sending;
pub use replay::{LogReplay, PlannedReplay, ReplayWatch};

use crate::refusal::Refusal;

/// Time for which a reading is shown at least.
const KEPT: Duration = Duration::from_secs(10);
/// Share of its time that a log is read at most, as its inverse.
// A reading takes every letter from the broker, with its payload.
const SHARE: u32 = 20;

/// Future of a call of a [`BrokerLog`].
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Dead letters of a broker: a stream of NATS JetStream, a topic of Kafka, a stream of Redis.
///
/// A log only grows. Its letters are read as a whole, and the console shows them as of the latest reading, which it
/// repeats when somebody asks and the former one is old. So a call here may be expensive: it comes once for all who look.
///
/// ```
/// use dlq_admin::{Admin, BrokerLog, LogFuture, Snapshot};
/// use dlq_core::log::{Log, Range};
/// use dlq_letters::log::Reading;
///
/// #[derive(Debug)]
/// struct InMemory<L>(L);
///
/// impl<L: Log + Clone> BrokerLog for InMemory<L> {
///     fn read(&self) -> LogFuture<'_, Snapshot> {
///         Box::pin(async { Ok(Snapshot::new(Reading::of(self.0.clone(), Range::all()).await?)) })
///     }
/// }
///
/// fn console(log: impl Log + Clone) -> Admin {
///     Admin::of_log("orders", InMemory(log))
/// }
/// ```
pub trait BrokerLog: fmt::Debug + Send + Sync + 'static {
    /// Reads every letter of the log. A letter that was sent back says so in its status.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the broker does not answer or there is no such log, since it may be there later; `Refused` if the
    /// letters cannot be read as it is configured. The text of the error is shown to all roles, and its sources are not.
    ///
    /// # Cancel safety
    ///
    /// The future is run to its end, unless the router is dropped. Dropping it has to leave nothing behind.
    fn read(&self) -> LogFuture<'_, Snapshot>;

    /// Plans a replay, without sending anything. Each death is sent once, whoever sends it and however often: what was sent is
    /// marked at the broker, where the next replay and the next reading find it. Defaults to a refusal, for a log that can
    /// only be read.
    ///
    /// # Errors
    ///
    /// `Refused` for what the broker cannot do; otherwise as [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has to leave nothing behind.
    fn plan(&self, replay: LogReplay) -> LogFuture<'_, PlannedReplay> {
        drop(replay);
        let error = StoreError::new(StoreErrorKind::Refused, "send letters back");
        Box::pin(std::future::ready(Err(error.with_detail("this log can only be read"))))
    }
}

/// Letters of a [`BrokerLog`] as they were when it was read.
pub struct Snapshot {
    letters: DeadLetters,
    /// Dropped after the letters.
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Snapshot {
    /// The letters of a reading.
    #[must_use]
    pub fn new(letters: impl Letters) -> Self {
        Self { letters: DeadLetters::read_only(letters), kept: None }
    }

    /// Keeps a value, such as a temporary folder, for as long as somebody looks at the letters.
    #[must_use]
    pub fn keep(mut self, value: impl Any + Send + Sync) -> Self {
        self.kept = Some(Box::new(value));
        self
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { letters, kept } = self;
        let kept = kept.is_some();
        f.debug_struct("Snapshot").field("letters", letters).field("kept", &kept).finish()
    }
}

/// Snapshot that is shown, and when its reading began.
#[derive(Debug)]
pub(crate) struct Taken {
    snapshot: Snapshot,
    pub(crate) at: Timestamp,
    began: Instant,
    took: Duration,
}

impl Taken {
    pub(crate) const fn letters(&self) -> &DeadLetters {
        &self.snapshot.letters
    }

    fn is_fresh(&self) -> bool {
        // The pause begins with the end of the reading, or a slow one would be old when it is there.
        self.began.elapsed().saturating_sub(self.took) < KEPT.max(self.took * SHARE)
    }
}

/// Log with its latest reading.
#[derive(Debug)]
pub(crate) struct CachedLog {
    log: Arc<dyn BrokerLog>,
    latest: Mutex<Latest>,
    /// Held while a replay is planned, for which all of the log is read too.
    planning: Mutex<()>,
    sent: StdMutex<Sent>,
}

/// The latest replay, and the task in which it runs.
#[derive(Debug, Default)]
struct Sent {
    latest: Option<Arc<Sending>>,
    // The task ends with the console: to the broker that is the death of this process.
    tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Latest {
    taken: Option<Arc<Taken>>,
    /// The reading that is under way.
    // A task, so that a visitor who leaves does not end the reading that others wait for, or will ask for next.
    reading: JoinSet<Result<Taken, StoreError>>,
}

impl CachedLog {
    pub(crate) fn new(log: impl BrokerLog) -> Self {
        Self {
            log: Arc::new(log),
            latest: Mutex::default(),
            planning: Mutex::default(),
            sent: StdMutex::default(),
        }
    }

    /// Returns the letters of the latest reading, and reads first if that is old. Whoever asks meanwhile waits for the same
    /// reading.
    pub(crate) async fn taken(&self) -> Result<Arc<Taken>, StoreError> {
        let mut latest = self.latest.lock().await;
        loop {
            if let Some(taken) = latest.taken.as_ref().filter(|taken| self.is_fresh(taken)) {
                return Ok(Arc::clone(taken));
            }
            // A reading that has ended without anybody there is taken first: it may be fresh.
            if latest.reading.is_empty() {
                let log = Arc::clone(&self.log);
                latest.reading.spawn(async move {
                    let (at, began) = (SystemClock.now(), Instant::now());
                    let snapshot = log.read().await?;
                    Ok(Taken { snapshot, at, began, took: began.elapsed() })
                });
            }
            match latest.reading.join_next().await {
                Some(Ok(read)) => latest.taken = Some(Arc::new(read?)),
                Some(Err(error)) => return Err(died(error)),
                None => {}
            }
        }
    }

    fn is_fresh(&self, taken: &Taken) -> bool {
        // Letters that a replay has sent say so only in a reading that began after it.
        let ended = self.sent().latest.as_ref().and_then(|latest| latest.ended());
        taken.is_fresh() && ended.is_none_or(|ended| taken.began >= ended)
    }

    /// Plans a replay. Plans are made one after the other.
    pub(crate) async fn plan(&self, replay: LogReplay) -> Result<PlannedReplay, StoreError> {
        let _turn = self.planning.lock().await;
        self.log.plan(replay).await
    }

    /// Begins a replay, unless one runs.
    pub(crate) fn start(
        &self,
        planned: PlannedReplay,
        to: Target,
        by: String,
        note: String,
    ) -> Result<Arc<Sending>, Refusal> {
        let mut sent = self.sent();
        if sent.latest.as_ref().is_some_and(|latest| !latest.state().is_over()) {
            return Err(Refusal::conflict(
                "a replay of this log is running, and nothing was begun; wait for its end, or stop it",
            ));
        }
        let sending = Sending::new(&planned, to, by, note);
        let (operation, letters) = (planned.id, planned.plan.letters);
        tracing::info!(%operation, letters, by = sending.by, note = sending.note, "replay of a log begins");
        // Tasks that have ended are taken out, or the set would grow with every replay.
        while sent.tasks.try_join_next().is_some() {}
        sent.tasks.spawn(Arc::clone(&sending).run(planned));
        sent.latest = Some(Arc::clone(&sending));
        Ok(sending)
    }

    /// Returns the replay that runs, or else the one that ran last.
    pub(crate) fn sending(&self) -> Option<Arc<Sending>> {
        self.sent().latest.clone()
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn died(error: tokio::task::JoinError) -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, "read the log")
        .with_detail("the reading died; see the log of this process")
        .with_source(error)
}
