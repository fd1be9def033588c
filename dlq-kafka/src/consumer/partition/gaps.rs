//! Parts of a partition in which no record has come.

use super::{Opening, Partition, State};

/// A part of a partition in which no record has come: it was taken back, compacted, or deleted before it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: u64,
    /// The offset after the last.
    pub(crate) to: u64,
    /// The number of these that an owner before has done.
    done: u64,
}

impl Gap {
    /// Returns the number of its offsets that were deleted and that nobody has done, if the partition begins at `low` now.
    pub(crate) fn lost(&self, low: u64) -> u64 {
        self.to.min(low).saturating_sub(self.from).saturating_sub(self.done)
    }
}

impl Partition {
    /// Returns the offset up to which every received record is done, if all of them are.
    pub(crate) fn rests_at(&self) -> Option<u64> {
        let state = self.state();
        let rests = state.opening == Opening::Open && state.tracker.span() == 0;
        rests.then(|| state.position()).flatten()
    }

    /// The client has come to `to`, and has handed out nothing from `from` on, where it rests. That is believed once it is
    /// said twice: the client keeps the position of the assignment before for a moment.
    pub(crate) fn passes(&self, from: u64, to: u64) {
        let rests_here = self.rests_at() == Some(from);
        let mut state = self.state();
        let ahead = (rests_here && from < to).then_some((from, to));
        let before = std::mem::replace(&mut state.ahead, ahead);
        if ahead.is_none() || ahead != before {
            return;
        }
        // The client steps over deleted records as well, so this part is looked at like any other gap.
        state.passes_over(from, to);
        state.tracker.passes(to);
        state.has_ended |= state.handover.reached(to);
        state.is_dirty = true;
        self.measure(&state);
    }

    /// The longest gap that was not looked at yet.
    pub(crate) fn gap(&self) -> Option<Gap> {
        self.state().gap
    }

    /// The commit that was found, until it is known whether what stood after it was deleted.
    pub(crate) fn unasked(&self) -> Option<u64> {
        let state = self.state();
        state.unasked.filter(|_| state.opening == Opening::Open)
    }

    /// The partition begins at `low` now: returns what was deleted after the commit that was found. Where nothing has come
    /// since, the commit goes on to there.
    pub(crate) fn deleted(&self, low: u64) -> Option<Gap> {
        let mut state = self.state();
        let start = state.unasked.take()?;
        if low <= start {
            return None;
        }
        let gap = Gap { from: start, to: low, done: state.handover.done_within(start, low) };
        // The answer covers that gap. It would be counted twice if both told it.
        state.gap.take_if(|gap| gap.from < low);
        state.low = state.low.max(low);
        // Nothing was received, so no record below `low` is in flight and the position may pass them all.
        if state.tracker.next().is_none() {
            state.tracker.passes(low);
            state.has_ended |= state.handover.reached(low);
            state.is_dirty = true;
            self.measure(&state);
        }
        Some(gap)
    }

    /// The gap was looked at; the partition begins at `low` now.
    pub(crate) fn looked_at(&self, gap: Gap, low: u64) {
        let mut state = self.state();
        state.gap.take_if(|known| *known == gap);
        state.low = state.low.max(low);
    }
}

impl State {
    pub(super) fn passes_over(&mut self, from: u64, to: u64) {
        // What stands below `low` was told already.
        let from = from.max(self.low);
        if from >= to {
            return;
        }
        let gap = Gap { from, to, done: self.handover.done_within(from, to) };
        if self.gap.is_none_or(|known| known.to - known.from < to - from) {
            self.gap = Some(gap);
        }
    }
}
