//! Plans, progress and reports of transports that send letters back.

mod selected;

use std::collections::BTreeMap;
use std::fmt;

pub use selected::Selected;

use crate::{DeadLetter, LetterSummary, OperationId, StoreError};

/// Rules that decide which of the matching letters are sent back.
#[derive(Clone, Debug)]
pub struct ReplayRules {
    /// Operation that sends the letters.
    pub operation: OperationId,
    /// Maximum number of letters.
    pub limit: u64,
    /// Maximum number of letters per second.
    pub rate: Option<u32>,
    /// Maximum number of times that a letter may be sent back; 0 for any number.
    pub cap: u32,
    /// True if letters are sent that were sent before; an operation sends each once.
    pub again: bool,
}

impl ReplayRules {
    /// All of them at full speed, each at most 10 times, but for those that were sent before.
    #[must_use]
    pub fn new(operation: OperationId) -> Self {
        Self { operation, limit: u64::MAX, rate: None, cap: 10, again: false }
    }

    /// Returns the reason why this letter is not sent. `sent_by` is the operation that has sent this death back last.
    #[must_use]
    pub fn skipped(&self, letter: &DeadLetter, sent_by: Option<OperationId>) -> Option<Skipped> {
        // This comes before the cap, so that a death whose last permitted replay was made is reported as sent.
        if self.is_sent(sent_by) {
            return Some(Skipped::Sent);
        }
        let is_worn = self.cap > 0 && letter.state.replays >= self.cap;
        is_worn.then_some(Skipped::MaxReplays)
    }

    /// Returns true if a death that `by` has sent back last must not be sent again.
    #[must_use]
    pub fn is_sent(&self, by: Option<OperationId>) -> bool {
        // A forced replay, too, sends a death once in its operation, so that running it again repeats nothing (G6).
        by.is_some_and(|operation| !self.again || operation == self.operation)
    }
}

/// Plan of a replay.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct ReplayPlan {
    /// Number of letters that would be sent.
    pub letters: u64,
    /// Number of matching letters that would not be sent, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// The first of those that would be sent.
    pub sample: Vec<LetterSummary>,
    /// Consumers that will hear letters of others.
    pub subscribers: Vec<Subscriber>,
    /// Remarks to read before the replay.
    pub notes: Vec<String>,
}

/// A consumer that hears letters that are not its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscriber {
    /// The stream or topic it reads.
    pub stream: String,
    /// Its name.
    pub consumer: String,
}

impl fmt::Display for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer `{}` of `{}`", self.consumer, self.stream)
    }
}

/// Reason why a matching letter was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Skipped {
    /// This death was sent back before.
    Sent,
    /// It was sent back as often as the cap allows (G7).
    MaxReplays,
    /// Its payload is there no more. One that was read with the letter, since it is small, is sent all the same.
    Gone,
    /// The letter's origin or consumer is unknown or was elsewhere; it can only be sent to a destination that is named.
    NoOrigin,
    /// Its cluster has no address to which letters are sent.
    NoOutbox,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent before",
            Self::MaxReplays => "max_replays",
            Self::Gone => "gone",
            Self::NoOrigin => "origin unknown",
            Self::NoOutbox => "no address for its cluster",
        })
    }
}

/// Outcome of a replay for one letter.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayOutcome {
    /// The server has confirmed it.
    Sent,
    /// It was not sent.
    Skipped(Skipped),
    /// It cannot be sent.
    Failed(StoreError),
}

/// Report of a replay.
#[derive(Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct ReplayReport {
    /// Letters that were sent and confirmed.
    pub sent: u64,
    /// Number of sent letters of which a replay that died may have sent a copy, and nobody can find out.
    pub doubtful: u64,
    /// Letters that were not sent, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// Letters that cannot be sent.
    pub failed: u64,
    /// Letters that it did not come to: it was cancelled, or the server did not answer. Run it again.
    pub left: u64,
    /// Error that ended the replay early.
    pub stopped: Option<StoreError>,
    /// Remarks about what was sent.
    pub notes: Vec<String>,
}

impl ReplayReport {
    /// Returns true if the replay processed every letter.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.left == 0 && self.stopped.is_none()
    }

    /// Counts another letter.
    pub fn count(&mut self, outcome: &ReplayOutcome) {
        match outcome {
            ReplayOutcome::Sent => self.sent += 1,
            ReplayOutcome::Skipped(why) => *self.skipped.entry(*why).or_default() += 1,
            ReplayOutcome::Failed(_) => self.failed += 1,
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent", self.sent)?;
        if self.doubtful > 0 {
            write!(f, " ({} of them perhaps twice)", self.doubtful)?;
        }
        for (why, count) in &self.skipped {
            write!(f, ", {count} skipped ({why})")?;
        }
        if self.failed > 0 {
            write!(f, ", {} failed", self.failed)?;
        }
        if self.left > 0 {
            write!(f, ", {} left", self.left)?;
        }
        match &self.stopped {
            Some(error) => write!(f, "; stopped: {error}"),
            None => Ok(()),
        }
    }
}
