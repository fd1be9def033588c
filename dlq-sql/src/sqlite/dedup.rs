use std::collections::HashMap;

use dlq_core::store::rules::DedupKey;
use dlq_core::store::{Actor, ItemOutcome, rules};
use dlq_core::{LetterId, Status, StoreErrorKind, Timestamp};
use dlq_letters::{Changed, Row};

use super::codec::read_head;
use super::load;
use super::query::Query;
use super::unit::Unit;
use crate::error::{Fault, Result};
use crate::keys;

impl Unit<'_> {
    pub(super) fn set_dedup(&mut self, is_dedup: bool) -> Result<()> {
        if self.is_dedup()? == is_dedup {
            return Ok(());
        }
        self.set_dedup_flag(is_dedup)?;
        if is_dedup {
            for id in self.oldest_first()? {
                if let Some(mut row) = self.head(id)?
                    && !row.is_record()
                {
                    self.take_key(&mut row)?;
                }
            }
        }
        Ok(())
    }

    fn oldest_first(&self) -> Result<Vec<LetterId>> {
        let sql = format!(
            "SELECT letter_id FROM {} ORDER BY created_at, letter_id",
            self.names().letters
        );
        Query::new(sql).all(self.conn(), |row| Ok(LetterId::from_bytes(row.get(0)?)))
    }

    /// A death was written to the row: it takes the key of its original message, unless another row has it.
    pub(super) fn take_key(&mut self, row: &mut Row) -> Result<()> {
        if !self.is_dedup()? {
            return Ok(());
        }
        let key = DedupKey::of(&row.letter);
        if row.key == key {
            return Ok(());
        }
        let free = match key {
            Some(key) if load::owner(self.conn(), self.names(), &key)?.is_none() => Some(key),
            _ => None,
        };
        let sql = format!("UPDATE {} SET dedup_key = ?1 WHERE seq = ?2", self.names().letters);
        self.conn().prepare_cached(&sql)?.execute((free.as_ref().map(keys::encoded), row.tag))?;
        row.key = free;
        Ok(())
    }

    fn set_alias(&self, alias: LetterId, row: LetterId, generation: u32) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (alias, letter_id, generation) VALUES (?1, ?2, ?3) ON CONFLICT (alias) \
             DO UPDATE SET letter_id = excluded.letter_id, generation = excluded.generation",
            self.names().aliases
        );
        let binds = (alias.as_bytes(), row.as_bytes(), generation);
        self.conn().prepare_cached(&sql)?.execute(binds)?;
        Ok(())
    }

    pub(super) fn deduplicate(&mut self, force: bool, now: Timestamp) -> Result<u64> {
        let mut groups: Vec<Vec<LetterId>> = Vec::new();
        let mut places: HashMap<DedupKey, usize> = HashMap::new();
        let mut all = 0_u64;
        let sql = format!("{} ORDER BY t.created_at, t.letter_id", self.names().select_head);
        let mut statement = self.conn().prepare_cached(&sql)?;
        let mut rows = statement.raw_query();
        while let Some(record) = rows.next()? {
            all += 1;
            let row = read_head(record)?;
            let is_left_alone = row.letter.state.status == Status::Retrying || row.is_held(now);
            if let Some(key) = DedupKey::of(&row.letter).filter(|_| !is_left_alone) {
                let place = *places.entry(key).or_insert_with(|| {
                    groups.push(Vec::new());
                    groups.len() - 1
                });
                groups[place].push(row.letter.id);
            }
        }
        drop(rows);
        let removed: u64 = groups.iter().map(|group| group.len() as u64 - 1).sum();
        if removed * 2 > all && !force {
            return Err(Fault::new(
                StoreErrorKind::Refused,
                format!(
                    "{removed} of {all} letters would be removed, which is more than half; force it if that is meant"
                ),
            ));
        }
        for mut group in groups {
            if let Some(newest) = group.pop() {
                self.collapse(newest, group, now)?;
            }
        }
        // Also where it was on: a key may have become free.
        self.set_dedup_flag(false)?;
        self.set_dedup(true)?;
        let subject = serde_json::json!({ "force": force }).to_string();
        self.note_action(&Actor::new("store"), "deduplicate", subject, removed, now)?;
        Ok(removed)
    }

    fn collapse(&mut self, kept: LetterId, older: Vec<LetterId>, now: Timestamp) -> Result<()> {
        if older.is_empty() {
            return Ok(());
        }
        let Some(mut row) = self.head(kept)? else { return Ok(()) };
        for id in older {
            let Some(mut gone) = self.head(id)? else { continue };
            let why = Some("merged into another letter");
            self.end_item(&mut gone, ItemOutcome::Skipped, why, now)?;
            let sql =
                format!("UPDATE {} SET letter_id = ?1 WHERE letter_id = ?2", self.names().aliases);
            self.conn().prepare_cached(&sql)?.execute((kept.as_bytes(), id.as_bytes()))?;
            self.set_alias(id, kept, gone.letter.generation)?;
            if gone.letter.state.status == Status::Quarantined
                && row.letter.state.status != Status::Quarantined
            {
                let why = Some("merged with a letter that is quarantined");
                self.end_item(&mut row, ItemOutcome::Skipped, why, now)?;
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
            self.remove(gone)?;
        }
        let sql = format!("UPDATE {} SET created_at = ?1 WHERE seq = ?2", self.names().letters);
        let created_at = row.letter.state.created_at.as_nanos();
        self.conn().prepare_cached(&sql)?.execute((created_at, row.tag))?;
        self.update(&mut row, Changed::State)
    }
}
