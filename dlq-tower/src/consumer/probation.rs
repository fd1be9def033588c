//! Probation: a message that may have killed the process runs alone, with a durable mark (G3).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlq_core::{Death, Delivery, Lane, LetterId};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::hand::Conviction;

/// How many messages that we gave back ourselves are remembered.
const REMEMBERED: usize = 16 * 1024;

/// Whether a message is let run beside others.
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

/// Who may run now. A suspect waits until nothing else runs, and nothing starts before it has ended.
#[derive(Debug)]
pub(super) struct Probation {
    runs: Arc<RwLock<()>>,
    suspect_after: u32,
    has_marks: bool,
    explained: Mutex<Explained>,
    /// What was given up for its crashes and is not settled: how many they were, and by what they were found.
    convicted: Mutex<HashMap<Death, (u32, Conviction)>>,
    /// Whether there is anything of that kind: saves the lock where there is not.
    convicts: AtomicBool,
}

/// The right to run. Dropping it ends it.
#[derive(Debug)]
pub(super) enum Turn {
    Beside { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// Deliveries that need no crash to explain them: those that this process gave back itself.
#[derive(Debug, Default)]
struct Explained {
    given_back: HashMap<LetterId, u32>,
    order: VecDeque<LetterId>,
}

impl Probation {
    pub(super) fn new(suspect_after: u32, has_marks: bool) -> Self {
        Self {
            runs: Arc::default(),
            suspect_after,
            has_marks,
            explained: Mutex::default(),
            convicted: Mutex::default(),
            convicts: AtomicBool::new(false),
        }
    }

    /// Whether nothing at all speaks for a crash.
    pub(super) fn is_beyond_doubt(&self, delivery: &Delivery) -> bool {
        let is_known = match delivery.lane() {
            Lane::Store => delivery.crashes() == 0,
            _ => delivery.deliveries() < self.suspect_after,
        };
        is_known && self.conviction(delivery).is_none()
    }

    /// The right to run beside others, unless that has to be waited for.
    pub(super) fn turn_now(&self) -> Option<Turn> {
        let guard = Arc::clone(&self.runs).try_read_owned().ok()?;
        Some(Turn::Beside { _guard: guard })
    }

    pub(super) fn suspect(&self, delivery: &Delivery) -> Suspicion {
        if let Some((death, crashes, by)) = self.conviction(delivery) {
            return match by {
                Conviction::Delivery => Suspicion::Convicted(death, crashes),
                // Its key decides, whose counts may have started over: should it run, it runs marked.
                Conviction::Key => Suspicion::Marked(death),
            };
        }
        if delivery.lane() == Lane::Store {
            // A lease that ended unfinished is a suspicion and no proof: the letter may have been waiting to run.
            return match delivery.crashes() {
                0 => Suspicion::None,
                _ => self.alone(death_of(delivery)),
            };
        }
        if delivery.deliveries() < self.suspect_after {
            return Suspicion::None;
        }
        let death = death_of(delivery);
        if delivery.deliveries().saturating_sub(self.explained(death.letter)) < self.suspect_after {
            return Suspicion::None;
        }
        tracing::warn!(
            origin = %delivery.origin(),
            deliveries = delivery.deliveries(),
            marked = self.has_marks,
            "a message was handed out again and again without explanation: it runs alone"
        );
        self.alone(death)
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

    /// Waits for the right to run.
    pub(super) async fn turn(&self, suspicion: Suspicion) -> Turn {
        let runs = Arc::clone(&self.runs);
        // The lock is fair: what comes after a suspect waits behind it.
        match suspicion {
            Suspicion::None => Turn::Beside { _guard: runs.read_owned().await },
            _ => Turn::Alone { _guard: runs.write_owned().await },
        }
    }

    /// How many runs of a message ended with the process, when so many marks of it have been found: each time that it
    /// was given up again added one, and was no run.
    pub(super) fn crashes(&self, death: Death, marks: u32) -> u32 {
        let convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        convicted.get(&death).map_or(marks, |(crashes, _)| marks.min(*crashes))
    }

    /// The message was given up for so many crashes, and comes again; or for none, and does not.
    pub(super) fn convicted(&self, death: Death, crashes: Option<(u32, Conviction)>) {
        let mut convicted = self.convicted.lock().unwrap_or_else(PoisonError::into_inner);
        match crashes {
            Some(crashes) if convicted.len() < REMEMBERED => {
                convicted.insert(death, crashes);
            }
            Some(_) => {}
            None => {
                convicted.remove(&death);
            }
        }
        self.convicts.store(!convicted.is_empty(), Ordering::Release);
    }

    fn explained(&self, letter: LetterId) -> u32 {
        let explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        explained.given_back.get(&letter).copied().unwrap_or(0)
    }

    /// We gave `delivery` back; that it comes again is no sign of a crash.
    pub(super) fn gave_back(&self, delivery: &Delivery) {
        if delivery.lane() == Lane::Store {
            return;
        }
        let letter = death_of(delivery).letter;
        let mut explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = explained.given_back.get_mut(&letter) {
            *times = times.saturating_add(1);
            return;
        }
        explained.given_back.insert(letter, 1);
        explained.order.push_back(letter);
        if explained.order.len() > REMEMBERED
            && let Some(oldest) = explained.order.pop_front()
        {
            explained.given_back.remove(&oldest);
        }
    }
}

fn death_of(delivery: &Delivery) -> Death {
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
        let probation = Probation::new(3, true);
        assert_eq!(probation.suspect(&delivery(2)), Suspicion::None);
        assert!(matches!(probation.suspect(&delivery(3)), Suspicion::Marked(_)));
        probation.gave_back(&delivery(1));
        assert_eq!(probation.suspect(&delivery(3)), Suspicion::None, "one is explained");
        assert!(matches!(probation.suspect(&delivery(4)), Suspicion::Marked(_)));
        let unmarked = Probation::new(3, false);
        assert_eq!(unmarked.suspect(&delivery(3)), Suspicion::Alone);
    }

    #[test]
    fn in_the_store_a_lost_lease_is_the_sign() {
        let probation = Probation::new(3, true);
        let stored = |crashes| delivery(9).with_lane(Lane::Store).with_crashes(crashes);
        assert_eq!(probation.suspect(&stored(0)), Suspicion::None);
        assert!(matches!(probation.suspect(&stored(1)), Suspicion::Marked(_)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let probation = Probation::new(3, true);
        for position in 0..(REMEMBERED as u64 + 10) {
            let origin = Origin::new("memory", "orders", Position::Offset(position));
            probation.gave_back(&Delivery::new(Message::new("orders", ""), origin));
        }
        let explained = probation.explained.lock().unwrap();
        assert_eq!((explained.given_back.len(), explained.order.len()), (REMEMBERED, REMEMBERED));
    }
}
