use std::collections::BTreeMap;
use std::ops::Bound;

use super::super::{Group, Letters, Stats};
use super::MemoryStore;
use super::world::World;
use crate::{
    Cursor, DeadLetter, Filter, Fingerprint, LetterId, LetterSummary, Order, Page, PageRequest,
    StoreError,
};

impl Letters for MemoryStore {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.world().rows.get(&id).map(|row| row.letter.clone()))
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        let digits = digits.to_ascii_lowercase();
        let Some(from) = first_with(&digits) else { return Ok(Vec::new()) };
        let world = self.world();
        let found = world.rows.range(from..).map(|(id, _)| *id);
        let found = found.take_while(|id| id.to_string().starts_with(&digits));
        Ok(found.take(limit as usize).collect())
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        Ok(self.world().page(&filter, page))
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        Ok(self.world().matching(&filter).count() as u64)
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        Ok(groups(self.world().matching(&filter), limit))
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        let mut stats = Stats::default();
        self.world().matching(&filter).for_each(|letter| stats.add(&letter.summary()));
        Ok(stats)
    }
}

impl World {
    fn page(&self, filter: &Filter, page: PageRequest) -> Page {
        let limit = page.limit.max(1) as usize;
        let after = page.after.map_or(Bound::Unbounded, Bound::Excluded);
        let letters = |places: &mut dyn Iterator<Item = &Cursor>| -> Vec<LetterSummary> {
            places
                .filter_map(|place| self.rows.get(&place.id))
                .filter(|row| filter.matches(&row.letter))
                .take(limit + 1)
                .map(|row| row.letter.summary())
                .collect()
        };
        let mut letters = match page.order {
            Order::NewestFirst => letters(&mut self.by_age.range((Bound::Unbounded, after)).rev()),
            Order::OldestFirst => letters(&mut self.by_age.range((after, Bound::Unbounded))),
        };
        let more = letters.len() > limit;
        letters.truncate(limit);
        let next = letters
            .last()
            .filter(|_| more)
            .map(|last| Cursor { created_at: last.state.created_at, id: last.id });
        Page { letters, next }
    }
}

/// The groups of `letters`, which come oldest first.
fn groups<'a>(letters: impl Iterator<Item = &'a DeadLetter>, limit: u32) -> Vec<Group> {
    struct Seen<'a> {
        count: u64,
        first: &'a DeadLetter,
        last: &'a DeadLetter,
    }
    let mut seen: BTreeMap<(&Fingerprint, &str), Seen<'_>> = BTreeMap::new();
    for letter in letters {
        seen.entry((&letter.fingerprint, &letter.consumer))
            .and_modify(|group| {
                group.count += 1;
                group.last = letter;
            })
            .or_insert(Seen { count: 1, first: letter, last: letter });
    }
    let mut groups: Vec<_> = seen.into_iter().collect();
    // Stable: groups of the same size stay ordered by fingerprint, then consumer.
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups.truncate(limit as usize);
    let group = |((fingerprint, consumer), group): ((&Fingerprint, &str), Seen<'_>)| Group {
        fingerprint: *fingerprint,
        consumer: consumer.to_owned(),
        count: group.count,
        first_seen: group.first.state.created_at,
        last_seen: group.last.state.created_at,
        sample: group.last.summary(),
    };
    groups.into_iter().map(group).collect()
}

/// The smallest id that begins with these digits; `None` when none can.
fn first_with(digits: &str) -> Option<LetterId> {
    if digits.len() > 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    format!("{digits:0<32}").parse().ok()
}
