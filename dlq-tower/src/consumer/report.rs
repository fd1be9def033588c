use std::fmt;

use dlq_core::Disposition;

/// Reason why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// The source said that there will never be another message.
    SourceEnded,
    /// The source failed for good, or panicked; the text says how.
    SourceFailed(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::SourceEnded => f.write_str("the source ended"),
            Self::SourceFailed(why) => write!(f, "the source failed: {why}"),
        }
    }
}

/// Report of a consumer's run. Each message that was handed out is counted once, by its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the report says whether the source failed"]
pub struct Report {
    /// Number of messages that were handled, now or before (duplicates).
    pub handled: u64,
    /// Number of messages that died, each with a letter.
    pub dead: u64,
    /// Number of messages that wait elsewhere for another attempt: in the retry queue, or in a store.
    pub retried: u64,
    /// Number of messages that were given back uncounted.
    pub deferred: u64,
    /// Number of messages that did not end: the settlement failed, the deadline of the stop passed, the task panicked, or
    /// another process has them. They come again, there or here.
    pub unsettled: u64,
    /// Number of times that dead-letter routing could not write. A message that came again may have several.
    pub route_errors: u64,
    /// Number of background tasks that ended before they should have;
    /// [`ConsumerHealth::lost`](super::ConsumerHealth::lost) names them.
    pub lost_tasks: u64,
    /// Reason why the run ended.
    pub ended: Ended,
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            handled: 0,
            dead: 0,
            retried: 0,
            deferred: 0,
            unsettled: 0,
            route_errors: 0,
            lost_tasks: 0,
            ended: Ended::Stopped,
        }
    }

    pub(super) fn count(&mut self, fate: Fate) {
        self.route_errors += u64::from(fate.route_errors);
        *match fate.outcome {
            Outcome::Handled => &mut self.handled,
            Outcome::Dead => &mut self.dead,
            Outcome::Retried => &mut self.retried,
            Outcome::Deferred => &mut self.deferred,
            Outcome::Unsettled => &mut self.unsettled,
        } += 1;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} handled, {} dead, {} retried, {} deferred, {} unsettled",
            self.ended, self.handled, self.dead, self.retried, self.deferred, self.unsettled
        )
    }
}

/// End of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Handled,
    Dead,
    Retried,
    Deferred,
    Unsettled,
}

impl Outcome {
    /// Returns true if a record of the message is kept elsewhere.
    pub(super) fn is_recorded(self) -> bool {
        matches!(self, Self::Dead | Self::Retried)
    }

    /// Returns true if the message does not come again.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Handled | Self::Dead | Self::Retried)
    }

    pub(super) fn of(disposition: &Disposition) -> Self {
        match disposition {
            Disposition::Succeeded | Disposition::Duplicate => Self::Handled,
            Disposition::Dead(_) => Self::Dead,
            Disposition::DelayedRetry { .. } => Self::Retried,
            // What is not known here is refused by the transport, and comes again.
            _ => Self::Deferred,
        }
    }
}

/// End of a message, and what went wrong on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) outcome: Outcome,
    pub(super) route_errors: u32,
}

impl Fate {
    pub(super) const UNSETTLED: Self = Self { outcome: Outcome::Unsettled, route_errors: 0 };
}
