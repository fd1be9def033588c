use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use super::refused::RefusedLetters;

/// State of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// Built, and not yet run.
    #[default]
    Ready,
    /// It fetches and handles.
    Running,
    /// It fetches no more and finishes what it has in flight.
    Draining,
    /// It has ended.
    Stopped,
}

/// A part of a consumer that works in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Fetches from the source.
    Source,
    /// Claims what is due in the store.
    StoreSource,
    /// Runs the automatic schedule.
    Schedule,
    /// Counts the letters that wait.
    Gauges,
    /// Tells the store that the consumer is there.
    Heartbeats,
    /// Writes the processing audit.
    Audit,
    /// Sends letters of operations to brokers.
    Dispatcher,
    /// Tells the store of letters that were sent back and handled.
    Evidence,
    /// Forgets idempotency keys that were kept long enough.
    Janitor,
    /// The run itself: all of the others.
    Run,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::StoreSource => "store source",
            Self::Schedule => "automatic schedule",
            Self::Gauges => "gauges",
            Self::Heartbeats => "heartbeats",
            Self::Audit => "processing audit",
            Self::Dispatcher => "dispatcher",
            Self::Evidence => "evidence of replays",
            Self::Janitor => "maintenance of idempotency keys",
            Self::Run => "run",
        })
    }
}

/// A part that ended before it should have (G9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// The part.
    pub part: Part,
    /// Error with its causes, or panic, that ended it.
    pub why: String,
}

/// Health of a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerHealth {
    /// State of the run.
    pub state: RunState,
    /// Parts that ended before they should have. They do not come back; run the consumer anew.
    pub lost: Vec<LostPart>,
    /// True if fetching pauses because too many messages failed.
    pub outage: bool,
    /// The latest error of the source, until a message comes again.
    pub source_error: Option<String>,
    /// The latest error of the store when it was asked for what is due, until it answers again.
    pub store_error: Option<String>,
    /// The latest error of the automatic schedule, until it has run again.
    pub schedule_error: Option<String>,
    /// The latest error of an idempotency store when a key was to be claimed, until it answers again: messages with a key
    /// are deferred meanwhile.
    pub keys_error: Option<String>,
    /// Reason why dead-letter routing could not write, until it can again.
    pub route_error: Option<String>,
    /// Messages whose letters are refused one by one, while the rest goes on; `None` when there are none.
    pub refused_letters: Option<RefusedLetters>,
}

impl ConsumerHealth {
    /// Returns true if all parts work, and all letters can be written. An outage of what the handler depends on is not the
    /// consumer's own illness. One that was asked to stop, or whose source has ended, was well to its end; a run that
    /// panicked, or whose future was dropped, is lost.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let errors = [
            &self.source_error,
            &self.store_error,
            &self.schedule_error,
            &self.keys_error,
            &self.route_error,
        ];
        self.lost.is_empty()
            && self.refused_letters.is_none()
            && errors.into_iter().all(Option::is_none)
    }
}

/// Shows how a consumer is, while it runs and after. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HealthHandle(watch::Receiver<ConsumerHealth>);

impl HealthHandle {
    /// Returns the current health.
    #[must_use]
    pub fn get(&self) -> ConsumerHealth {
        self.0.borrow().clone()
    }

    /// Waits until `condition` holds, and gives the health in which it does; `None` when the consumer is gone without
    /// it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub async fn wait_for(
        &mut self,
        mut condition: impl FnMut(&ConsumerHealth) -> bool,
    ) -> Option<ConsumerHealth> {
        self.0.wait_for(|health| condition(health)).await.ok().map(|health| health.clone())
    }
}

/// Reporter of the parts of a consumer.
#[derive(Clone, Debug)]
pub(super) struct Reporter(Arc<watch::Sender<ConsumerHealth>>);

impl Reporter {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(ConsumerHealth::default())))
    }

    pub(super) fn handle(&self) -> HealthHandle {
        HealthHandle(self.0.subscribe())
    }

    /// Changes the health; those who wait are told only of a difference.
    fn change<T: PartialEq>(&self, field: impl Fn(&mut ConsumerHealth) -> &mut T, value: T) {
        self.0.send_if_modified(|health| {
            let field = field(health);
            let differs = *field != value;
            *field = value;
            differs
        });
    }

    /// Sets the state. A stopped consumer stays so: a run that was left behind may still say that it stops.
    pub(super) fn state(&self, state: RunState) {
        self.0.send_if_modified(|health| {
            let differs = health.state != state && health.state != RunState::Stopped;
            if differs {
                health.state = state;
            }
            differs
        });
    }

    pub(super) fn outage(&self, open: bool) {
        self.change(|health| &mut health.outage, open);
    }

    /// Sets or clears the error of a part.
    pub(super) fn failing(&self, part: Part, why: Option<String>) {
        match part {
            Part::StoreSource => self.change(|health| &mut health.store_error, why),
            Part::Schedule => self.change(|health| &mut health.schedule_error, why),
            // Other parts than these three do not report errors that pass.
            _ => self.change(|health| &mut health.source_error, why),
        }
    }

    /// Sets or clears the error of stores of idempotency keys.
    pub(super) fn keys_failing(&self, why: Option<String>) {
        self.change(|health| &mut health.keys_error, why);
    }

    pub(super) fn route_failed(&self, why: String) {
        self.change(|health| &mut health.route_error, Some(why));
    }

    pub(super) fn refused(&self, letters: Option<RefusedLetters>) {
        self.change(|health| &mut health.refused_letters, letters);
    }

    pub(super) fn route_works(&self) {
        self.change(|health| &mut health.route_error, None);
    }

    pub(super) fn lost(&self, part: Part, why: String) {
        tracing::error!(%part, why, "a part of the consumer ended; the consumer is unhealthy");
        self.0.send_modify(|health| health.lost.push(LostPart { part, why }));
    }

    /// The run is over; whoever looks has to see it, and how (G9).
    pub(super) fn gone(&self) {
        let was_lost = self.0.send_if_modified(|health| {
            // A run that ended in good order has said `Stopped` before.
            let is_lost = health.state != RunState::Stopped;
            if is_lost {
                let why = "it panicked, or its future was dropped".to_owned();
                health.lost.push(LostPart { part: Part::Run, why });
                health.state = RunState::Stopped;
            }
            is_lost
        });
        if was_lost {
            tracing::error!(
                "the run of a consumer was lost: it panicked, or its future was dropped"
            );
        }
    }
}

/// An error and its causes in one line.
pub(super) fn report(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    // An error's text can be of any length, and health is kept and copied.
    dlq_core::bounded(&text)
}
