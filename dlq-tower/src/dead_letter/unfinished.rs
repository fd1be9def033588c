use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlq_core::{Binding, Death, Delivery};

use crate::consumer::hand::Conviction;
use crate::stage::{GivenUp, Postponed};

/// How many deaths are remembered at most.
const REMEMBERED: usize = 4096;

/// What was decided about a message and could not be written everywhere: it is written again when the message comes again,
/// and not decided anew. Bounded: past the bound the oldest is forgotten, and its message runs again.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    memory: Mutex<Memory>,
    /// Whether there is anything: saves the lock, and the identity of the message, where there is not.
    is_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Memory {
    deaths: HashMap<Key, Routing>,
    order: VecDeque<Key>,
}

/// A message: the same identity with other bytes is another one, of which nothing is known.
type Key = (Death, Binding);

/// A verdict that routing has not finished with.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    /// The latest attempt that the verdict is about. A later one was written after all, and has verdicts of its own.
    attempt: u32,
    pub(super) verdict: Undone,
    /// For each part of the routing of a letter, whether it has confirmed; empty before any has.
    pub(super) confirmed: Vec<bool>,
    /// By what the message was found to crash too often, if it was.
    pub(super) convicted: Option<Conviction>,
}

/// What is to be written.
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
            attempt: attempts.max(delivery.attempt()),
            verdict,
            confirmed,
            convicted: Conviction::noted(),
        }
    }
}

impl Unfinished {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left to be done about `delivery`, if it is one that was decided about before.
    #[inline]
    pub(super) fn of(&self, delivery: &Delivery) -> Option<Routing> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.look_up(delivery)
    }

    fn look_up(&self, delivery: &Delivery) -> Option<Routing> {
        let key = key_of(delivery);
        let memory = self.memory();
        memory.deaths.get(&key).filter(|known| delivery.attempt() <= known.attempt).cloned()
    }

    /// Remembers what could not be finished.
    pub(super) fn remember(&self, delivery: &Delivery, routing: Routing) {
        let key = key_of(delivery);
        let mut memory = self.memory();
        if memory.deaths.insert(key, routing).is_none() {
            memory.order.push_back(key);
        }
        while memory.order.len() > REMEMBERED {
            if let Some(oldest) = memory.order.pop_front() {
                memory.deaths.remove(&oldest);
            }
        }
        self.is_any.store(true, Ordering::Release);
    }

    /// All of it is written.
    pub(super) fn finished(&self, delivery: &Delivery) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let key = key_of(delivery);
        let mut memory = self.memory();
        if memory.deaths.remove(&key).is_some() {
            memory.order.retain(|known| *known != key);
        }
        self.is_any.store(!memory.deaths.is_empty(), Ordering::Release);
    }
}

fn key_of(delivery: &Delivery) -> Key {
    let death = delivery.death(delivery.consumer());
    (death, Binding::of(&death.letter, delivery.message()))
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
        let (Death { letter, generation }, _) = key_of(&first);
        let next = Death { letter, generation: generation + 1 };
        assert!(unfinished.of(&first.clone().with_death(next)).is_none(), "another death");
        unfinished.finished(&first);
        assert!(!unfinished.is_any.load(Ordering::Acquire));
    }
}
