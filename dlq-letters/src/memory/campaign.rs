use std::collections::{BTreeMap, BTreeSet};

use dlq_core::Timestamp;
use dlq_core::store::{ItemOutcome, Operation, OperationItem};

use crate::ItemChange;

/// An operation and its items.
#[derive(Debug)]
pub(super) struct Campaign {
    pub(super) operation: Operation,
    pub(super) items: Vec<OperationItem>,
    /// The consumer of each item's letter.
    consumers: Vec<String>,
    /// The items that wait their turn, by the letter's consumer.
    queued: BTreeMap<String, BTreeSet<usize>>,
    /// Grows with every change.
    pub(super) version: u64,
}

impl Campaign {
    pub(super) fn new(operation: Operation) -> Self {
        let (items, consumers, queued) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { operation, items, consumers, queued, version: 0 }
    }

    pub(super) fn has_queued(&self, consumers: &[String]) -> bool {
        self.next_queued(consumers, 0).is_some()
    }

    /// The time at which it can release a letter; `None` if that takes more than time.
    pub(super) fn next_release(&self, now: Timestamp) -> Option<Timestamp> {
        let can = |at| self.operation.advance(at, u64::MAX).release > 0;
        let next = self.operation.next_release;
        if can(now) { Some(now) } else { Some(next).filter(|next| *next > now && can(*next)) }
    }

    /// The first queued item at or after `from` whose letter may belong to one of these consumers.
    pub(super) fn next_queued(&self, consumers: &[String], from: usize) -> Option<usize> {
        let first = |queue: &BTreeSet<usize>| queue.range(from..).next().copied();
        if consumers.is_empty() {
            return self.queued.values().filter_map(first).min();
        }
        consumers.iter().filter_map(|name| self.queued.get(name)).filter_map(first).min()
    }

    pub(super) fn change_item(&mut self, index: u64, change: &ItemChange) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        match change {
            ItemChange::Append { item, consumer } => {
                debug_assert_eq!(index, self.items.len(), "items are appended in order");
                self.items.push(item.clone());
                self.consumers.push(consumer.clone());
            }
            ItemChange::Outcome { outcome, why, at } => {
                let Some(item) = self.items.get_mut(index) else { return };
                item.outcome = *outcome;
                item.why.clone_from(why);
                item.at = *at;
            }
        }
        self.queue(index);
    }

    /// Keeps the index of what is queued.
    fn queue(&mut self, index: usize) {
        let (item, consumer) = (&self.items[index], &self.consumers[index]);
        if item.outcome == ItemOutcome::Queued {
            self.queued.entry(consumer.clone()).or_default().insert(index);
        } else if let Some(queue) = self.queued.get_mut(consumer) {
            queue.remove(&index);
            if queue.is_empty() {
                self.queued.remove(consumer);
            }
        }
    }
}
