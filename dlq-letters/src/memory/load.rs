//! Loading of the rows that a verb needs.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::reading::ByAge;
use dlq_core::store::rules::DedupKey;
use dlq_core::store::{ItemOutcome, OperationItem, OperationSpec, OperationState};
use dlq_core::{Cursor, DeadLetter, Filter, LetterId, OperationId, Order, Status, Timestamp};

use super::campaign::Campaign;
use super::world::{DueKey, World, head};
use crate::{Alias, Depth, DocumentKey, DocumentRange, Needs, Older, Row, Rows, Select, Selected};

/// Letters that were read, and their versions.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) letters: BTreeMap<LetterId, Option<i64>>,
    pub(super) items: BTreeMap<(OperationId, u64), Option<ItemOutcome>>,
    pub(super) operations: BTreeMap<OperationId, Option<u64>>,
    pub(super) owners: BTreeMap<DedupKey, Option<LetterId>>,
    pub(super) aliases: BTreeMap<LetterId, Option<Alias>>,
    pub(super) aliases_of: BTreeMap<LetterId, Vec<(LetterId, Alias)>>,
    pub(super) schedules: BTreeMap<String, Option<Timestamp>>,
    pub(super) documents: BTreeMap<DocumentKey, Option<String>>,
    pub(super) dedup: Option<bool>,
    pub(super) operation_number: Option<u64>,
}

impl World {
    /// Supplies what is needed.
    pub(super) fn load(&mut self, needs: &Needs, rows: &mut Rows, seen: &mut Seen) {
        for (id, depth) in &needs.letters {
            self.load_letter(*id, *depth, rows, seen);
        }
        for (select, depth) in &needs.selects {
            let found = self.select(select, rows.now());
            // Verbs take a selected item for queued without asking, so the commit compares it as if it had been read.
            for item in &found {
                self.load_letter(item.letter, *depth, rows, seen);
                if let Select::Queued { operation, .. } | Select::Orphans { operation, .. } = select
                {
                    let queued = Some(ItemOutcome::Queued);
                    seen.items.entry((*operation, item.index)).or_insert(queued);
                }
            }
            rows.supply_select(select.clone(), *depth, found);
        }
        for (operation, index) in &needs.items {
            let outcome = self.outcome(*operation, *index);
            seen.items.entry((*operation, *index)).or_insert(outcome);
            rows.supply_item(*operation, *index, outcome);
        }
        for id in &needs.operations {
            let campaign = self.campaign(*id);
            seen.operations.entry(*id).or_insert(campaign.map(|campaign| campaign.version));
            rows.supply_operation(*id, campaign.map(|campaign| campaign.operation.clone()));
        }
        // A state that is only looked at is not noted as seen: it may change before the commit, as in stores with
        // locks.
        for id in &needs.states {
            rows.supply_state(*id, self.campaign(*id).map(|campaign| campaign.operation.state));
        }
        if needs.active {
            let may_release = |campaign: &&Campaign| {
                let state = campaign.operation.state;
                matches!(state, OperationState::Canary | OperationState::Running)
            };
            let active = self.campaigns.iter().filter(may_release).map(|campaign| {
                let operation = campaign.operation.clone();
                seen.operations.entry(operation.id).or_insert(Some(campaign.version));
                operation
            });
            rows.supply_active(active.collect());
        }
        for key in &needs.owners {
            let owner = self.keys.get(key).copied();
            seen.owners.entry(key.clone()).or_insert(owner);
            rows.supply_owner(key.clone(), owner);
        }
        for id in &needs.aliases {
            let alias = self.aliases.get(id).copied();
            seen.aliases.entry(*id).or_insert(alias);
            rows.supply_alias(*id, alias);
        }
        for id in &needs.aliases_of {
            let aliases = self.aliases_of(*id);
            seen.aliases_of.entry(*id).or_insert_with(|| aliases.clone());
            rows.supply_aliases_of(*id, aliases);
        }
        if needs.dedup {
            seen.dedup.get_or_insert(self.dedup);
            rows.supply_dedup(self.dedup);
        }
        for consumer in &needs.schedules {
            let last = self.schedules.get(consumer).copied();
            seen.schedules.entry(consumer.clone()).or_insert(last);
            rows.supply_schedule(consumer.clone(), last);
        }
        for key in &needs.documents {
            let text = self.documents.get(key).cloned();
            seen.documents.entry(key.clone()).or_insert_with(|| text.clone());
            rows.supply_document(key.clone(), text);
        }
        for key in &needs.glimpses {
            rows.supply_glimpse(key.clone(), self.documents.get(key).cloned());
        }
        for kind in &needs.listed {
            let all = self.documents.iter().filter(|(key, _)| key.kind == *kind);
            let all = all.map(|(key, text)| (key.clone(), text.clone())).collect();
            rows.supply_documents(*kind, all);
        }
        for range in &needs.ranges {
            rows.supply_document_names(range.clone(), self.document_names(range));
        }
        if needs.fences > 0 {
            // Tokens that an attempt reserves and does not use are lost. A fence only has to grow.
            let first = self.fence + 1;
            self.fence += needs.fences;
            rows.supply_fences(first..self.fence + 1);
        }
        if needs.operation_number {
            let number = self.campaigns.len() as u64;
            seen.operation_number.get_or_insert(number);
            rows.supply_operation_number(number);
        }
    }

    fn document_names(&self, range: &DocumentRange) -> Vec<String> {
        let DocumentRange { kind, after, order, limit } = range;
        let of_kind = self.documents.keys().filter(|key| key.kind == *kind);
        let names = of_kind.map(|key| &key.name);
        let limit = *limit as usize;
        let is_after = |name: &&String| match (after, order) {
            (None, _) => true,
            (Some(after), Order::OldestFirst) => *name > after,
            (Some(after), Order::NewestFirst) => *name < after,
        };
        match order {
            Order::OldestFirst => names.filter(is_after).take(limit).cloned().collect(),
            Order::NewestFirst => names.rev().filter(is_after).take(limit).cloned().collect(),
        }
    }

    pub(super) fn aliases_of(&self, id: LetterId) -> Vec<(LetterId, Alias)> {
        let aliases = self.aliases_of.get(&id).into_iter().flatten();
        aliases.filter_map(|alias| Some((*alias, *self.aliases.get(alias)?))).collect()
    }

    fn load_letter(&self, id: LetterId, depth: Depth, rows: &mut Rows, seen: &mut Seen) {
        let row = self.rows.get(&id);
        // The first version counts. A letter that is loaded once more, with all of it, may have changed since, and the
        // commit has to notice.
        seen.letters.entry(id).or_insert(row.map(|row| row.tag));
        let row = row.map(|row| if depth == Depth::Whole { row.clone() } else { head(row) });
        rows.supply_letter(id, row, depth);
    }

    fn select(&self, select: &Select, now: Timestamp) -> Vec<Selected> {
        match select {
            Select::Due { filter, limit } => letters(self.due(filter, *limit, now)),
            Select::Queued { operation, filter, from, limit } => {
                let Some(campaign) = self.campaign(*operation) else { return Vec::new() };
                let matches = |item: &Selected| {
                    self.of_item(*operation, item).is_some_and(|row| filter.matches(&row.letter))
                };
                queued(campaign, &filter.consumers, *from)
                    .filter(matches)
                    .take(size(*limit))
                    .collect()
            }
            Select::Orphans { operation, consumers, limit } => {
                let Some(campaign) = self.campaign(*operation) else { return Vec::new() };
                let is_gone = |item: &Selected| self.of_item(*operation, item).is_none();
                queued(campaign, consumers, 0).filter(is_gone).take(size(*limit)).collect()
            }
            Select::Lapsed { operation, limit } => {
                let Some(campaign) = self.campaign(*operation) else { return Vec::new() };
                let sending =
                    campaign.items.iter().filter(|item| item.outcome == ItemOutcome::Sending);
                let item =
                    |item: &OperationItem| Selected { letter: item.letter, index: item.index };
                let has_lapsed = |item: &Selected| {
                    let claim = self.of_item(*operation, item).and_then(|row| row.claim.as_ref());
                    claim.is_some_and(|held| held.sender.is_some() && held.until <= now)
                };
                sending.map(item).filter(has_lapsed).take(size(*limit)).collect()
            }
            Select::Open { operation, limit } => {
                let Some(campaign) = self.campaign(*operation) else { return Vec::new() };
                let with = |wanted| {
                    let items = campaign.items.iter().filter(move |item| item.outcome == wanted);
                    let items =
                        items.map(|item| Selected { letter: item.letter, index: item.index });
                    items.filter(|item| {
                        self.of_item(*operation, item).is_some_and(|row| row.is_idle_replay(now))
                    })
                };
                // Released letters are due, and a consumer may claim them at any moment, so they are taken back first.
                let open = with(ItemOutcome::Released).chain(with(ItemOutcome::Queued));
                open.take(size(*limit)).collect()
            }
            Select::Frozen { spec, after, upto, limit } => {
                let OperationSpec { filter, order, .. } = &**spec;
                let is_meant = |row: &&Row| is_free(&row.letter) && filter.matches(&row.letter);
                letters(
                    walk(self, *order, *after, *upto).filter(is_meant).take(size(*limit)).map(id),
                )
            }
            Select::Eligible { consumer, schedule, limit } => {
                let filter = Filter::new().with_consumer(consumer.clone());
                let eligible = self.matching(&filter).filter(|letter| schedule.takes(letter));
                letters(eligible.take(size(*limit)).map(|letter| letter.id).collect::<Vec<_>>())
            }
            Select::Matching { filter, older, order, after, upto, limit } => {
                let is_meant = |row: &&Row| {
                    filter.matches(&row.letter)
                        && older.is_none_or(|older| is_older(&row.letter, older))
                };
                letters(
                    walk(self, *order, *after, *upto).filter(is_meant).take(size(*limit)).map(id),
                )
            }
        }
    }

    /// The letter of an item, unless it is gone or out of the operation.
    fn of_item(&self, operation: OperationId, item: &Selected) -> Option<&Row> {
        self.rows.get(&item.letter).filter(|row| row.item == Some((operation, item.index)))
    }

    /// The letters that can be claimed now, first come first, at most `limit`.
    fn due(&self, filter: &Filter, limit: u64, now: Timestamp) -> Vec<LetterId> {
        let limit = size(limit);
        let take = |line: &BTreeSet<DueKey>| -> Vec<DueKey> {
            let due = line.iter().take_while(|(at, ..)| *at <= now);
            let matches = |id| self.rows.get(id).is_some_and(|row| filter.matches(&row.letter));
            due.filter(|(.., id)| matches(id)).take(limit).copied().collect()
        };
        // Each line is read up to the whole limit, since all letters that are due first may be of one consumer.
        let mut places: Vec<DueKey> = if filter.consumers.is_empty() {
            self.lines.values().flat_map(take).collect()
        } else {
            let names: BTreeSet<_> = filter.consumers.iter().collect();
            names.into_iter().filter_map(|name| self.lines.get(name)).flat_map(take).collect()
        };
        places.sort_unstable();
        places.truncate(limit);
        places.into_iter().map(|(.., id)| id).collect()
    }
}

/// The rows from `after` to `upto`, in an order.
fn walk(
    world: &World,
    order: Order,
    after: Option<Cursor>,
    upto: Option<Cursor>,
) -> Box<dyn Iterator<Item = &Row> + '_> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let place = |cursor: Cursor| (cursor.created_at, cursor.id);
    let after = after.map_or(Unbounded, |cursor| Excluded(place(cursor)));
    let upto = upto.map_or(Unbounded, |cursor| Included(place(cursor)));
    let row = |(_, id): &ByAge| world.rows.get(id);
    match order {
        Order::OldestFirst if is_range(after, upto) => {
            Box::new(world.by_age.range((after, upto)).filter_map(row))
        }
        Order::NewestFirst if is_range(upto, after) => {
            Box::new(world.by_age.range((upto, after)).rev().filter_map(row))
        }
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns true if the map takes it for a range.
fn is_range(from: std::ops::Bound<ByAge>, to: std::ops::Bound<ByAge>) -> bool {
    use std::ops::Bound::{Excluded, Included};
    // The map panics on a range whose ends cross, and on one that is empty and excludes both. A walk that has come to
    // its end asks for such a one.
    match (from, to) {
        (Included(from) | Excluded(from), Included(to) | Excluded(to)) => from < to,
        _ => true,
    }
}

fn queued<'a>(
    campaign: &'a Campaign,
    consumers: &'a [String],
    from: u64,
) -> impl Iterator<Item = Selected> + 'a {
    let mut from = size(from);
    std::iter::from_fn(move || {
        let index = campaign.next_queued(consumers, from)?;
        from = index + 1;
        let item = &campaign.items[index];
        Some(Selected { letter: item.letter, index: item.index })
    })
}

pub(super) fn is_free(letter: &DeadLetter) -> bool {
    letter.state.status == Status::Pending && letter.state.operation.is_none()
}

fn is_older(letter: &DeadLetter, older: Older) -> bool {
    let is_wanted = older.include_unresolved || letter.state.status == Status::Resolved;
    is_wanted && letter.state.updated_at <= older.latest
}

fn id(row: &Row) -> LetterId {
    row.letter.id
}

fn letters(ids: impl IntoIterator<Item = LetterId>) -> Vec<Selected> {
    ids.into_iter().map(|letter| Selected { letter, index: 0 }).collect()
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
