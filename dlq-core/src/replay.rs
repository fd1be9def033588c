//! What a transport says of letters that it sends back: beforehand, of each, and in the end.

mod selected;

use std::collections::BTreeMap;
use std::fmt;

pub use selected::Selected;

use crate::{DeadLetter, LetterSummary, OperationId, StoreError};

/// Which letters that match are sent back.
#[derive(Clone, Debug)]
pub struct ReplayRules {
    /// Who sends them.
    pub operation: OperationId,
    /// How many letters are sent at most.
    pub limit: u64,
    /// How many letters are sent in a second.
    pub rate: Option<u32>,
    /// How often a letter may be sent back; 0 for any number.
    pub cap: u32,
    /// Whether letters are sent that were sent before; each once by an operation.
    pub again: bool,
}

impl ReplayRules {
    /// All of them at full speed, each at most 10 times, but for those that were sent before.
    #[must_use]
    pub fn new(operation: OperationId) -> Self {
        Self { operation, limit: u64::MAX, rate: None, cap: 10, again: false }
    }

    /// Why this letter is not sent; `sent_by` has sent this death back last.
    #[must_use]
    pub fn skipped(&self, letter: &DeadLetter, sent_by: Option<OperationId>) -> Option<Skipped> {
        if self.is_sent(sent_by) {
            return Some(Skipped::Sent);
        }
        let is_worn = self.cap > 0 && letter.state.replays >= self.cap;
        is_worn.then_some(Skipped::MaxReplays)
    }

    /// Whether a death that `by` has sent back last is not to be sent again.
    #[must_use]
    pub fn is_sent(&self, by: Option<OperationId>) -> bool {
        by.is_some_and(|operation| !self.again || operation == self.operation)
    }
}

/// What a replay would do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct ReplayPlan {
    /// How many letters would be sent.
    pub letters: u64,
    /// How many match and would not be sent, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// The first of those that would be sent.
    pub sample: Vec<LetterSummary>,
    /// Consumers that will hear letters of others.
    pub hearers: Vec<Hearer>,
    /// What should be known beforehand, in words.
    pub notes: Vec<String>,
}

/// A consumer that hears letters that are not its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hearer {
    /// The stream or topic it reads.
    pub stream: String,
    /// Its name.
    pub consumer: String,
}

impl fmt::Display for Hearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer `{}` of `{}`", self.consumer, self.stream)
    }
}

/// Why a letter was not sent, though it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Skipped {
    /// This death was sent back before.
    Sent,
    /// It was sent back as often as the cap allows (G7).
    MaxReplays,
    /// Its payload is there no more. One that was read with the letter, since it is small, is sent all the same.
    Gone,
    /// Where it was born, or whose letter it is, is not known, or was elsewhere; it can only be sent to a place that is
    /// named.
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

/// What became of a letter.
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

/// What a replay has done.
#[derive(Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct ReplayReport {
    /// Letters that were sent and confirmed.
    pub sent: u64,
    /// Of these, those of which a replay that died may have sent a copy that cannot be found out.
    pub doubtful: u64,
    /// Letters that were not sent, by reason.
    pub skipped: BTreeMap<Skipped, u64>,
    /// Letters that cannot be sent.
    pub failed: u64,
    /// Letters that it did not come to: it was cancelled, or the server did not answer. Run it again.
    pub left: u64,
    /// What kept it from going on.
    pub stopped: Option<StoreError>,
    /// What is to be known of what was sent.
    pub notes: Vec<String>,
}

impl ReplayReport {
    /// Whether it came to every letter.
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
