use std::time::Duration;

use dlq_core::{Clock, SystemClock, Timestamp};
use tokio::time::Instant;

/// For how long letters of a chunk may be sent since it was claimed: half of the lease.
///
/// It is over when either clock says so. The steady one stands still while the machine sleeps, and others do not wait
/// for that; the other one may be set back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    since: Instant,
    at: Timestamp,
    length: Duration,
}

impl Term {
    /// It begins before the claim is written.
    pub(super) fn begin(lease: Duration) -> Self {
        Self { since: Instant::now(), at: SystemClock.now(), length: lease / 2 }
    }

    /// When it is over at the latest.
    pub(super) fn until(&self) -> Instant {
        self.since + self.length
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over_at(Instant::now(), SystemClock.now())
    }

    fn is_over_at(&self, now: Instant, at: Timestamp) -> bool {
        now >= self.until() || at.since(self.at) >= self.length
    }

    /// Returns the time since the term began.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed().max(SystemClock.now().since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g6_a_machine_that_has_slept_sends_no_more() {
        let term = Term::begin(Duration::from_secs(30));
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        for (steady, wall, is_over) in [
            (second, second, false),
            (minute, minute, true),
            // It slept.
            (second, minute, true),
            // The clock was set back.
            (minute, second, true),
        ] {
            let found = term.is_over_at(term.since + steady, term.at.after(wall));
            assert_eq!(found, is_over, "{steady:?} {wall:?}");
        }
    }
}
