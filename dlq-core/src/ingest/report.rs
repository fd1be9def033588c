use std::collections::BTreeMap;
use std::fmt;

use metrics::counter;
use serde::Serialize;

use super::Outcome;

/// Letters that came from a broker, by outcome.
pub const DLQ_INGESTED_LETTERS_TOTAL: &str = "dlq_ingested_letters_total";

/// Summary of an [`Ingest`](super::Ingest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IngestReport {
    /// Number of letters by outcome.
    pub by_outcome: BTreeMap<Outcome, u64>,
    /// Number of new letters that may have been sent back before. Stores quarantine them.
    pub unclear: u64,
    /// Number of times that the store or the broker was not there.
    pub outages: u64,
}

impl IngestReport {
    /// Returns the number of letters with this outcome.
    #[must_use]
    pub fn with_outcome(&self, outcome: Outcome) -> u64 {
        self.by_outcome.get(&outcome).copied().unwrap_or(0)
    }

    pub(super) fn count(&mut self, outcome: Outcome) {
        *self.by_outcome.entry(outcome).or_default() += 1;
        counter!(DLQ_INGESTED_LETTERS_TOTAL, "outcome" => outcome.as_str()).increment(1);
    }
}

impl fmt::Display for IngestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} letters stored", self.with_outcome(Outcome::Stored))?;
        for (outcome, count) in &self.by_outcome {
            if *outcome != Outcome::Stored {
                write!(f, ", {count} {}", outcome.as_str().replace('_', " "))?;
            }
        }
        if self.unclear > 0 {
            write!(f, "; {} quarantined, which may have been sent back before", self.unclear)?;
        }
        if self.outages > 0 {
            write!(f, "; {} outages", self.outages)?;
        }
        Ok(())
    }
}
