//! Commits of a partition, and the records that wait until one is done.

use std::sync::atomic::Ordering;

use super::{Opening, Partition, State};
use crate::consumer::handover::ROOM;

/// Number of records that may be handed out after one commit that says so. The next owner takes all of them for suspects.
const AT_ONCE: usize = 16;

impl Partition {
    /// Returns true if a record may be handed out; if not, it may once [`Self::committed`] was heard.
    pub(crate) fn admits(&self, offset: u64) -> bool {
        if self.is_free(offset) {
            return true;
        }
        let mut state = self.state();
        // `committed` may have raised the bound meanwhile. An entry below the bound would stand first and hide those that wait.
        if self.is_free(offset) {
            return true;
        }
        state.awaiting.insert(offset);
        false
    }

    /// Returns true if nothing is to be committed before a record is handed out.
    pub(crate) fn is_free(&self, offset: u64) -> bool {
        offset < self.free.load(Ordering::Acquire)
    }

    /// Returns true if a record waits for a commit.
    pub(crate) fn awaits(&self) -> bool {
        self.state().awaiting.first().is_some_and(|first| !self.is_free(*first))
    }

    /// Notes that what [`Self::news`] has said was committed.
    pub(crate) fn committed(&self) {
        let mut state = self.state();
        // `not_committed` has cleared it, so only what the brokers have confirmed lets records out.
        let Some(before) = state.granting.take() else { return };
        let rest = state.awaiting.split_off(&before);
        let granted = std::mem::replace(&mut state.awaiting, rest);
        // They stay here until they are handed out. So no more than `AT_ONCE` are announced and not yet in flight.
        state.granted.extend(granted);
        self.free.fetch_max(before, Ordering::Release);
    }

    /// The brokers take no metadata that is so long: the next is at most half as long, if it can be. Ranges that are done
    /// are left out, and run again.
    pub(crate) fn shortens(&self) {
        let mut state = self.state();
        // The limit of the brokers is not known here, so the room is halved until they take a commit.
        state.cut = ROOM - (ROOM - state.cut) / 2;
    }

    /// Returns the commit to make if marks were removed. The group then counts as informed, until [`Self::not_told`]
    /// says otherwise.
    pub(crate) fn ended(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        if state.is_over || !std::mem::take(&mut state.has_ended) {
            return None;
        }
        // A commit replaces the metadata of the one before, so each has to say how far records went out (G3).
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        state.point(false)
    }

    pub(crate) fn not_told(&self) {
        self.state().has_ended = true;
    }

    pub(crate) fn has_news(&self) -> bool {
        let state = self.state();
        state.is_dirty || state.told < self.handed.load(Ordering::Relaxed) || self.grants(&state)
    }

    /// Returns true if a record waits for a commit, and few are not handed out of those that have waited.
    fn grants(&self, state: &State) -> bool {
        let is_waiting = state.awaiting.first().is_some_and(|first| !self.is_free(*first));
        is_waiting && state.granted.len() < AT_ONCE
    }

    /// Returns the commit to make if there is news. It then counts as committed, until [`Self::not_committed`] says
    /// otherwise.
    pub(crate) fn news(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        // Commits go one at a time. What the one before was to grant is granted by now, or was refused.
        state.granting = None;
        if state.is_over {
            return None;
        }
        let handed = self.handed.load(Ordering::Relaxed);
        let has_handed = std::mem::replace(&mut state.told, handed) < handed;
        let is_dirty = std::mem::take(&mut state.is_dirty);
        // An owner has died here. These records are announced by this commit and go out when it is confirmed (G3).
        if self.grants(&state) {
            let room = AT_ONCE - state.granted.len();
            // The lowest offsets go first: they hold up the position of the commit.
            let last = state.awaiting.iter().take(room).next_back();
            let granting = last.map(|last| last.saturating_add(1));
            state.handover.hands_out(granting.unwrap_or(0));
            state.granting = granting;
        } else if !is_dirty && !has_handed {
            return None;
        }
        state.handover.hands_out(handed);
        state.point(false)
    }

    /// Returns the current commit; `None` while no offset is known, and after the partition was given up.
    pub(crate) fn point(&self, is_clean: bool) -> Option<(u64, String)> {
        let mut state = self.state();
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        if state.is_over { None } else { state.point(is_clean) }
    }

    pub(crate) fn not_committed(&self) {
        let mut state = self.state();
        (state.is_dirty, state.granting) = (true, None);
    }

    /// Closes the partition and returns the last commit of the assignment. Records that end from now on do not count
    /// any more.
    pub(crate) fn close(&self, is_clean: bool) -> Option<(u64, String)> {
        self.leave();
        let mut state = self.state();
        // Nothing goes out of a partition before it is open, so the word of the owner before stays as it is.
        if std::mem::replace(&mut state.is_over, true) || state.opening != Opening::Open {
            return None;
        }
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        state.point(is_clean)
    }
}

impl State {
    fn point(&self, is_clean: bool) -> Option<(u64, String)> {
        let position = self.position()?;
        let ranges = self.tracker.ranges();
        Some((position, self.handover.write(is_clean, position, ranges, ROOM - self.cut)))
    }
}
