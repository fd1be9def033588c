//! The hops of a retry topic that have come, so that copies are passed over.

use std::collections::{HashSet, VecDeque};

use dlq_core::{Binding, Death, Delivery};

use super::Partition;

/// Number of hops of a retry topic that are remembered, so that a copy is skipped.
const HOPS: usize = 10_000;

/// The latest hops of a retry topic.
#[derive(Debug, Default)]
pub(super) struct Hops {
    known: HashSet<Hop>,
    order: VecDeque<Hop>,
}

/// A death of these bytes, how many times it was sent back, and how many times the message was given on since.
///
/// The bytes belong to it: a message that claims the death of another one is no copy of it.
type Hop = (Death, Binding, u32, u32);

fn hop(delivery: &Delivery) -> Hop {
    let death = delivery.death(delivery.consumer());
    let binding = Binding::of(&death.letter, delivery.message());
    (death, binding, delivery.replays(), delivery.delayed_retries())
}

impl Hops {
    pub(super) fn insert(&mut self, hop: Hop) -> bool {
        if !self.known.insert(hop) {
            return false;
        }
        // Beyond the bound the oldest hop is forgotten. A copy that comes later than that runs again.
        self.order.push_back(hop);
        if self.order.len() > HOPS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// The oldest are forgotten first as a rule, and so it is found soon.
    pub(super) fn forget(&mut self, hop: Hop) {
        if self.known.remove(&hop)
            && let Some(at) = self.order.iter().position(|one| *one == hop)
        {
            self.order.remove(at);
        }
    }
}

impl Partition {
    /// Returns true if the hop of a retry record is seen for the first time.
    pub(crate) fn is_first(&self, delivery: &Delivery) -> bool {
        self.state().hops.insert(hop(delivery))
    }

    /// This hop is about to be written again: the record that comes is no copy.
    pub(crate) fn comes_again(&self, delivery: &Delivery) {
        self.state().hops.forget(hop(delivery));
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::{LetterId, Message};

    use super::*;

    #[test]
    fn what_is_remembered_of_hops_is_bounded() {
        let mut hops = Hops::default();
        let letter = LetterId::from_bytes([7; 16]);
        let binding = Binding::of(&letter, &Message::new("orders", "1"));
        let hop = |n: u32| (Death { letter, generation: n }, binding, 0, 1);
        for n in 0..(HOPS as u32 + 5) {
            assert!(hops.insert(hop(n)));
        }
        assert!(!hops.insert(hop(6)));
        assert_eq!((hops.known.len(), hops.order.len()), (HOPS, HOPS));
    }
}
