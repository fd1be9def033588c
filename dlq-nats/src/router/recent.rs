use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The last so many things that were seen.
#[derive(Debug)]
pub(super) struct Recent<T> {
    known: HashSet<T>,
    order: VecDeque<T>,
    most: usize,
}

impl<T: Clone + Eq + Hash> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { known: HashSet::new(), order: VecDeque::new(), most }
    }

    pub(super) fn contains(&self, thing: &T) -> bool {
        self.known.contains(thing)
    }

    pub(super) fn insert(&mut self, thing: T) {
        if !self.known.insert(thing.clone()) {
            return;
        }
        self.order.push_back(thing);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut recent = Recent::new(2);
        for thing in [1, 2, 2, 3] {
            recent.insert(thing);
        }
        assert_eq!([1, 2, 3].map(|thing| recent.contains(&thing)), [false, true, true]);
    }
}
