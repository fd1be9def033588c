use std::collections::BTreeMap;

use super::super::rules::{self, DedupKey};
use super::super::{Actor, AuditEntry, ItemOutcome, Receipt};
use super::world::{Alias, World};
use crate::{DeadLetter, LetterId, Status, StoreError, StoreErrorKind, Timestamp};

impl World {
    pub(super) fn set_dedup(&mut self, dedup: bool) {
        self.dedup = dedup;
        if dedup {
            let oldest_first: Vec<_> = self.by_age.iter().map(|(_, id)| *id).collect();
            for id in oldest_first {
                if self.rows.get(&id).is_some_and(|row| !row.is_record()) {
                    self.take_key(id);
                }
            }
        }
    }

    /// A death was written to the row: it takes the key of its original message, unless another row has it.
    pub(super) fn take_key(&mut self, id: LetterId) {
        let Some(row) = self.rows.get_mut(&id).filter(|_| self.dedup) else { return };
        let key = DedupKey::of(&row.letter);
        if row.key == key {
            return;
        }
        if let Some(former) = row.key.take() {
            self.keys.remove(&former);
        }
        if let Some(key) = key
            && !self.keys.contains_key(&key)
        {
            self.keys.insert(key.clone(), id);
            row.key = Some(key);
        }
    }

    /// The answer for a death of a letter that was merged before.
    pub(super) fn merge_known(&mut self, letter: &DeadLetter, now: Timestamp) -> Option<Receipt> {
        let alias = *self.aliases.get(&letter.id)?;
        if letter.generation <= alias.generation {
            return Some(Receipt::Merged(alias.row));
        }
        Some(self.merge(alias.row, letter.clone(), now))
    }

    pub(super) fn merge(&mut self, owner: LetterId, death: DeadLetter, now: Timestamp) -> Receipt {
        let alias = Alias { row: owner, generation: death.generation };
        let id = death.id;
        let known = self.aliases.insert(id, alias).is_some();
        self.change(owner, |world, row| {
            world.died_anew(row, &death, now);
            row.void();
            if !known {
                row.aliases.push(id);
            }
            rules::merge(&mut row.letter, death, now);
        });
        self.take_key(owner);
        Receipt::Merged(owner)
    }

    pub(super) fn deduplicate(&mut self, force: bool, now: Timestamp) -> Result<u64, StoreError> {
        let mut groups: BTreeMap<DedupKey, Vec<LetterId>> = BTreeMap::new();
        for (_, id) in &self.by_age {
            let Some(row) = self.rows.get(id) else { continue };
            let left_alone = row.letter.state.status == Status::Retrying || row.is_held(now);
            if let Some(key) = DedupKey::of(&row.letter).filter(|_| !left_alone) {
                groups.entry(key).or_default().push(*id);
            }
        }
        let removed: usize = groups.values().map(|group| group.len() - 1).sum();
        let all = self.rows.len();
        if removed * 2 > all && !force {
            return Err(StoreError::new(StoreErrorKind::Refused, "deduplicate").with_detail(format!(
                "{removed} of {all} letters would be removed, which is more than half; force it if that is meant"
            )));
        }
        for mut group in groups.into_values() {
            if let Some(newest) = group.pop() {
                self.collapse(newest, group.into_iter(), now);
            }
        }
        self.set_dedup(true);
        self.audit.push(AuditEntry {
            at: now,
            by: Actor::new("store"),
            action: "deduplicate".to_owned(),
            subject: serde_json::json!({ "force": force }).to_string(),
            affected: removed as u64,
            operation: None,
        });
        Ok(removed as u64)
    }

    fn collapse(&mut self, kept: LetterId, older: impl Iterator<Item = LetterId>, now: Timestamp) {
        for id in older {
            let aliases: Vec<_> = self
                .rows
                .get(&id)
                .into_iter()
                .flat_map(|row| &row.aliases)
                .filter_map(|alias| Some((*alias, self.aliases.get(alias)?.generation)))
                .collect();
            let Some(mut gone) = self.remove(id) else { continue };
            self.end_item(&mut gone, ItemOutcome::Skipped, Some("merged into another letter"), now);
            let aliases: Vec<_> =
                aliases.into_iter().chain([(id, gone.letter.generation)]).collect();
            self.change(kept, |world, row| {
                for (alias, generation) in aliases {
                    world.aliases.insert(alias, Alias { row: kept, generation });
                    row.aliases.push(alias);
                }
                if gone.letter.state.status == Status::Quarantined
                    && row.letter.state.status != Status::Quarantined
                {
                    let why = Some("merged with a letter that is quarantined");
                    world.end_item(row, ItemOutcome::Skipped, why, now);
                    row.void();
                    rules::put_back(&mut row.letter, Status::Quarantined, now);
                }
                let (state, other) = (&mut row.letter.state, &gone.letter.state);
                state.seen = state.seen.saturating_add(other.seen);
                state.retry_count = state.retry_count.saturating_add(other.retry_count);
                state.replays = state.replays.saturating_add(other.replays);
                state.created_at = state.created_at.min(other.created_at);
                state.last_retry_at = state.last_retry_at.max(other.last_retry_at);
                state.updated_at = now;
            });
        }
    }
}
