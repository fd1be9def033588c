use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlq_core::{Clock as _, SystemClock};
use tokio::time::Instant;

use super::ledger::{Claim, Entry};

/// Difference between the clocks of two who replay, at most.
const SKEW: Duration = Duration::from_secs(60);

/// Claims of others, each with its revision and the time since which it has been seen.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<HashMap<u64, (u64, Instant)>>);

impl Watch {
    /// Returns true if the lease of somebody else's claim has ended.
    pub(super) fn is_over(&self, chunk: u64, claim: &Claim, entry: &Entry) -> bool {
        let now = Instant::now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (revision, since) = seen.entry(chunk).or_insert((entry.revision, now));
        // The claim was renewed, or is another one: its lease begins anew.
        if *revision != entry.revision {
            (*revision, *since) = (entry.revision, now);
        }
        let age = SystemClock.now().since(entry.written);
        // The steady clock of whoever waits decides, unless the claim is older than any difference of clocks explains.
        since.elapsed() >= claim.lease() || age > claim.lease() + SKEW
    }
}

/// Returns the time until a claim of somebody else is looked at again.
pub(super) fn moment(claim: &Claim) -> Duration {
    (claim.lease() / 8).min(Duration::from_millis(250))
}
