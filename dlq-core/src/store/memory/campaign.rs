use std::collections::{BTreeMap, BTreeSet};

use super::super::{ItemOutcome, Operation, OperationItem};
use crate::Timestamp;

/// An operation and its items.
#[derive(Debug)]
pub(super) struct Campaign {
    pub(super) operation: Operation,
    pub(super) items: Vec<OperationItem>,
    /// The items that wait their turn, by the letter's consumer.
    pub(super) queued: BTreeMap<String, BTreeSet<usize>>,
}

impl Campaign {
    pub(super) fn has_queued(&self, consumers: &[String]) -> bool {
        if consumers.is_empty() {
            return !self.queued.is_empty();
        }
        consumers.iter().any(|name| self.queued.contains_key(name))
    }

    /// When it can release a letter; `None` when that takes more than time.
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

    pub(super) fn set_outcome(
        &mut self,
        index: usize,
        consumer: &str,
        outcome: ItemOutcome,
        why: Option<&str>,
        now: Timestamp,
    ) {
        let Some(item) = self.items.get_mut(index) else { return };
        let counts = &mut self.operation.progress.by_outcome;
        if let Some(count) = counts.get_mut(&item.outcome) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&item.outcome);
            }
        }
        *counts.entry(outcome).or_default() += 1;
        item.outcome = outcome;
        item.why = why.map(str::to_owned);
        item.at = now;
        if let Some(queue) = self.queued.get_mut(consumer) {
            queue.remove(&index);
            if queue.is_empty() {
                self.queued.remove(consumer);
            }
        }
        self.operation.state = self.operation.advance(now, 0).state;
        self.operation.updated_at = now;
    }
}
