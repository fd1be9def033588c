//! The hops of a retry topic that have come, so that copies are passed over.

use std::collections::{HashSet, VecDeque};

use dlq_core::Death;

use super::Partition;

/// How many hops of a retry topic are remembered, so that a copy is passed over.
const HOPS: usize = 10_000;

/// The latest hops of a retry topic.
#[derive(Debug, Default)]
pub(super) struct Hops {
    known: HashSet<Hop>,
    order: VecDeque<Hop>,
}

type Hop = (Death, u32, u32);

impl Hops {
    pub(super) fn insert(&mut self, hop: Hop) -> bool {
        if !self.known.insert(hop) {
            return false;
        }
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
    /// Whether this hop is seen for the first time, of a retry topic: of how many times the death was sent back, and how
    /// many times the message was given on since.
    pub(crate) fn is_first(&self, death: Death, replays: u32, escalations: u32) -> bool {
        self.state().hops.insert((death, replays, escalations))
    }

    /// This hop is about to be written again: the record that comes is no copy.
    pub(crate) fn comes_again(&self, death: Death, replays: u32, escalations: u32) {
        self.state().hops.forget((death, replays, escalations));
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::LetterId;

    use super::*;

    #[test]
    fn what_is_remembered_of_hops_is_bounded() {
        let mut hops = Hops::default();
        let death = |n: u32| Death { letter: LetterId::from_bytes([7; 16]), generation: n };
        for n in 0..(HOPS as u32 + 5) {
            assert!(hops.insert((death(n), 0, 1)));
        }
        assert!(!hops.insert((death(6), 0, 1)));
        assert_eq!((hops.known.len(), hops.order.len()), (HOPS, HOPS));
    }
}
