use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{Binding, Death, DeliveredFrom, Delivery};
use tokio::time::Instant;

use crate::consumer::hand::Conviction;
use crate::stage::{GivenUp, Postponed};

/// Number of deaths that are remembered at most, and the time for which they are. A message that is to come again comes
/// within minutes; one that another process has had since may be sent here anew on purpose, and is to run then.
const REMEMBERED: usize = 4096;
const KEPT: Duration = Duration::from_secs(3600);

/// Verdicts that could not be written everywhere. Each is written again when its message comes again, and not decided
/// anew. Bounded: past the bound the oldest is forgotten, and its message runs again.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    memory: Mutex<Memory>,
    /// True if there is anything: saves the lock, and the identity of the message, where there is not.
    is_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Memory {
    /// Keyed by death, since that costs no look at the bytes.
    deaths: HashMap<Death, Vec<(Which, Routing)>>,
    order: VecDeque<(Death, Which)>,
}

/// A message of a death: the same identity with other bytes is another message, and a row of the store has verdicts of its
/// own, which its settlement records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Which {
    binding: Binding,
    is_stored: bool,
}

impl Which {
    fn of(delivery: &Delivery, death: Death) -> Self {
        let binding = Binding::of(&death.letter, delivery.message());
        Self { binding, is_stored: delivery.delivered_from() == DeliveredFrom::Store }
    }
}

impl Memory {
    fn forget(&mut self, (death, which): (Death, Which)) {
        if let Some(of) = self.deaths.get_mut(&death) {
            of.retain(|(known, _)| *known != which);
            if of.is_empty() {
                self.deaths.remove(&death);
            }
        }
    }
}

/// A verdict that routing has not finished with.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    /// The latest attempt that the verdict is about. A later one was written after all, and has verdicts of its own.
    attempt: u32,
    pub(super) verdict: Undone,
    /// For each part of the routing of a letter, whether it has confirmed; empty before any has.
    pub(super) confirmed: Vec<bool>,
    /// The finding that the message crashes too often, if there is one.
    pub(super) convicted: Option<Conviction>,
    since: Instant,
}

/// The letter or retry record that is to be written.
#[derive(Clone, Debug)]
pub(super) enum Undone {
    Dead(GivenUp),
    Retry(Postponed),
}

impl Routing {
    pub(super) fn new(delivery: &Delivery, verdict: Undone, confirmed: Vec<bool>) -> Self {
        let attempts = match &verdict {
            Undone::Dead(given_up) => given_up.attempts,
            Undone::Retry(postponed) => postponed.attempts,
        };
        Self {
            // The verdict may be of attempts beyond the delivery's own, which were made in the process.
            attempt: attempts.max(delivery.attempt()),
            verdict,
            confirmed,
            convicted: Conviction::noted(delivery),
            since: Instant::now(),
        }
    }
}

impl Unfinished {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is left to be done about `delivery`, if it is one that was decided about before.
    #[inline]
    pub(super) fn of(&self, delivery: &Delivery) -> Option<Routing> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.look_up(delivery)
    }

    fn look_up(&self, delivery: &Delivery) -> Option<Routing> {
        let death = death_of(delivery);
        let memory = self.memory();
        let of = memory.deaths.get(&death)?;
        let which = Which::of(delivery, death);
        let (_, known) = of.iter().find(|(known, _)| *known == which)?;
        // A delivery with a higher attempt shows that the record was written after all, though the answer was lost.
        let is_current = delivery.attempt() <= known.attempt && known.since.elapsed() < KEPT;
        is_current.then(|| known.clone())
    }

    /// Remembers what could not be finished.
    pub(super) fn remember(&self, delivery: &Delivery, routing: Routing) {
        let death = death_of(delivery);
        let which = Which::of(delivery, death);
        let mut memory = self.memory();
        let of = memory.deaths.entry(death).or_default();
        match of.iter_mut().find(|(known, _)| *known == which) {
            // It keeps its place in the order, which only bounds how many are remembered.
            Some((_, known)) => *known = routing,
            None => {
                of.push((which, routing));
                memory.order.push_back((death, which));
            }
        }
        while memory.order.len() > REMEMBERED {
            if let Some(oldest) = memory.order.pop_front() {
                memory.forget(oldest);
            }
        }
        // The flag is stored while the lock is held, so that it agrees with the map.
        self.is_any.store(true, Ordering::Release);
    }

    /// All of it is written.
    pub(super) fn finished(&self, delivery: &Delivery) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let death = death_of(delivery);
        let mut memory = self.memory();
        // The binding is a hash over the whole payload, so it is computed only where the death is known.
        if memory.deaths.contains_key(&death) {
            let key = (death, Which::of(delivery, death));
            memory.forget(key);
            memory.order.retain(|known| *known != key);
        }
        self.is_any.store(!memory.deaths.is_empty(), Ordering::Release);
    }
}

fn death_of(delivery: &Delivery) -> Death {
    delivery.death(delivery.consumer())
}

#[cfg(test)]
mod tests {
    use dlq_core::{ErrorClass, History, Message, Origin, Position, Reason};

    use super::*;

    fn delivery(number: u64) -> Delivery {
        let origin = Origin::new("memory", "orders", Position::Offset(number));
        Delivery::new(Message::new("orders", "x"), origin)
    }

    fn routing(delivery: &Delivery, attempts: u32) -> Routing {
        let given_up = GivenUp {
            consumer: "orders.handle".into(),
            reason: Reason::Exhausted,
            class: ErrorClass::Transient,
            cause: None,
            history: History::new(),
            attempts,
            crashes: 0,
        };
        Routing::new(delivery, Undone::Dead(given_up), vec![true, false])
    }

    #[test]
    fn memory_is_bounded_and_ends_with_the_routing() {
        let unfinished = Unfinished::default();
        for number in 0..5000 {
            unfinished.remember(&delivery(number), routing(&delivery(number), 1));
        }
        assert!(unfinished.of(&delivery(0)).is_none(), "the oldest was forgotten");
        let known = unfinished.of(&delivery(4999)).unwrap();
        assert_eq!(known.confirmed, [true, false]);
        assert!(unfinished.of(&delivery(4999)).is_some(), "it may fail again");
        unfinished.finished(&delivery(4999));
        assert!(unfinished.of(&delivery(4999)).is_none());
        let memory = unfinished.memory();
        assert_eq!((memory.deaths.len(), memory.order.len()), (REMEMBERED - 1, REMEMBERED - 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_come_again_for_long_is_decided_anew() {
        let (unfinished, first) = (Unfinished::default(), delivery(1));
        unfinished.remember(&first, routing(&first, 1));
        tokio::time::advance(KEPT / 2).await;
        assert!(unfinished.of(&first).is_some());
        tokio::time::advance(KEPT / 2).await;
        assert!(unfinished.of(&first).is_none());
    }

    #[test]
    fn other_bytes_a_later_attempt_and_another_death_are_decided_anew() {
        let (unfinished, first) = (Unfinished::default(), delivery(1));
        unfinished.remember(&first, routing(&first, 2));
        assert!(unfinished.of(&first).is_some());
        assert!(unfinished.of(&first.clone().with_attempt(2)).is_some());
        assert!(
            unfinished.of(&first.clone().with_attempt(3)).is_none(),
            "it was written after all"
        );
        let other = Delivery::new(Message::new("orders", "y"), first.origin().clone());
        assert!(unfinished.of(&other).is_none(), "other bytes");
        let stored = first.clone().with_delivered_from(DeliveredFrom::Store);
        assert!(unfinished.of(&stored).is_none(), "a row of the store");
        let Death { letter, generation } = death_of(&first);
        let next = Death { letter, generation: generation + 1 };
        assert!(unfinished.of(&first.clone().with_death(next)).is_none(), "another death");
        unfinished.finished(&first);
        assert!(!unfinished.is_any.load(Ordering::Acquire));
    }
}
