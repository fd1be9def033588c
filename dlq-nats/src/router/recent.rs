use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Map of the most recent keys, bounded in number.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    known: HashMap<K, V>,
    order: VecDeque<K>,
    most: usize,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { known: HashMap::new(), order: VecDeque::new(), most }
    }

    pub(super) fn get(&self, thing: &K) -> Option<&V> {
        self.known.get(thing)
    }

    pub(super) fn insert(&mut self, thing: K, what: V) {
        // A known key keeps its place in the order, so that each stands there once.
        if self.known.insert(thing.clone(), what).is_some() {
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
        for (thing, what) in [(1, 'a'), (2, 'b'), (2, 'c'), (3, 'd')] {
            recent.insert(thing, what);
        }
        let known = [1, 2, 3].map(|thing| recent.get(&thing).copied());
        assert_eq!(known, [None, Some('c'), Some('d')]);
    }
}
