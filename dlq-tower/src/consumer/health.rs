use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Where a consumer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// Built, and not yet run.
    #[default]
    Ready,
    /// It fetches and handles.
    Running,
    /// It fetches no more and finishes what it has in hand.
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
    StoreLane,
    /// Runs the automatic schedule.
    Schedule,
    /// Counts the letters that wait.
    Gauges,
    /// Writes the processing audit.
    Audit,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::StoreLane => "store lane",
            Self::Schedule => "automatic schedule",
            Self::Gauges => "gauges",
            Self::Audit => "processing audit",
        })
    }
}

/// A part that ended before it should have (G9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// Which one.
    pub part: Part,
    /// How it ended: an error with its causes, or a panic.
    pub why: String,
}

/// How a consumer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerHealth {
    /// Where it stands.
    pub state: RunState,
    /// Parts that ended before they should have. They do not come back; run the consumer anew.
    pub lost: Vec<LostPart>,
    /// Whether fetching pauses because too many messages failed.
    pub outage: bool,
    /// The latest error of the source, until a message comes again.
    pub source_error: Option<String>,
    /// Why dead-letter routing could not write, until it can again.
    pub route_error: Option<String>,
}

impl ConsumerHealth {
    /// Whether all parts work, and letters can be written. An outage of what the handler depends on is not the
    /// consumer's own illness.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.lost.is_empty() && self.source_error.is_none() && self.route_error.is_none()
    }
}

/// Shows how a consumer is, while it runs and after. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HealthHandle(watch::Receiver<ConsumerHealth>);

impl HealthHandle {
    /// How it is now.
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

/// Where the parts of a consumer report.
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

    pub(super) fn state(&self, state: RunState) {
        self.change(|health| &mut health.state, state);
    }

    pub(super) fn outage(&self, open: bool) {
        self.change(|health| &mut health.outage, open);
    }

    pub(super) fn source_failed(&self, why: String) {
        self.change(|health| &mut health.source_error, Some(why));
    }

    pub(super) fn source_works(&self) {
        self.change(|health| &mut health.source_error, None);
    }

    pub(super) fn route_failed(&self, why: String) {
        self.change(|health| &mut health.route_error, Some(why));
    }

    pub(super) fn route_works(&self) {
        self.change(|health| &mut health.route_error, None);
    }

    pub(super) fn lost(&self, part: Part, why: String) {
        tracing::error!(%part, why, "a part of the consumer ended; the consumer is unhealthy");
        self.0.send_modify(|health| health.lost.push(LostPart { part, why }));
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
    dlq_core::bounded(&text)
}
