//! Metadata of commits, by which one owner of a partition informs the next: whether it left in good order, how often
//! owners have died, which records were running alone when they did (G3), up to where it had handed out records, and
//! which of them are done although one before them is not.
//!
//! | what happened | what is committed |
//! |---|---|
//! | a partition was assigned | `open` and who we are, before its first record is handed out |
//! | records were handed out | `open` still, and how far; where an owner has died, that is committed before they are |
//! | a record that is a suspect is about to run | `open`, a mark of its offset with how often it was marked, and that it runs |
//! | records are done | `open` still, the new position, the marks of what is not done, the ranges that are done above it |
//! | the partition is given up, or the process stops | `clean`, and the ranges |
//!
//! Who finds `open` takes over from an owner that died, unless that is itself: it lost the partition, as all do when the
//! servers restart, and nobody died. Among the records that were handed out and are not done there may be one
//! that killed it: they count as handed out once more. In a partition whose owners died twice in a row without getting
//! through, they are suspects. A commit may be older than what was handed out last. So the next owner is careful for a
//! while: it has few records in flight, and commits how far it goes before it hands out a record, so that the next death
//! says exactly which records it may have been. What runs while its partition goes in good order, or is lost and comes back, is not blamed.
//!
//! The ranges are those of [`Done`]; their records are passed over when they come. A process that dies before it has committed
//! them runs these records again, and so does one that had no room for all of them: the lowest are kept.
//!
//! Each part stands for itself, and what a version does not know it leaves out. An owner of an older version runs again what
//! is done above the position, and suspects up to a thousand offsets; one that takes over from it does so too.

use std::collections::{BTreeMap, BTreeSet};

use crate::consumer::done::Done;

/// Distance beyond the records known to have been handed out within which one may have killed its owner.
pub(crate) const REACH: u64 = 1_000;

/// Number of bytes of metadata that are written. Brokers take 4,096 unless told otherwise.
pub(crate) const ROOM: usize = 4_000;

/// The most marks that are kept. The broker takes 4 KiB of metadata.
const MARKS: usize = 60;

const VERSION: &str = "dlq1";

/// Knowledge about the owners of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handover {
    /// Number of the owner, unique for each source.
    owner: u64,
    /// Number of owners that died in a row without getting past [`careful`](Self::careful).
    deaths: u32,
    /// The offset at which suspicion ends: none from there on was handed out to an owner that died, as far as is known.
    until: u64,
    /// The offset up to which it is committed how far records are handed out before they are.
    careful: u64,
    /// The owner that died did not say how far it had handed out records: owners of older versions do not.
    is_vague: bool,
    /// The offset from which on this owner has handed out no record, and hands out none before that is committed where
    /// owners have died.
    handed: u64,
    /// Ranges that owners before have done above the position.
    done: Done,
    /// Runs that began alone and have not ended, by offset: how many.
    marks: BTreeMap<u64, u32>,
    /// Suspects that run now.
    running: BTreeSet<u64>,
}

impl Handover {
    /// Returns the knowledge of the first owner.
    pub(crate) fn of(owner: u64) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Returns the knowledge of an owner that found `metadata` with the commit of `position`.
    pub(crate) fn take_over(owner: u64, metadata: &str, position: u64) -> Self {
        // Metadata of another client or of nobody says nothing of a death, so nothing is suspected.
        let Some(Before { mut handover, is_clean, handed }) = Self::read(metadata, position) else {
            return Self { handed: position, ..Self::of(owner) };
        };
        let before = std::mem::replace(&mut handover.owner, owner);
        // An older version writes no `careful`. Without this line `reached` would end the suspicion before `until`.
        handover.careful = handover.careful.max(handover.until);
        // A tool may have moved the position and kept the metadata, so marks before the position are dropped here.
        handover.reached(position);
        let running = std::mem::take(&mut handover.running);
        if !is_clean && before != owner {
            handover.deaths = handover.deaths.saturating_add(1);
            handover.is_vague = handed.is_none();
            // An owner that does not say how far it came may have handed out records up to `REACH` beyond the position.
            let handed = handed.unwrap_or_else(|| position.saturating_add(REACH));
            // One count serves all deaths in a row: a record below the farthest bound counts as handed out to each dead owner.
            handover.until = handover.until.max(handed);
            let known = if handover.is_vague { position } else { position.max(handed) };
            // The last commit may be older than the last record that went out, so care reaches `REACH` beyond what is known.
            let careful = known.saturating_add(REACH).max(handover.until);
            handover.careful = handover.careful.max(careful);
        } else {
            // An orderly owner has let the run go, and an own one still has it. Neither died of it, so its mark is taken back.
            running.into_iter().for_each(|offset| handover.retract(offset));
        }
        // Records before `until` count as handed out already. Only those after it wait for the commit that says so.
        handover.handed = position.max(handover.until);
        handover
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Everything before `position` is done. Whether there were marks of it.
    pub(crate) fn reached(&mut self, position: u64) -> bool {
        // Whatever runs has a mark, so a look at the first mark tells whether either set changes.
        let has_marks = self.marks.first_key_value().is_some_and(|(offset, _)| *offset < position);
        if has_marks {
            self.marks = self.marks.split_off(&position);
            self.running = self.running.split_off(&position);
        }
        // The partition got past everything that the dead owners may have had. The next death begins a new count.
        if position >= self.careful {
            (self.deaths, self.until, self.careful, self.is_vague) = (0, 0, 0, false);
        }
        self.done.reached(position);
        has_marks
    }

    /// This record came early enough to have killed the owner before.
    pub(crate) fn reaches(&mut self, offset: u64) {
        if self.deaths == 0 {
            return;
        }
        let after = offset.saturating_add(1);
        self.careful = self.careful.max(after);
        // An owner that did not say how far it came may have had any of the early records, so each of them becomes a suspect.
        if self.is_vague {
            self.until = self.until.max(after);
            self.handed = self.handed.max(after);
        }
    }

    /// Records before this offset were handed out, or are about to be.
    pub(crate) fn hands_out(&mut self, before: u64) {
        self.handed = self.handed.max(before);
    }

    /// The offset from which on no record may be handed out before that is committed; `None` where none has to wait.
    pub(crate) fn handed(&self) -> Option<u64> {
        (self.deaths > 0).then_some(self.handed)
    }

    /// Returns true if an owner before has done this record.
    pub(crate) fn is_done(&self, offset: u64) -> bool {
        self.done.contains(offset)
    }

    /// Returns the number of offsets in this part that an owner before has done.
    pub(crate) fn done_within(&self, from: u64, to: u64) -> u64 {
        self.done.within(from, to)
    }

    /// The log is not the one whose records were done.
    pub(crate) fn forgets_done(&mut self) {
        self.done.clear();
    }

    /// Returns the number of times that a record was handed out to owners that died.
    pub(crate) fn deaths_of(&self, offset: u64) -> u32 {
        if offset < self.until { self.deaths } else { 0 }
    }

    /// Returns the offset up to which records may be in flight while it is unknown which of them kills.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.deaths > 0).then_some(REACH)
    }

    /// A run of this record begins. How many began before and did not end.
    pub(crate) fn begin(&mut self, offset: u64) -> u32 {
        // A mark that is dropped forgets the crashes of one record.
        // Metadata beyond the limit of the brokers would fail every commit.
        if self.marks.len() >= MARKS && !self.marks.contains_key(&offset) {
            // The lowest count says least.
            let least =
                self.marks.iter().min_by_key(|(_, times)| **times).map(|(offset, _)| *offset);
            if let Some(least) = least {
                self.marks.remove(&least);
                self.running.remove(&least);
            }
        }
        self.running.insert(offset);
        let times = self.marks.entry(offset).or_insert(0);
        let before = *times;
        *times = before.saturating_add(1);
        before
    }

    /// The run did not begin after all.
    pub(crate) fn retract(&mut self, offset: u64) {
        self.running.remove(&offset);
        if let Some(times) = self.marks.get_mut(&offset) {
            // Only the run that did not begin is taken back. The crashes of earlier owners stay counted.
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.marks.remove(&offset);
            }
        }
    }

    /// The run of this record has ended, and leaves at most so many marks. What did not run keeps its own: `false`.
    pub(crate) fn end(&mut self, offset: u64, left: u32) -> bool {
        // A run that is not known here is over, or was never begun. The marks of its record are then of earlier owners, and
        // stay.
        if !self.running.remove(&offset) {
            return false;
        }
        if left == 0 {
            self.marks.remove(&offset);
        } else if let Some(times) = self.marks.get_mut(&offset) {
            // To end a run only takes marks off; it never adds any.
            *times = left.min(*times);
        }
        true
    }

    /// The metadata of a commit of `position`, above which this owner has done these ranges, in so many bytes.
    pub(crate) fn write(
        &self,
        is_clean: bool,
        position: u64,
        ranges: Vec<(u64, u64)>,
        room: usize,
    ) -> String {
        const DONE: &str = ";done=";
        let mut text = match is_clean {
            // The next owner of a clean partition asks neither who left it nor how far that owner had come.
            true => format!("{VERSION};clean"),
            false => format!("{VERSION};open;by={:x};handed={}", self.owner, self.handed),
        };
        // A clean end keeps the deaths before it: an orderly stop does not show which record killed.
        if self.deaths > 0 {
            text.push_str(&format!(
                ";deaths={};until={};careful={}",
                self.deaths, self.until, self.careful
            ));
        }
        if !self.marks.is_empty() {
            let marks: Vec<_> =
                self.marks.iter().map(|(at, times)| format!("{at}:{times}")).collect();
            text.push_str(&format!(";marks={}", marks.join(",")));
        }
        if !self.running.is_empty() {
            let running: Vec<_> = self.running.iter().map(u64::to_string).collect();
            text.push_str(&format!(";running={}", running.join(",")));
        }
        // Deaths and marks come first. A record without its range only runs twice, a killer without its mark kills again.
        let room = room.saturating_sub(text.len() + DONE.len());
        if let Some(done) = self.done.with(ranges).write(position, room) {
            text.push_str(DONE);
            text.push_str(&done);
        }
        text
    }

    /// Reads what [`write`](Self::write) wrote of `position`; `None` for what another client or nobody has.
    fn read(metadata: &str, position: u64) -> Option<Before> {
        let mut parts = metadata.split(';');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let is_clean = match parts.next()? {
            "clean" => true,
            "open" => false,
            _ => return None,
        };
        let (mut handover, mut handed) = (Self::default(), None);
        for part in parts {
            // A part that cannot be read voids all of them: the partition is opened as if nobody had owned it, and
            // nobody is blamed.
            match part.split_once('=')? {
                ("by", owner) => handover.owner = u64::from_str_radix(owner, 16).ok()?,
                ("deaths", deaths) => handover.deaths = deaths.parse().ok()?,
                ("until", until) => handover.until = until.parse().ok()?,
                ("careful", careful) => handover.careful = careful.parse().ok()?,
                ("handed", before) => handed = Some(before.parse().ok()?),
                ("done", done) => handover.done = Done::read(done, position),
                ("marks", marks) => {
                    for mark in marks.split(',') {
                        let (offset, times) = mark.split_once(':')?;
                        handover.marks.insert(offset.parse().ok()?, times.parse().ok()?);
                    }
                }
                ("running", running) => {
                    for offset in running.split(',') {
                        handover.running.insert(offset.parse().ok()?);
                    }
                }
                // Another version may say more.
                _ => {}
            }
        }
        Some(Before { handover, is_clean, handed })
    }
}

/// The state that the owner before has left.
struct Before {
    handover: Handover,
    is_clean: bool,
    /// The offset up to which it had handed out records, if it said so.
    handed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(handover: &Handover, is_clean: bool, position: u64) -> String {
        handover.write(is_clean, position, Vec::new(), ROOM)
    }

    /// The owner that finds what `handover` wrote.
    fn next_owner(handover: &Handover, is_clean: bool, position: u64) -> Handover {
        let metadata = write(handover, is_clean, position);
        Handover::take_over(handover.owner + 1, &metadata, position)
    }

    #[test]
    fn g3_deaths_in_a_row_make_suspects_and_progress_clears_them() {
        let mut first = Handover::take_over(1, "", 500);
        assert_eq!((first.deaths_of(500), first.limit(), first.handed()), (0, None, None));
        first.hands_out(520);
        let mut second = next_owner(&first, false, 500);
        assert_eq!([519, 520].map(|offset| second.deaths_of(offset)), [1, 0]);
        assert_eq!((second.limit(), second.handed()), (Some(REACH), Some(520)));
        second.hands_out(710);
        let mut third = next_owner(&second, false, 700);
        assert_eq!([709, 710].map(|offset| third.deaths_of(offset)), [2, 0]);
        third.reached(710 + REACH - 1);
        assert!(third.handed().is_some(), "what killed may have been handed out and not told");
        third.reached(710 + REACH);
        assert_eq!((third.limit(), third.handed()), (None, None));
    }

    #[test]
    fn g4_two_deaths_make_no_suspects_of_what_was_not_handed_out() {
        let mut first = Handover::take_over(1, "", 0);
        first.hands_out(20);
        let mut second = next_owner(&first, false, 0);
        second.hands_out(20);
        let third = next_owner(&second, false, 0);
        let suspects = (0..2_000).filter(|offset| third.deaths_of(*offset) >= 2).count();
        assert_eq!(suspects, 20);
    }

    #[test]
    fn g3_a_record_that_kills_before_it_is_told_is_told_by_the_next_owner() {
        // It died of the record at 500 before anything was committed.
        let first = Handover::take_over(1, "", 500);
        let mut second = next_owner(&first, false, 500);
        assert_eq!(
            (second.deaths_of(500), second.handed()),
            (0, Some(500)),
            "it has to tell first"
        );
        second.hands_out(501);
        assert_eq!(next_owner(&second, false, 500).deaths_of(500), 2);
    }

    #[test]
    fn g3_an_owner_of_an_older_version_may_have_handed_out_a_thousand() {
        let next = Handover::take_over(2, "dlq1;open;by=1;deaths=1;until=700", 500);
        assert_eq!([500 + REACH - 1, 500 + REACH].map(|offset| next.deaths_of(offset)), [2, 0]);
        let clean = Handover::take_over(2, "dlq1;clean;deaths=1;until=700", 500);
        assert_eq!([699, 700].map(|offset| clean.deaths_of(offset)), [1, 0]);
        assert_eq!(clean.handed(), Some(700), "what it hands out beyond is told first");
    }

    #[test]
    fn g1_what_is_done_above_the_position_is_known_to_every_later_owner() {
        let first = Handover::take_over(1, "", 100);
        let metadata = first.write(true, 100, vec![(101, 601)], ROOM);
        assert_eq!(metadata, "dlq1;clean;done=100:B0P");
        let second = Handover::take_over(2, &metadata, 100);
        assert_eq!([100, 101, 600, 601].map(|at| second.is_done(at)), [false, true, true, false]);
        // It has received nothing of it, and dies.
        let mut third = next_owner(&second, false, 100);
        assert!(third.is_done(600) && !third.is_done(100));
        let metadata = third.write(false, 100, vec![(601, 605)], ROOM);
        let fourth = Handover::take_over(4, &metadata, 100);
        assert_eq!([604, 605].map(|at| fourth.is_done(at)), [true, false]);
        assert!(!Handover::take_over(5, &metadata, 99).is_done(101), "it is of another commit");
        third.reached(200);
        assert_eq!([199, 200].map(|at| third.is_done(at)), [false, true]);
        third.forgets_done();
        assert!(!third.is_done(200));
    }

    #[test]
    fn what_is_done_and_has_no_room_runs_again() {
        let first = Handover::take_over(1, "", 0);
        let every_other: Vec<_> = (0..3_000).map(|n| (2 * n + 1, 2 * n + 2)).collect();
        let metadata = first.write(true, 0, every_other.clone(), ROOM);
        assert!(metadata.len() <= ROOM, "{}", metadata.len());
        let second = Handover::take_over(2, &metadata, 0);
        let known = every_other.iter().take_while(|(offset, _)| second.is_done(*offset)).count();
        assert!(known > 1_900, "{known}");
        assert!(every_other[known..].iter().all(|(offset, _)| !second.is_done(*offset)));
        assert_eq!(first.write(true, 0, every_other, 5), "dlq1;clean");
    }

    #[test]
    fn an_owner_that_left_in_good_order_is_not_suspected() {
        let mut first = next_owner(&Handover::default(), false, 10);
        first.hands_out(11);
        let first = next_owner(&first, false, 10);
        let second = next_owner(&first, true, 10);
        assert_eq!(second.deaths_of(10), 2, "what was known stays known");
        assert_eq!(next_owner(&second, true, 10).deaths_of(10), 2);
    }

    #[test]
    fn an_owner_that_finds_its_own_word_has_not_died() {
        let mut owner = Handover::of(7);
        owner.hands_out(13);
        let mut owner = next_owner(&owner, false, 10);
        owner.begin(12);
        let again = Handover::take_over(owner.owner, &write(&owner, false, 10), 10);
        owner.end(12, 0);
        assert_eq!(again, owner, "it knows what it knew, and the run goes on");
        assert_eq!(next_owner(&again, false, 10).deaths_of(10), 2);
    }

    #[test]
    fn g3_a_run_whose_partition_went_in_good_order_is_not_blamed() {
        let mut owner = next_owner(&Handover::default(), false, 10);
        owner.begin(12);
        let mut owner = next_owner(&owner, false, 10);
        assert_eq!(owner.begin(12), 1, "its owner has died");
        assert_eq!(next_owner(&owner, true, 10).begin(12), 1, "its owner has not died once more");
        assert_eq!(next_owner(&owner, false, 10).begin(12), 2);
    }

    #[test]
    fn g3_who_is_given_back_without_a_run_is_known_still() {
        let mut owner = next_owner(&Handover::default(), false, 10);
        owner.begin(12);
        let mut owner = next_owner(&owner, false, 10);
        owner.end(12, 0);
        assert_eq!(owner.begin(12), 1);
        owner.retract(12);
        owner.end(12, 0);
        assert_eq!(owner.begin(12), 1, "the mark could not be written");
    }

    #[test]
    fn g3_a_run_that_never_ended_is_counted() {
        let mut owner = next_owner(&Handover::default(), false, 10);
        assert_eq!(owner.begin(12), 0);
        owner.end(12, 0);
        assert_eq!(owner.begin(13), 0);
        let mut owner = next_owner(&owner, false, 12);
        assert_eq!((owner.begin(12), owner.begin(13)), (0, 1));
        owner.end(12, 0);
        let mut owner = next_owner(&owner, false, 12);
        assert_eq!(owner.begin(13), 2);
        owner.reached(14);
        assert_eq!(owner.marks.len(), 0, "what is done needs no mark");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut owner = next_owner(&Handover::default(), false, 0);
        owner.begin(u64::MAX - 1);
        owner.begin(u64::MAX - 1);
        for offset in 0..500 {
            owner.begin(u64::MAX - 1_000 + offset);
        }
        let every_third = (0..2_000).map(|n| (3 * n + 1, 3 * n + 2)).collect();
        let metadata = owner.write(false, 0, every_third, ROOM);
        assert!(metadata.len() <= ROOM, "{}", metadata.len());
        assert!(metadata.contains("done=0:"), "marks leave room");
        assert_eq!(owner.begin(u64::MAX - 1), 2, "the one that killed more often is not forgotten");
    }

    #[test]
    fn what_others_wrote_says_nothing() {
        for metadata in
            ["", "x", "dlq1", "dlq1;odd", "dlq1;open;deaths", "dlq1;open;deaths=x", "\u{0}"]
        {
            let nothing = Handover { handed: 5, ..Handover::of(1) };
            assert_eq!(Handover::take_over(1, metadata, 5), nothing, "{metadata:?}");
        }
        assert!(!Handover::take_over(1, "dlq1;clean;done=5:!", 5).is_done(6));
        assert!(!Handover::take_over(1, "dlq2;clean;done=5:BB", 5).is_done(6));
        assert_eq!(Handover::take_over(1, "dlq1;open;later=1", 5).deaths_of(5), 1);
    }
}
