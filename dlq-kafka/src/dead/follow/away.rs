use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dlq_core::Timestamp;

use super::super::pointed::Unread;

/// Time after a letter was written for which the transaction of its message may be open. Brokers end a transaction
/// after 15 min at the latest (`transaction.max.timeout.ms`), unless they are configured otherwise or it hangs.
const OPEN: Duration = Duration::from_secs(16 * 60);

/// For how long nothing may be heard of a partition of which letters were set aside, until what comes of it is another
/// absence. A look takes half of that where a broker is silent.
const OVER: Duration = Duration::from_secs(60);

/// Partitions that letters point to and that are away, while the cluster is not, and since when. A batch may have no
/// letter that points there, so that only an answer ends that, or, once nobody waits for it, that nobody asks for long.
#[derive(Debug)]
pub(super) struct Away {
    since: BTreeMap<(String, u32), Absence>,
    patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absence {
    since: Instant,
    /// When it was last seen.
    last: Instant,
}

/// Returns true if a transaction may still be open that is older than a letter which was written then.
pub(super) fn may_be_open(written: Option<Timestamp>, now: Timestamp) -> bool {
    // A clock that is far ahead says nothing.
    written.is_some_and(|at| now.since(at) < OPEN && at.since(now) < OPEN)
}

impl Away {
    pub(super) fn new(patience: Duration) -> Self {
        Self { since: BTreeMap::new(), patience }
    }

    /// Returns true if it is worth waiting for a partition with this result of a check.
    pub(super) fn may_wait(
        &mut self,
        (topic, number): (&str, u32),
        why: Option<&Unread>,
        now: Instant,
    ) -> bool {
        let place = (topic.to_owned(), number);
        if !why.is_some_and(Unread::is_passing) {
            // A message that has gone, or may not be read, is an answer. Only a partition that says nothing is absent.
            self.since.remove(&place);
            return false;
        }
        let absence = self.since.entry(place).or_insert(Absence { since: now, last: now });
        let Absence { since, last } = *absence;
        // What is waited for stays in flight, however seldom it is asked for.
        let is_waited_for = last.duration_since(since) < self.patience;
        if !is_waited_for && now.duration_since(last) > self.patience.max(OVER) {
            absence.since = now;
        }
        absence.last = now;
        now.duration_since(absence.since) < self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_transaction_is_waited_for_as_long_as_brokers_let_one_last() {
        let now = Timestamp::from_millis(1_790_000_000_000);
        assert!(may_be_open(Some(now.before(OPEN / 2)), now));
        assert!(may_be_open(Some(now.after(OPEN / 2)), now));
        for written in [Some(now.before(OPEN)), Some(now.after(OPEN)), None] {
            assert!(!may_be_open(written, now), "{written:?}");
        }
    }

    #[test]
    fn only_an_answer_of_the_partition_ends_its_absence() {
        let (mut away, begun) = (Away::new(PATIENCE), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let (passing, refused) = (Unread::new(true), Unread::new(false));
        assert!(away.may_wait(("orders", 3), Some(&passing), at(0)));
        assert!(!away.may_wait(("orders", 0), None, at(1)));
        assert!(!away.may_wait(("bills", 3), Some(&refused), at(1)));
        assert!(away.may_wait(("orders", 3), Some(&passing), at(59)));
        assert!(
            !away.may_wait(("orders", 3), Some(&passing), at(60)),
            "it is waited for since then"
        );
        assert!(!away.may_wait(("orders", 3), Some(&passing), at(120)), "it is the same absence");
        assert!(!away.may_wait(("orders", 3), None, at(121)));
        assert!(away.since.is_empty());
        assert!(away.may_wait(("orders", 3), Some(&passing), at(122)));
    }

    #[test]
    fn an_absence_that_nobody_has_seen_for_long_is_not_counted_into_the_next() {
        let (mut away, begun) = (Away::new(PATIENCE), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let passing = Unread::new(true);
        let mut may_wait = |seconds| away.may_wait(("orders", 3), Some(&passing), at(seconds));
        assert!(may_wait(0));
        assert!(!may_wait(60));
        assert!(!may_wait(120));
        assert!(may_wait(4 * 86_400), "it is another one");
        assert!(may_wait(4 * 86_400 + 59));
        assert!(!may_wait(4 * 86_400 + 60));
    }

    #[test]
    fn what_is_asked_for_seldom_is_not_waited_for_without_end() {
        let (mut away, begun) = (Away::new(PATIENCE), Instant::now());
        let passing = Unread::new(true);
        assert!(away.may_wait(("orders", 3), Some(&passing), begun));
        assert!(!away.may_wait(("orders", 3), Some(&passing), begun + PATIENCE * 10));
    }
}
