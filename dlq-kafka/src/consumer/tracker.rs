//! Tracker of finished records of a partition, and of the offset that may be committed.
//!
//! Kafka keeps one number for a partition, and work ends out of order. Only offsets that were received are tracked, since
//! a partition has gaps (markers of transactions, compaction). The position to commit is the lowest offset that is not
//! done; when all are, the highest that was received and done, plus one. It never goes back, unless the log does: a topic that was made anew begins at 0.

use std::collections::VecDeque;

use crate::consumer::done::RANGES;

/// The number by which a received record is found again: it counts what was received.
pub(crate) type Sequence = u64;

/// The records of one assignment of one partition.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// The sequence of the first entry.
    first: Sequence,
    /// From the lowest offset that is not done.
    entries: VecDeque<Entry>,
    /// After the highest offset of those that are gone from the front.
    position: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: u64,
    is_done: bool,
}

impl Tracker {
    /// A record was received. Offsets come in ascending order, as long as the log is the same.
    pub(crate) fn receive(&mut self, offset: u64) -> Sequence {
        self.entries.push_back(Entry { offset, is_done: false });
        self.first + self.entries.len() as u64 - 1
    }

    /// A record is done. Saying so twice is fine.
    pub(crate) fn done(&mut self, sequence: Sequence) {
        let index = sequence.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        // A sequence below `first` has left the front, so it is done already.
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) else { return };
        entry.is_done = true;
        while let Some(entry) = self.entries.front().filter(|entry| entry.is_done).copied() {
            self.entries.pop_front();
            self.first += 1;
            self.position = Some(entry.offset + 1);
        }
    }

    /// Everything is done, and no record stands before `position`.
    pub(crate) fn passes(&mut self, position: u64) {
        // With a record in flight the position may not jump over it, whatever the client says (G1).
        if self.entries.is_empty() {
            self.position = Some(position);
        }
    }

    /// Returns the offset that may be committed; `None` while nothing was received.
    pub(crate) fn position(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.offset).or(self.position)
    }

    /// The ranges that are done above the lowest offset that is not, ascending, without the last of each. Offsets between
    /// two that are done were never received: no record stands there. None where the log has begun anew meanwhile.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let (mut before, mut is_open) = (None, false);
        for Entry { offset, is_done } in &self.entries {
            // An offset stands for two records where the log has begun anew, and the ranges could not say which is done.
            if before.is_some_and(|before| before >= *offset) {
                return Vec::new();
            }
            before = Some(*offset);
            match ranges.last_mut() {
                Some(last) if is_open && *is_done => last.1 = offset + 1,
                _ if *is_done => {
                    // A range that is left out makes its records run twice after a death, so the list may be cut.
                    if ranges.len() >= RANGES {
                        break;
                    }
                    ranges.push((*offset, offset + 1));
                }
                _ => {}
            }
            is_open = *is_done;
        }
        ranges
    }

    /// After the highest offset that was received; `None` while none was.
    pub(crate) fn next(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.offset + 1).or(self.position)
    }

    /// The highest offset that was received and is tracked.
    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.offset)
    }

    /// From the lowest offset that is not done to the highest that was received: what comes again after a crash.
    pub(crate) fn span(&self) -> u64 {
        match (self.entries.front(), self.entries.back()) {
            // Where the log has begun anew the last offset may be the lower one.
            (Some(first), Some(last)) => last.offset.saturating_sub(first.offset) + 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::consumer::done::Done;

    #[test]
    fn the_lowest_that_is_not_done_is_committed() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.position(), None);
        let sequences = [10, 11, 15].map(|offset| tracker.receive(offset));
        assert_eq!((tracker.position(), tracker.span()), (Some(10), 6));
        tracker.done(sequences[1]);
        assert_eq!((tracker.position(), tracker.ranges()), (Some(10), vec![(11, 12)]));
        tracker.done(sequences[2]);
        assert_eq!(tracker.ranges(), [(11, 16)], "nothing stands between them");
        let mut tracker = Tracker::default();
        let sequences = [10, 11, 15].map(|offset| tracker.receive(offset));
        tracker.done(sequences[1]);
        tracker.done(sequences[0]);
        assert_eq!(tracker.position(), Some(15), "what was never received is no gap");
        tracker.done(sequences[2]);
        tracker.done(sequences[2]);
        assert_eq!((tracker.position(), tracker.span(), tracker.last()), (Some(16), 0, None));
        tracker.passes(18);
        assert_eq!((tracker.position(), tracker.next()), (Some(18), Some(18)));
        tracker.receive(20);
        tracker.passes(30);
        assert_eq!(tracker.position(), Some(20), "it is not done");
    }

    #[test]
    fn a_log_that_begins_anew_is_followed() {
        let mut tracker = Tracker::default();
        let sequences = [100, 0, 1].map(|offset| tracker.receive(offset));
        assert!(tracker.span() <= 2, "{}", tracker.span());
        tracker.done(sequences[0]);
        assert_eq!(tracker.position(), Some(0));
        tracker.done(sequences[2]);
        assert_eq!(tracker.ranges(), [(1, 2)]);
        tracker.done(sequences[1]);
        assert_eq!((tracker.position(), tracker.span()), (Some(2), 0));
        let mut tracker = Tracker::default();
        let sequences = [100, 101, 0].map(|offset| tracker.receive(offset));
        tracker.done(sequences[1]);
        assert_eq!(tracker.ranges(), [], "which log it is of cannot be told");
    }

    proptest! {
        /// In whatever order records end: never above one that is not done, never back, and at the end past all.
        #[test]
        fn g1_no_order_of_ends_commits_what_is_not_done(
            gaps in prop::collection::vec(1_u64..4, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let mut tracker = Tracker::default();
            let (mut open, mut ended) = (BTreeMap::new(), Vec::new());
            let (mut offset, mut committed) = (0, 0);
            let mut gaps = gaps.into_iter();
            for index in order {
                // Receives and ends are mixed.
                if index.index(3) == 0 || open.is_empty() {
                    let Some(gap) = gaps.next() else { continue };
                    offset += gap;
                    open.insert(offset, tracker.receive(offset));
                } else {
                    let keys: Vec<u64> = open.keys().copied().collect();
                    let key = keys[index.index(keys.len())];
                    tracker.done(open.remove(&key).unwrap());
                    ended.push(key);
                }
                let position = tracker.position().unwrap();
                prop_assert!(open.keys().all(|open| position <= *open));
                let ranges = Done::default().with(tracker.ranges());
                prop_assert!(open.keys().all(|open| !ranges.contains(*open)));
                prop_assert!(ended.iter().all(|at| *at < position || ranges.contains(*at)));
                prop_assert!(position >= committed);
                committed = position;
            }
            for sequence in open.into_values() {
                tracker.done(sequence);
            }
            if offset > 0 {
                prop_assert_eq!(tracker.position(), Some(offset + 1));
            }
        }
    }
}
