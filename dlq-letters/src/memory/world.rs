use std::collections::{BTreeMap, BTreeSet, HashMap};

use dlq_core::store::rules::DedupKey;
use dlq_core::store::{AuditEntry, ItemOutcome, ProcessedEvent, reading};
use dlq_core::{DeadLetter, Filter, History, LetterId, Message, OperationId, Timestamp};

use super::campaign::Campaign;
use crate::{Alias, DocumentKey, Row};

/// The place of a letter in line: when it can be claimed, when it was stored, its id.
pub(super) type DueKey = (Timestamp, Timestamp, LetterId);

/// Everything that is stored. Rows change only through [`insert`](World::insert) and [`take`](World::take), which keep the
/// indexes. The tag of a row is its version.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) rows: BTreeMap<LetterId, Row>,
    pub(super) by_age: BTreeSet<reading::ByAge>,
    /// Letters that are due or whose lease ends, by consumer.
    pub(super) lines: BTreeMap<String, BTreeSet<DueKey>>,
    /// The last fencing token; shared by all letters, so that one that was deleted does not begin again.
    pub(super) fence: u64,
    pub(super) dedup: bool,
    pub(super) keys: HashMap<DedupKey, LetterId>,
    pub(super) aliases: HashMap<LetterId, Alias>,
    /// The aliases that point at a letter.
    pub(super) aliases_of: HashMap<LetterId, BTreeSet<LetterId>>,
    /// In the order in which they were started.
    pub(super) campaigns: Vec<Campaign>,
    pub(super) campaign_index: HashMap<OperationId, usize>,
    /// The last run of the automatic schedule, by consumer.
    pub(super) schedules: HashMap<String, Timestamp>,
    pub(super) documents: BTreeMap<DocumentKey, String>,
    pub(super) audit: Vec<AuditEntry>,
    pub(super) processed: Vec<ProcessedEvent>,
}

impl World {
    /// Writes a row that is not there.
    pub(super) fn insert(&mut self, mut row: Row) {
        row.tag += 1;
        self.by_age.insert(reading::place(&row.letter));
        if let Some(place) = place(&row) {
            self.lines.entry(row.letter.consumer.clone()).or_default().insert(place);
        }
        if let Some(key) = &row.key {
            self.keys.insert(key.clone(), row.letter.id);
        }
        self.rows.insert(row.letter.id, row);
    }

    /// Takes a row out.
    pub(super) fn take(&mut self, id: LetterId) -> Option<Row> {
        let row = self.rows.remove(&id)?;
        self.by_age.remove(&reading::place(&row.letter));
        if let Some(place) = place(&row)
            && let Some(line) = self.lines.get_mut(&row.letter.consumer)
        {
            line.remove(&place);
            if line.is_empty() {
                self.lines.remove(&row.letter.consumer);
            }
        }
        if let Some(key) = &row.key {
            self.keys.remove(key);
        }
        Some(row)
    }

    pub(super) fn set_alias(&mut self, id: LetterId, alias: Alias) {
        if let Some(before) = self.aliases.insert(id, alias)
            && let Some(aliases) = self.aliases_of.get_mut(&before.row)
        {
            aliases.remove(&id);
        }
        self.aliases_of.entry(alias.row).or_default().insert(id);
    }

    /// Removes the aliases that point at a letter.
    pub(super) fn remove_aliases_of(&mut self, id: LetterId) {
        for alias in self.aliases_of.remove(&id).unwrap_or_default() {
            self.aliases.remove(&alias);
        }
    }

    /// The ids of all letters, oldest first.
    pub(super) fn ids_by_age(&self) -> impl DoubleEndedIterator<Item = LetterId> {
        self.by_age.iter().map(|(_, id)| *id)
    }

    /// Every letter that matches, oldest first.
    pub(super) fn matching<'a>(
        &'a self,
        filter: &'a Filter,
    ) -> impl DoubleEndedIterator<Item = &'a DeadLetter> {
        self.ids_by_age()
            .filter_map(|id| self.rows.get(&id))
            .map(|row| &row.letter)
            .filter(|letter| filter.matches(letter))
    }

    pub(super) fn campaign(&self, id: OperationId) -> Option<&Campaign> {
        self.campaign_index.get(&id).map(|index| &self.campaigns[*index])
    }

    pub(super) fn outcome(&self, id: OperationId, index: u64) -> Option<ItemOutcome> {
        let index = usize::try_from(index).ok()?;
        Some(self.campaign(id)?.items.get(index)?.outcome)
    }

    pub(super) fn set_dedup(&mut self, dedup: bool) {
        self.dedup = dedup;
        if dedup {
            let oldest_first: Vec<_> = self.ids_by_age().collect();
            for id in oldest_first {
                // A record is not dead and merges with nothing, so it takes no key.
                if self.rows.get(&id).is_some_and(|row| !row.is_record()) {
                    self.take_key(id);
                }
            }
        }
    }

    /// Gives a row the key of its original message, unless another row has it.
    fn take_key(&mut self, id: LetterId) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let key = DedupKey::of(&row.letter);
        if row.key == key {
            return;
        }
        if let Some(former) = row.key.take() {
            self.keys.remove(&former);
        }
        // A verb that decides over the row as it was would write its former key back.
        row.tag += 1;
        if let Some(key) = key
            && !self.keys.contains_key(&key)
        {
            self.keys.insert(key.clone(), id);
            row.key = Some(key);
        }
    }
}

fn place(row: &Row) -> Option<DueKey> {
    row.available_at().map(|at| (at, row.letter.state.created_at, row.letter.id))
}

/// A copy of a row without payload, key, headers and history.
pub(super) fn head(row: &Row) -> Row {
    let Row { tag, letter, fence, claim, finished, lapses, item, key } = row;
    // What filters and rules look at stays, since verbs decide over heads.
    let mut message = Message::tombstone(letter.message.subject_shared().clone());
    if let Some(id) = letter.message.id() {
        message = message.with_id(id);
    }
    if let Some(event) = letter.message.event() {
        message = message.with_event(event);
    }
    if let Some(at) = letter.message.published_at() {
        message = message.with_published_at(at);
    }
    let mut letter = letter.clone();
    letter.message = message;
    letter.history = History::new();
    let (claim, key) = (claim.clone(), key.clone());
    let (tag, fence, finished, lapses, item) = (*tag, *fence, *finished, *lapses, *item);
    Row { tag, letter, fence, claim, finished, lapses, item, key }
}
