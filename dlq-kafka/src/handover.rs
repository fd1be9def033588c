//! What one owner of a partition tells the next, in the metadata of its commits: whether it left in good order, how
//! often owners have died, and which records were running alone when they did (G3).
//!
//! | what happened | what is committed |
//! |---|---|
//! | a partition was assigned | `open` and who we are, before its first record is handed out |
//! | a record that is a suspect is about to run | `open`, a mark of its offset with how often it was marked, and that it runs |
//! | records are done | `open` still, the new position, the marks of what is not done |
//! | the partition is given up, or the process stops | `clean` |
//!
//! With each goes the id of the topic, where that is known: offsets mean nothing in another topic of the same name.
//!
//! Who finds `open` takes over from an owner that died, unless that is itself: it lost the partition, as all do when the
//! servers restart, and nobody died. Among the records from the committed offset on there may be one
//! that killed it: they count as handed out once more, and until they are done few are in flight, so that the next
//! death says more. What runs while its partition goes in good order, or is lost and comes back, is not blamed. In a partition whose owners died twice in a row without getting through, records are suspects.

use std::collections::{BTreeMap, BTreeSet};

/// How far beyond the committed offset a record may have been that killed its owner.
pub(crate) const REACH: u64 = 1_000;

/// The most marks that are kept. The broker takes 4 KiB of metadata.
const MARKS: usize = 60;

const VERSION: &str = "dlq1";

/// What is known of the owners of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handover {
    /// Who has the partition: another number for each source.
    owner: u64,
    /// How many owners died in a row without getting past [`until`](Self::until).
    deaths: u32,
    /// The offset at which suspicion ends.
    until: u64,
    /// Runs that began alone and have not ended, by offset: how many.
    marks: BTreeMap<u64, u32>,
    /// Those of them that run now.
    running: BTreeSet<u64>,
    /// The id of the topic that the offsets are of, once it is known.
    topic: Option<String>,
}

impl Handover {
    /// What the first owner knows.
    pub(crate) fn of(owner: u64) -> Self {
        Self { owner, ..Self::default() }
    }

    /// What this owner knows, that found `metadata` with the commit of `position`.
    pub(crate) fn take_over(owner: u64, metadata: &str, position: u64) -> Self {
        let Some((mut handover, is_clean)) = Self::read(metadata) else { return Self::of(owner) };
        let before = std::mem::replace(&mut handover.owner, owner);
        handover.reached(position);
        let running = std::mem::take(&mut handover.running);
        if !is_clean && before != owner {
            handover.deaths = handover.deaths.saturating_add(1);
            handover.until = handover.until.max(position.saturating_add(REACH));
        } else {
            running.into_iter().for_each(|offset| handover.retract(offset));
        }
        handover
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Whether the offsets are those of the topic with this id; where that was not noted, they are taken for it.
    pub(crate) fn is_of(&mut self, id: &str) -> bool {
        self.topic.get_or_insert_with(|| id.to_owned()) == id
    }

    /// Everything before `position` is done. Whether there were marks of it.
    pub(crate) fn reached(&mut self, position: u64) -> bool {
        let has_marks = self.marks.first_key_value().is_some_and(|(offset, _)| *offset < position);
        if has_marks {
            self.marks = self.marks.split_off(&position);
            self.running = self.running.split_off(&position);
        }
        if position >= self.until {
            (self.deaths, self.until) = (0, 0);
        }
        has_marks
    }

    /// This record came early enough to have killed the owner before.
    pub(crate) fn reaches(&mut self, offset: u64) {
        if self.deaths > 0 {
            self.until = self.until.max(offset.saturating_add(1));
        }
    }

    /// How often a record was handed out to owners that died.
    pub(crate) fn deaths_of(&self, offset: u64) -> u32 {
        if offset < self.until { self.deaths } else { 0 }
    }

    /// Up to where records may be in flight while it is not known which of them kills.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.deaths > 0).then_some(REACH)
    }

    /// A run of this record begins. How many began before and did not end.
    pub(crate) fn begin(&mut self, offset: u64) -> u32 {
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
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.marks.remove(&offset);
            }
        }
    }

    /// The run of this record has ended, and leaves at most so many marks. What did not run keeps its own: `false`.
    pub(crate) fn end(&mut self, offset: u64, left: u32) -> bool {
        if !self.running.remove(&offset) {
            return false;
        }
        if left == 0 {
            self.marks.remove(&offset);
        } else if let Some(times) = self.marks.get_mut(&offset) {
            *times = left.min(*times);
        }
        true
    }

    /// The metadata of a commit.
    pub(crate) fn write(&self, is_clean: bool) -> String {
        let mut text = match is_clean {
            true => format!("{VERSION};clean"),
            false => format!("{VERSION};open;by={:x}", self.owner),
        };
        if let Some(topic) = &self.topic {
            text.push_str(&format!(";topic={topic}"));
        }
        if self.deaths > 0 {
            text.push_str(&format!(";deaths={};until={}", self.deaths, self.until));
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
        text
    }

    /// Reads what [`write`](Self::write) wrote; `None` for what another client or nobody has.
    fn read(metadata: &str) -> Option<(Self, bool)> {
        let mut parts = metadata.split(';');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let is_clean = match parts.next()? {
            "clean" => true,
            "open" => false,
            _ => return None,
        };
        let mut handover = Self::default();
        for part in parts {
            match part.split_once('=')? {
                ("by", owner) => handover.owner = u64::from_str_radix(owner, 16).ok()?,
                ("topic", topic) => handover.topic = Some(topic.to_owned()),
                ("deaths", deaths) => handover.deaths = deaths.parse().ok()?,
                ("until", until) => handover.until = until.parse().ok()?,
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
                // A later version may say more.
                _ => {}
            }
        }
        Some((handover, is_clean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner that finds what `handover` wrote.
    fn next_owner(handover: &Handover, is_clean: bool, position: u64) -> Handover {
        Handover::take_over(handover.owner + 1, &handover.write(is_clean), position)
    }

    #[test]
    fn g3_deaths_in_a_row_make_suspects_and_progress_clears_them() {
        let first = Handover::take_over(1, "", 500);
        assert_eq!((first.deaths_of(500), first.limit()), (0, None));
        let second = next_owner(&first, false, 500);
        assert_eq!((second.deaths_of(500), second.deaths_of(500 + REACH)), (1, 0));
        assert_eq!(second.limit(), Some(REACH));
        let mut third = next_owner(&second, false, 700);
        assert_eq!(third.deaths_of(700), 2);
        third.reached(700 + REACH);
        assert_eq!((third.deaths_of(700 + REACH), third.limit()), (0, None));
    }

    #[test]
    fn an_owner_that_left_in_good_order_is_not_suspected() {
        let first = next_owner(&Handover::default(), false, 10);
        let second = next_owner(&first, true, 10);
        assert_eq!(second.deaths_of(10), 1, "what was known stays known");
        assert_eq!(next_owner(&second, true, 10).deaths_of(10), 1);
    }

    #[test]
    fn an_owner_that_finds_its_own_word_has_not_died() {
        let mut owner = next_owner(&Handover::of(7), false, 10);
        owner.begin(12);
        let again = Handover::take_over(owner.owner, &owner.write(false), 10);
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
    fn g1_whose_offsets_they_are_is_told() {
        let mut owner = Handover::of(7);
        assert!(owner.is_of("one") && owner.is_of("one") && !owner.is_of("two"));
        let mut next = next_owner(&owner, true, 5);
        assert!(!next.is_of("two") && next.is_of("one"));
        assert!(Handover::take_over(8, "dlq1;clean", 5).is_of("two"), "it was not noted");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut owner = next_owner(&Handover::default(), false, 0);
        assert!(owner.is_of("Sb0ORn8nQ/OROvHhAiHSTg"));
        owner.begin(u64::MAX - 1);
        owner.begin(u64::MAX - 1);
        for offset in 0..500 {
            owner.begin(u64::MAX - 1_000 + offset);
        }
        assert!(owner.write(false).len() < 4_000, "{}", owner.write(false).len());
        assert_eq!(owner.begin(u64::MAX - 1), 2, "the one that killed more often is not forgotten");
    }

    #[test]
    fn what_others_wrote_says_nothing() {
        for metadata in
            ["", "x", "dlq1", "dlq1;odd", "dlq1;open;deaths", "dlq1;open;deaths=x", "\u{0}"]
        {
            assert_eq!(Handover::take_over(1, metadata, 5), Handover::of(1), "{metadata:?}");
        }
        assert_eq!(Handover::take_over(1, "dlq1;open;later=1", 5).deaths_of(5), 1);
    }
}
