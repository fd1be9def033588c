use std::collections::BTreeMap;
use std::fmt;

use dlq_core::{LetterId, StoreError};

/// Why a letter was not sent, though it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Skipped {
    /// This death was sent back before.
    Sent,
    /// It was sent back as often as the cap allows (G7).
    MaxReplays,
    /// Its payload is in the stream no more. One that was read with the letter, since it is small, is sent all the same.
    Gone,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent before",
            Self::MaxReplays => "max_replays",
            Self::Gone => "gone",
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

/// A letter and what became of it.
#[derive(Debug)]
pub struct Replayed {
    /// The letter.
    pub id: LetterId,
    /// Its sequence in the stream of dead letters.
    pub sequence: u64,
    /// What became of it.
    pub outcome: ReplayOutcome,
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
}

impl ReplayReport {
    /// Whether it came to every letter.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.left == 0 && self.stopped.is_none()
    }

    pub(super) fn count(&mut self, outcome: &ReplayOutcome) {
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
