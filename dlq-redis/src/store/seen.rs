//! Rows that were loaded for a verb, with the version of each.

use std::collections::BTreeMap;

use dlq_core::store::rules::DedupKey;
use dlq_core::{LetterId, OperationId, Timestamp};
use dlq_letters::{Alias, Depth, DocumentKey, DocumentKind, DocumentRange, Rows, Select, Selected};

use super::codec::StoredRow;
use super::fault::Result;
use super::names::Bytes;
use super::ops::{Record, Stored};
use super::search::Letter;

/// Depth at which an operation was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watch {
    /// It must be able to release as much as it was, whatever became of its letters.
    Steering,
    /// It must be as it was.
    Whole,
}

/// Rows that were looked at, with the version of each. An empty version is an absence.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) letters: BTreeMap<LetterId, Bytes>,
    /// The records of items.
    pub(super) items: BTreeMap<(OperationId, u64), Bytes>,
    pub(super) operations: BTreeMap<OperationId, (Watch, Option<Stored>)>,
    /// States of operations that were only looked at.
    pub(super) states: BTreeMap<OperationId, Bytes>,
    pub(super) owners: BTreeMap<DedupKey, Bytes>,
    pub(super) aliases: BTreeMap<LetterId, Bytes>,
    pub(super) aliases_of: BTreeMap<LetterId, Vec<LetterId>>,
    pub(super) schedules: BTreeMap<String, Bytes>,
    pub(super) documents: BTreeMap<DocumentKey, Bytes>,
    pub(super) dedup: Option<Bytes>,
    pub(super) operation_number: Option<u64>,
    /// The first fencing token that was not supplied yet.
    pub(super) fence: u64,
}

/// A former letter, and its alias as it is stored.
type Former = (LetterId, Option<Bytes>);

/// Findings of one look.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) now: Timestamp,
    pub(super) letters: Vec<(Letter, Depth)>,
    pub(super) selects: Vec<(Select, Depth, Vec<Selected>)>,
    pub(super) items: Vec<((OperationId, u64), Option<Bytes>)>,
    pub(super) operations: Vec<(OperationId, Option<Stored>)>,
    pub(super) states: Vec<(OperationId, Option<Bytes>)>,
    pub(super) active: Option<Vec<Stored>>,
    pub(super) owners: Vec<(DedupKey, Option<Bytes>)>,
    pub(super) aliases: Vec<(LetterId, Option<Bytes>)>,
    pub(super) aliases_of: Vec<(LetterId, Vec<Former>)>,
    pub(super) schedules: Vec<(String, Option<Bytes>)>,
    pub(super) documents: Vec<(DocumentKey, Option<Bytes>)>,
    pub(super) glimpses: Vec<(DocumentKey, Option<Bytes>)>,
    pub(super) listed: Vec<(DocumentKind, Vec<(DocumentKey, String)>)>,
    pub(super) ranges: Vec<(DocumentRange, Vec<String>)>,
    pub(super) dedup: Option<Option<Bytes>>,
    pub(super) operation_number: Option<u64>,
    /// The least fencing token that is greater than all before, and how many are needed.
    pub(super) fence: u64,
    pub(super) fences: u64,
}

impl Loaded {
    /// Supplies `rows`, and remembers the versions.
    pub(super) fn supply(self, rows: &mut Rows, seen: &mut Seen) -> Result<()> {
        for ((id, found), depth) in self.letters {
            seen.letter(id, found.as_ref(), rows)?;
            rows.supply_letter(id, found.map(|found| found.row), depth);
        }
        for (select, depth, found) in self.selects {
            rows.supply_select(select, depth, found);
        }
        for (place, record) in self.items {
            seen.item(place, record, rows)?;
        }
        for (id, stored) in self.operations {
            rows.supply_operation(id, stored.as_ref().map(|it| it.operation.clone()));
            seen.operation(id, Watch::Whole, stored);
        }
        for (id, state) in self.states {
            seen.state(id, state, rows)?;
        }
        if let Some(active) = self.active {
            rows.supply_active(active.iter().map(|it| it.operation.clone()).collect());
            for stored in active {
                seen.operation(stored.operation.id, Watch::Steering, Some(stored));
            }
        }
        for (key, owner) in self.owners {
            let id = owner.as_deref().and_then(letter_id);
            // An absence is compared too: two calls that find a key free may not both take it.
            seen.owners.entry(key.clone()).or_insert_with(|| owner.unwrap_or_default());
            rows.supply_owner(key, id);
        }
        for (id, alias) in self.aliases {
            let row = alias.as_deref().and_then(read_alias);
            seen.aliases.entry(id).or_insert_with(|| alias.unwrap_or_default());
            rows.supply_alias(id, row);
        }
        for (id, aliases) in self.aliases_of {
            let all = aliases
                .iter()
                .filter_map(|(alias, text)| Some((*alias, text.as_deref().and_then(read_alias)?)));
            rows.supply_aliases_of(id, all.collect());
            let ids = aliases.iter().map(|(alias, _)| *alias).collect();
            seen.aliases_of.entry(id).or_insert(ids);
            for (alias, text) in aliases {
                seen.aliases.entry(alias).or_insert_with(|| text.unwrap_or_default());
            }
        }
        for (consumer, last) in self.schedules {
            let at = last.as_deref().and_then(super::ops::time);
            seen.schedules.entry(consumer.clone()).or_insert_with(|| last.unwrap_or_default());
            rows.supply_schedule(consumer, at);
        }
        let utf8 = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        for (key, text) in self.glimpses {
            // A glimpse is not compared: what a verb only shows may change meanwhile.
            rows.supply_glimpse(key, text.as_deref().map(utf8));
        }
        for (key, text) in self.documents {
            let read = text.as_deref().map(utf8);
            seen.documents.entry(key.clone()).or_insert_with(|| text.unwrap_or_default());
            rows.supply_document(key, read);
        }
        for (kind, documents) in self.listed {
            rows.supply_documents(kind, documents);
        }
        for (range, names) in self.ranges {
            rows.supply_document_names(range, names);
        }
        if let Some(dedup) = self.dedup {
            rows.supply_dedup(dedup.as_deref() == Some(b"1"));
            seen.dedup.get_or_insert_with(|| dedup.unwrap_or_default());
        }
        if let Some(number) = self.operation_number {
            rows.supply_operation_number(number);
            seen.operation_number.get_or_insert(number);
        }
        if self.fences > 0 {
            // Each look computes the least token anew, and no token is supplied twice in a call.
            let first = self.fence.max(seen.fence);
            seen.fence = first + self.fences;
            rows.supply_fences(first..seen.fence);
        }
        Ok(())
    }
}

impl Seen {
    fn letter(&mut self, id: LetterId, found: Option<&StoredRow>, rows: &mut Rows) -> Result<()> {
        let version = found.map(|found| found.version.clone()).unwrap_or_default();
        // The first version counts: a later one would hide that the letter has changed since the verb looked at it.
        self.letters.entry(id).or_insert(version);
        let Some(found) = found else { return Ok(()) };
        // Whoever changes a letter tells the operation that holds it.
        if let Some((operation, index)) = found.row.item {
            self.item((operation, index), found.item.clone(), rows)?;
            self.state(operation, found.operation.clone(), rows)?;
        }
        Ok(())
    }

    fn item(
        &mut self,
        place: (OperationId, u64),
        record: Option<Bytes>,
        rows: &mut Rows,
    ) -> Result<()> {
        let outcome = record.as_deref().map(|it| Record::read(it)?.outcome()).transpose()?;
        self.items.entry(place).or_insert_with(|| record.unwrap_or_default());
        rows.supply_item(place.0, place.1, outcome);
        Ok(())
    }

    fn state(&mut self, id: OperationId, state: Option<Bytes>, rows: &mut Rows) -> Result<()> {
        let word = state.as_deref().map(|state| String::from_utf8_lossy(state).into_owned());
        let word = word.map(|word| word.parse()).transpose();
        let word = word.map_err(|error| {
            super::fault::Fault::corrupt(&format!("state of operation {id}"), error)
        })?;
        self.states.entry(id).or_insert_with(|| state.unwrap_or_default());
        rows.supply_state(id, word);
        Ok(())
    }

    /// The first look counts; the stricter one, if there are several.
    pub(super) fn operation(&mut self, id: OperationId, watch: Watch, stored: Option<Stored>) {
        let known = self.operations.entry(id).or_insert((watch, stored));
        known.0 = known.0.max(watch);
    }
}

pub(super) fn letter_id(bytes: &[u8]) -> Option<LetterId> {
    bytes.try_into().ok().map(LetterId::from_bytes)
}

/// An alias as it is stored: the letter, then the generation.
pub(super) fn write_alias(alias: Alias) -> Bytes {
    [&alias.row.as_bytes()[..], &alias.generation.to_be_bytes()].concat()
}

fn read_alias(bytes: &[u8]) -> Option<Alias> {
    let (row, generation) = bytes.split_at_checked(16)?;
    let generation = u32::from_be_bytes(generation.try_into().ok()?);
    Some(Alias { row: letter_id(row)?, generation })
}
