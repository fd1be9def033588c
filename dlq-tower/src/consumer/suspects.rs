//! Suspects: a message that may have killed the process runs alone, with a durable mark (G3).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlq_core::{Death, DeliveredFrom, Delivery, LetterId};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::hand::Conviction;

/// Number of messages that we gave back ourselves and remember.
const REMEMBERED: usize = 16 * 1024;

/// Permission for a message to run beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    None,
    /// It runs alone.
    Alone,
    /// It runs alone, and a mark is written before.
    Marked(Death),
    /// It was given up here for so many crashes and is to be again, unrun: its marks are not asked, nor its deliveries.
    Convicted(Death, u32),
}

/// Permission to run now. A suspect waits until nothing else runs, and nothing starts before it has ended.
#[derive(Debug)]
pub(super) struct Suspects {
    runs: Runs,
    suspect_after: u32,
    has_marks: bool,
    explained: Mutex<Explained>,
    /// Messages that were given up for their crashes and are not settled: the number of crashes, and the evidence.
    convicted: Mutex<HashMap<Death, (u32, Conviction)>>,
    /// True if there are any: saves the lock otherwise.
    convicts: AtomicBool,
    /// Marks of runs that have ended, and could not be removed.
    owed: Mutex<HashMap<LetterId, Owed>>,
}

/// Marks that are not known to be removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// Number that there would be without them.
    pub(super) left: u32,
    /// Number of marks.
    marks: u32,
}

/// State that all runs share.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs(Arc<RwLock<()>>);

/// The right to run. Dropping it ends it.
#[derive(Debug)]
pub(super) enum Turn {
    Beside { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// Deliveries that need no crash to explain them.
#[derive(Debug, Default)]
struct Explained {
    ends: HashMap<LetterId, Ends>,
    order: VecDeque<LetterId>,
}

/// Number of deliveries of one message that ended in good order.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// This process gave it back itself.
    own: u32,
    /// Processes that were stopped have told so.
    heard: u32,
}

impl Explained {
    fn of(&mut self, letter: LetterId) -> &mut Ends {
        if !self.ends.contains_key(&letter) {
            // The memory is bounded. A message that is forgotten becomes a suspect sooner, which costs it a run alone.
            self.order.push_back(letter);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.ends.remove(&oldest);
            }
        }
        self.ends.entry(letter).or_default()
    }
}

impl Suspects {
    pub(super) fn new(suspect_after: u32, has_marks: bool) -> Self {
        Self {
            runs: Runs::default(),
            suspect_after,
            has_marks,
            explained: Mutex::default(),
            convicted: Mutex::default(),
            convicts: AtomicBool::new(false),
            owed: Mutex::default(),
        }
    }

    /// Returns true if nothing at all speaks for a crash.
    pub(super) fn is_beyond_doubt(&self, delivery: &Delivery) -> bool {
        let is_known = match delivery.delivered_from() {
            // A store counts lost claims, and a broker deliveries. Each says so in a field of its own.
            DeliveredFrom::Store => delivery.crashes() == 0,
            _ => delivery.deliveries() < self.suspect_after,
        };
        is_known && self.conviction(delivery).is_none()
    }

    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(super) fn suspect(&self, delivery: &Delivery) -> Suspicion {
        if let Some((death, crashes, by)) = self.conviction(delivery) {
            return match by {
                Conviction::Delivery => Suspicion::Convicted(death, crashes),
                // Its key decides, whose counts may have started over: should it run, it runs marked.
                Conviction::Key => Suspicion::Marked(death),
            };
        }
        if delivery.delivered_from() == DeliveredFrom::Store {
            // A lease that ended unfinished is a suspicion and no proof: the letter may have been waiting to run.
            return match delivery.crashes() {
                0 => Suspicion::None,
                _ => self.alone(death_of(delivery)),
            };
        }
        if !self.is_unexplained(delivery) {
            return Suspicion::None;
        }
        tracing::warn!(
            origin = %delivery.origin(),
            deliveries = delivery.deliveries(),
            marked = self.has_marks,
            "a message was handed out again and again without explanation: it runs alone"
        );
        self.alone(death_of(delivery))
    }

    /// Returns true if `delivery` was handed out so often that it is a suspect by that.
    pub(super) fn is_unexplained(&self, delivery: &Delivery) -> bool {
        let deliveries = delivery.deliveries();
        delivery.delivered_from() != DeliveredFrom::Store
            && deliveries >= self.suspect_after
            && deliveries.saturating_sub(self.explained(death_of(delivery).letter))
                >= self.suspect_after
            && self.conviction(delivery).is_none()
    }

    fn alone(&self, death: Death) -> Suspicion {
        if self.has_marks { Suspicion::Marked(death) } else { Suspicion::Alone }
    }

    /// However often it was delivered: some sources count anew what is given back.
    #[inline]
    fn conviction(&self, delivery: &Delivery) -> Option<(Death, u32, Conviction)> {
        if !self.convicts.load(Ordering::Acquire) {
            return None;
        }
        let convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        let death = death_of(delivery);
        convicted.get(&death).map(|&(crashes, by)| (death, crashes, by))
    }

    /// Returns the number of runs of a message that ended with the process, given the number of its marks: each time
    /// that it was given up again added one, and was no run.
    pub(super) fn crashes(&self, death: Death, marks: u32) -> u32 {
        let convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        convicted.get(&death).map_or(marks, |(crashes, _)| marks.min(*crashes))
    }

    /// Returns the number of marks of earlier runs that stay when a run ends with which the message is not over. None
    /// if its key had convicted it: the key counts crashes itself, and these marks may be of rounds in which it was not
    /// run.
    pub(super) fn earlier(&self, death: Death, marks: u32) -> u32 {
        let convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        if convicted.contains_key(&death) { 0 } else { marks }
    }

    /// The message was given up for so many crashes, and comes again; or for none, and does not.
    pub(super) fn convicted(&self, death: Death, crashes: Option<(u32, Conviction)>) {
        let mut convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        match crashes {
            // All of them. They are few, since each has ended the process several times; one forgotten would end it again.
            Some(crashes) => {
                convicted.insert(death, crashes);
            }
            None => {
                convicted.remove(&death);
            }
        }
        // The flag is stored under the lock, so that it never lags behind the map.
        self.convicts.store(!convicted.is_empty(), Ordering::Release);
    }

    /// The mark of a run that has ended is not removed yet: so many are to be left.
    pub(super) fn owes(&self, letter: LetterId, left: u32) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let marks = owed.get(&letter).map_or(0, |owed| owed.marks).saturating_add(1);
        // The memory is bounded. A mark that is not remembered counts as a crash if it stays.
        if owed.len() < REMEMBERED || marks > 1 {
            owed.insert(letter, Owed { left, marks });
        }
    }

    pub(super) fn owed(&self, letter: LetterId) -> Option<Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).get(&letter).copied()
    }

    /// It is removed, or its marks are to stay.
    pub(super) fn paid(&self, letter: LetterId) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).remove(&letter);
    }

    /// Returns the number of marks that are of runs that did not end, including those of other processes.
    pub(super) fn unended(&self, letter: LetterId, marks: u32) -> u32 {
        match self.owed(letter) {
            // Whether what is owed was removed all the same is not known.
            Some(owed) => marks.saturating_sub(owed.marks).max(marks.min(owed.left)),
            None => marks,
        }
    }

    fn ends(&self, letter: LetterId) -> Ends {
        let explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        explained.ends.get(&letter).copied().unwrap_or_default()
    }

    fn explained(&self, letter: LetterId) -> u32 {
        let Ends { own, heard } = self.ends(letter);
        own.saturating_add(heard)
    }

    /// Returns true if this process gave the message back each time that it was delivered before.
    pub(super) fn is_explained(&self, delivery: &Delivery) -> bool {
        let explained = self.explained(death_of(delivery).letter);
        delivery.deliveries().saturating_sub(explained) <= 1
    }

    /// We gave `delivery` back; that it comes again is no sign of a crash.
    pub(super) fn gave_back(&self, delivery: &Delivery) {
        // A claim that is given back counts no crash in the store, so that there is nothing to explain.
        if delivery.delivered_from() == DeliveredFrom::Store {
            return;
        }
        let mut explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = explained.of(death_of(delivery).letter);
        ends.own = ends.own.saturating_add(1);
    }

    /// Stopped processes have told of so many good ends.
    pub(super) fn heard_of(&self, letter: LetterId, ends: u32) {
        let mut explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if ends > 0 || explained.ends.contains_key(&letter) {
            explained.of(letter).heard = ends;
        }
    }

    pub(super) fn has_heard_of(&self, letter: LetterId) -> bool {
        self.ends(letter).heard > 0
    }

    /// Returns of how many good ends the next process has to be told, so that `delivery`, which ends now, makes no suspect of its
    /// message there.
    pub(super) fn untold(&self, delivery: &Delivery) -> u32 {
        if delivery.delivered_from() == DeliveredFrom::Store {
            return 0;
        }
        let Ends { own, heard } = self.ends(death_of(delivery).letter);
        // The next delivery counts one more, and what is left unexplained of it has to be below `suspect_after`: hence the 2.
        let wanted = delivery.deliveries().saturating_add(2).saturating_sub(self.suspect_after);
        // This process tells no more than it knows of itself, since a crash must not be explained away (G3).
        wanted.saturating_sub(heard).min(own)
    }
}

impl Runs {
    /// The right to run beside others, unless that has to be waited for.
    pub(super) fn turn_now(&self) -> Option<Turn> {
        let guard = Arc::clone(&self.0).try_read_owned().ok()?;
        Some(Turn::Beside { _guard: guard })
    }

    /// Waits for the right to run.
    pub(super) async fn turn(&self, suspicion: Suspicion) -> Turn {
        let runs = Arc::clone(&self.0);
        // The lock is fair: what comes after a suspect waits behind it.
        match suspicion {
            Suspicion::None => Turn::Beside { _guard: runs.read_owned().await },
            _ => Turn::Alone { _guard: runs.write_owned().await },
        }
    }
}

pub(super) fn death_of(delivery: &Delivery) -> Death {
    delivery.death(delivery.consumer())
}

#[cfg(test)]
mod tests {
    use dlq_core::{Message, Origin, Position};

    use super::*;

    fn delivery(deliveries: u32) -> Delivery {
        let origin = Origin::new("memory", "orders", Position::Offset(1));
        Delivery::new(Message::new("orders", ""), origin).with_deliveries(deliveries)
    }

    #[test]
    fn only_deliveries_without_explanation_are_suspect() {
        let suspects = Suspects::new(3, true);
        assert_eq!(suspects.suspect(&delivery(2)), Suspicion::None);
        assert!(matches!(suspects.suspect(&delivery(3)), Suspicion::Marked(_)));
        suspects.gave_back(&delivery(1));
        assert_eq!(suspects.suspect(&delivery(3)), Suspicion::None, "one is explained");
        assert!(matches!(suspects.suspect(&delivery(4)), Suspicion::Marked(_)));
        let unmarked = Suspects::new(3, false);
        assert_eq!(unmarked.suspect(&delivery(3)), Suspicion::Alone);
    }

    #[test]
    fn no_more_is_told_than_ended_well_and_than_makes_no_suspect() {
        let suspects = Suspects::new(3, true);
        let letter = death_of(&delivery(1)).letter;
        assert_eq!(suspects.untold(&delivery(9)), 0, "nothing ended well");
        suspects.gave_back(&delivery(1));
        assert_eq!([1, 2, 9].map(|times| suspects.untold(&delivery(times))), [0, 1, 1]);
        (0..8).for_each(|_| suspects.gave_back(&delivery(1)));
        assert_eq!([1, 2, 3, 9].map(|times| suspects.untold(&delivery(times))), [0, 1, 2, 8]);
        suspects.heard_of(letter, 2);
        assert_eq!([3, 9].map(|times| suspects.untold(&delivery(times))), [0, 6]);
    }

    #[test]
    fn in_the_store_a_lost_lease_is_the_sign() {
        let suspects = Suspects::new(3, true);
        let stored =
            |crashes| delivery(9).with_delivered_from(DeliveredFrom::Store).with_crashes(crashes);
        assert_eq!(suspects.suspect(&stored(0)), Suspicion::None);
        assert!(matches!(suspects.suspect(&stored(1)), Suspicion::Marked(_)));
    }

    #[test]
    fn marks_of_what_a_key_has_convicted_do_not_stay() {
        let (suspects, death) = (Suspects::new(3, true), death_of(&delivery(1)));
        assert_eq!(suspects.earlier(death, 4), 4);
        suspects.convicted(death, Some((3, Conviction::Key)));
        assert_eq!(suspects.earlier(death, 4), 0);
        suspects.convicted(death, None);
        assert_eq!(suspects.earlier(death, 4), 4);
    }

    /// A message whose conviction is forgotten would run, and kill the process again (G3).
    #[test]
    fn g3_no_conviction_is_forgotten_however_many_there_are() {
        let suspects = Suspects::new(3, true);
        let deliveries = || {
            (0..REMEMBERED as u64 + 10).map(|position| {
                let origin = Origin::new("memory", "orders", Position::Offset(position));
                Delivery::new(Message::new("orders", ""), origin)
            })
        };
        for delivery in deliveries() {
            suspects.convicted(death_of(&delivery), Some((3, Conviction::Delivery)));
        }
        for delivery in deliveries() {
            let expected = Suspicion::Convicted(death_of(&delivery), 3);
            assert_eq!(suspects.suspect(&delivery), expected, "{}", delivery.origin());
        }
    }

    #[test]
    fn what_is_owed_hides_no_crash_of_another_process() {
        let (suspects, letter) = (Suspects::new(3, true), death_of(&delivery(1)).letter);
        assert_eq!(suspects.unended(letter, 3), 3);
        suspects.owes(letter, 3);
        assert_eq!(suspects.unended(letter, 4), 3);
        assert_eq!(suspects.unended(letter, 3), 3, "it was removed, and that was not heard");
        assert_eq!(suspects.unended(letter, 5), 4, "another one has crashed");
        suspects.owes(letter, 3);
        assert_eq!(suspects.unended(letter, 5), 3);
        suspects.paid(letter);
        assert_eq!(suspects.unended(letter, 5), 5);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let suspects = Suspects::new(3, true);
        for position in 0..(REMEMBERED as u64 + 10) {
            let origin = Origin::new("memory", "orders", Position::Offset(position));
            suspects.gave_back(&Delivery::new(Message::new("orders", ""), origin));
        }
        let explained = suspects.explained.lock().unwrap();
        assert_eq!((explained.ends.len(), explained.order.len()), (REMEMBERED, REMEMBERED));
    }
}
