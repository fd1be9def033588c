use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use dlq_core::{Binding, Death};

/// How many deaths are remembered at most.
const REMEMBERED: usize = 4096;

/// Which parts of the routing of a death have confirmed, while others have not. Bounded: past the bound the oldest is
/// forgotten.
#[derive(Debug, Default)]
pub(super) struct Confirmed(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    deaths: HashMap<Death, (Binding, Vec<bool>)>,
    order: VecDeque<Death>,
}

impl Confirmed {
    /// What is remembered of `death` of a message with this binding: for each of `parts`, whether it has confirmed.
    /// Forgets it. The same death of other bytes is another letter, of which nothing is confirmed.
    pub(super) fn take(
        &self,
        death: Death,
        binding: impl FnOnce() -> Binding,
        parts: usize,
    ) -> Vec<bool> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = memory.deaths.get(&death).is_some_and(|(known, _)| *known == binding());
        let Some((_, confirmed)) = bound.then(|| memory.deaths.remove(&death)).flatten() else {
            return vec![false; parts];
        };
        memory.order.retain(|known| *known != death);
        confirmed
    }

    /// Remembers what has confirmed so far.
    pub(super) fn remember(&self, death: Death, binding: Binding, confirmed: Vec<bool>) {
        if !confirmed.contains(&true) {
            return;
        }
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.deaths.insert(death, (binding, confirmed)).is_none() {
            memory.order.push_back(death);
        }
        while memory.order.len() > REMEMBERED {
            if let Some(oldest) = memory.order.pop_front() {
                memory.deaths.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::{LetterId, Message};

    use super::*;

    fn death(number: u32) -> Death {
        Death { letter: LetterId::from_bytes([7; 16]), generation: number }
    }

    fn binding(bytes: u8) -> Binding {
        Binding::of(&LetterId::from_bytes([7; 16]), &Message::new("s", vec![bytes]))
    }

    #[test]
    fn memory_is_bounded_and_taken_once() {
        let confirmed = Confirmed::default();
        for number in 0..5000 {
            confirmed.remember(death(number), binding(1), vec![true, false]);
        }
        let take = |number, bytes| confirmed.take(death(number), || binding(bytes), 2);
        assert_eq!(take(0, 1), [false, false], "the oldest was forgotten");
        assert_eq!(take(4999, 2), [false, false], "other bytes");
        assert_eq!(take(4999, 1), [true, false]);
        assert_eq!(take(4999, 1), [false, false]);
        let memory = confirmed.0.lock().unwrap();
        assert_eq!((memory.deaths.len(), memory.order.len()), (REMEMBERED - 1, REMEMBERED - 1));
    }

    #[test]
    fn nothing_confirmed_is_nothing_to_remember() {
        let confirmed = Confirmed::default();
        confirmed.remember(death(1), binding(1), vec![false, false]);
        assert!(confirmed.0.lock().unwrap().deaths.is_empty());
    }
}
