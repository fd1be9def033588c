use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::rules::DedupKey;
use super::super::{AuditEntry, ItemOutcome, ProcessedEvent, reading};
use super::campaign::Campaign;
use super::row::Row;
use crate::{DeadLetter, Filter, LetterId, OperationId, Timestamp};

/// Where a letter stands in line: when it can be claimed, when it was stored, its id.
pub(super) type Place = (Timestamp, Timestamp, LetterId);

/// Everything that is stored. Rows change only through [`World::insert`], [`World::change`] and [`World::remove`],
/// which keep the indexes.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) rows: BTreeMap<LetterId, Row>,
    pub(super) by_age: BTreeSet<reading::ByAge>,
    /// Letters that are due or whose lease ends, by consumer.
    pub(super) lines: BTreeMap<String, BTreeSet<Place>>,
    /// The last fencing token; shared by all letters, so that one that was deleted does not begin again.
    pub(super) fence: u64,
    pub(super) dedup: bool,
    pub(super) keys: HashMap<DedupKey, LetterId>,
    pub(super) aliases: HashMap<LetterId, Alias>,
    /// In the order in which they were started.
    pub(super) campaigns: Vec<Campaign>,
    pub(super) campaign_index: HashMap<OperationId, usize>,
    /// When the automatic schedule ran last, by consumer.
    pub(super) schedules: HashMap<String, Timestamp>,
    pub(super) audit: Vec<AuditEntry>,
    pub(super) processed: Vec<ProcessedEvent>,
}

/// A letter that was merged into another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alias {
    pub(super) row: LetterId,
    pub(super) generation: u32,
}

impl World {
    pub(super) fn insert(&mut self, row: Row) {
        self.index(&row);
        self.rows.insert(row.letter.id, row);
    }

    pub(super) fn change<T>(
        &mut self,
        id: LetterId,
        change: impl FnOnce(&mut Self, &mut Row) -> T,
    ) -> Option<T> {
        let mut row = self.rows.remove(&id)?;
        self.unindex(&row);
        let answer = change(self, &mut row);
        self.insert(row);
        Some(answer)
    }

    pub(super) fn remove(&mut self, id: LetterId) -> Option<Row> {
        let row = self.rows.remove(&id)?;
        self.unindex(&row);
        if let Some(key) = &row.key {
            self.keys.remove(key);
        }
        for alias in &row.aliases {
            self.aliases.remove(alias);
        }
        Some(row)
    }

    fn index(&mut self, row: &Row) {
        self.by_age.insert(reading::place(&row.letter));
        if let Some(place) = place(row) {
            self.lines.entry(row.letter.consumer.clone()).or_default().insert(place);
        }
    }

    fn unindex(&mut self, row: &Row) {
        self.by_age.remove(&reading::place(&row.letter));
        if let Some(place) = place(row)
            && let Some(line) = self.lines.get_mut(&row.letter.consumer)
        {
            line.remove(&place);
            if line.is_empty() {
                self.lines.remove(&row.letter.consumer);
            }
        }
    }

    /// Every letter that matches, oldest first.
    pub(super) fn matching<'a>(
        &'a self,
        filter: &'a Filter,
    ) -> impl DoubleEndedIterator<Item = &'a DeadLetter> {
        self.by_age
            .iter()
            .filter_map(|(_, id)| self.rows.get(id))
            .map(|row| &row.letter)
            .filter(|letter| filter.matches(letter))
    }

    /// The operation that holds the letter learns that it died anew, and of what.
    pub(super) fn died_anew(&mut self, row: &mut Row, death: &DeadLetter, now: Timestamp) {
        let released = row.item.is_some_and(|(operation, index)| {
            self.outcome(operation, index) != Some(ItemOutcome::Queued)
        });
        if released {
            self.end_item(row, ItemOutcome::FailedAgain, Some(&death.error()), now);
        } else {
            self.end_item(row, ItemOutcome::Skipped, Some("died again before it was sent"), now);
        }
    }
}

fn place(row: &Row) -> Option<Place> {
    row.available_at().map(|at| (at, row.letter.state.created_at, row.letter.id))
}
