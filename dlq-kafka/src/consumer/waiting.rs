use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Records that wait for their time, the first due first; records of the same time in the order in which they came.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    heap: BinaryHeap<Entry<T>>,
    count: u64,
}

#[derive(Debug)]
struct Entry<T> {
    key: Reverse<(Instant, u64)>,
    item: T,
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    pub(crate) fn push(&mut self, due: Instant, item: T) {
        // A heap keeps no order among equals, so the count decides between those.
        self.count += 1;
        self.heap.push(Entry { key: Reverse((due, self.count)), item });
    }

    /// When the first is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.key.0.0)
    }

    /// The first, if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        let is_due = self.next_due().is_some_and(|due| due <= now);
        if is_due { self.heap.pop().map(|entry| entry.item) } else { None }
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        self.heap.retain(|entry| keeps(&entry.item));
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_due_comes_first_and_none_too_early() {
        let now = Instant::now();
        let mut waiting = Waiting::new();
        for (after, item) in [(2, "b"), (1, "a"), (2, "c")] {
            waiting.push(now + Duration::from_secs(after), item);
        }
        assert_eq!(waiting.pop_due(now), None);
        assert_eq!(waiting.next_due(), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(2);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop_due(later)).collect();
        assert_eq!(order, ["a", "b", "c"]);
    }
}
