//! One letter for each original message, where that is asked for: who has the key of an original, and which letters
//! were merged into which.

use std::collections::BTreeMap;

use dlq_core::store::{Receipt, rules};
use dlq_core::{DeadLetter, LetterId, Timestamp};

use super::PostgresStore;
use super::batch::Batch;
use super::call::transact;
use super::codec::{Fields, read_head};
use super::query::Query;
use super::unit::Unit;
use crate::error::Result;
use crate::row::{Changed, Row, dedup_key};
use crate::values::{Put as _, Take as _};

/// How many letters are given keys at a time.
const PAGE: u32 = 5_000;

/// What was looked up of aliases and keys, and what is to be written of them.
#[derive(Default)]
pub(super) struct Originals {
    /// The row that a merged letter went into, and which of its deaths.
    aliases: BTreeMap<LetterId, Option<(LetterId, u32)>>,
    new_aliases: BTreeMap<LetterId, (LetterId, u32)>,
    /// Whose row has a key.
    owners: BTreeMap<Vec<u8>, Option<LetterId>>,
    new_keys: BTreeMap<LetterId, Option<Vec<u8>>>,
}

impl PostgresStore {
    pub(super) async fn set_dedup(&self, is_dedup: bool) -> Result<()> {
        transact!(self, unit => async {
            if unit.dedup_flag().await? == is_dedup {
                return Ok(());
            }
            unit.switch_dedup(is_dedup).await
        })
    }
}

impl Unit<'_> {
    /// Whether letters of the same original message are kept as one.
    pub(super) async fn is_dedup(&mut self) -> Result<bool> {
        if let Some(is_dedup) = self.is_dedup {
            return Ok(is_dedup);
        }
        // Who switches it holds off all who write. This one waits here, and not after it has looked.
        let lock = format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", self.names().letters);
        Query::new(lock).run(self.conn()).await?;
        let is_dedup = self.dedup_flag().await?;
        self.is_dedup = Some(is_dedup);
        Ok(is_dedup)
    }

    /// The same for who writes no letters: it may be switched at any moment.
    pub(super) async fn dedup_flag(&mut self) -> Result<bool> {
        let sql = format!("SELECT value <> 0 FROM {} WHERE name = 'dedup'", self.names().meta);
        let found = Query::new(sql).first(self.conn(), |row| Fields::of(row).flag()).await?;
        Ok(found == Some(true))
    }

    pub(super) async fn set_dedup_flag(&mut self, is_dedup: bool) -> Result<()> {
        Query::new(format!("UPDATE {} SET value = ", self.names().meta))
            .bind(i64::from(is_dedup))
            .push(" WHERE name = 'dedup'")
            .run(self.conn())
            .await?;
        self.is_dedup = Some(is_dedup);
        Ok(())
    }

    /// Nobody writes letters until the call is done: each write looks at the switch.
    pub(super) async fn switch_dedup(&mut self, is_dedup: bool) -> Result<()> {
        let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", self.names().letters);
        Query::new(lock).run(self.conn()).await?;
        self.set_dedup_flag(is_dedup).await?;
        if is_dedup {
            self.give_keys().await?;
        }
        Ok(())
    }

    /// The oldest of each original gets its key, unless another has it.
    async fn give_keys(&mut self) -> Result<()> {
        let names = self.names();
        let mut after: Option<(Timestamp, LetterId)> = None;
        loop {
            let mut query = Query::new(&names.select_head);
            if let Some((at, id)) = after {
                query = query.push(" WHERE (t.created_at, t.letter_id) > (").bind(at);
                query = query.push(", ").bind(id).push(")");
            }
            let query = query.push(" ORDER BY t.created_at, t.letter_id LIMIT ").bind(PAGE);
            let rows = query.all(self.conn(), read_head).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((last.letter.state.created_at, last.letter.id));
            let rows: Vec<_> = rows.into_iter().filter(|row| !row.is_record()).collect();
            self.fetch_originals(rows.iter().map(|row| &row.letter)).await?;
            for row in &rows {
                self.take_key(row).await?;
            }
            self.write_originals().await?;
            self.originals = Originals::default();
        }
    }

    /// Looks up, all at once, what is known of the originals of these letters.
    pub(super) async fn fetch_originals<'l>(
        &mut self,
        letters: impl Iterator<Item = &'l DeadLetter> + Clone,
    ) -> Result<()> {
        let known = &self.originals;
        let ids = letters.clone().map(|letter| letter.id);
        let ids: Vec<_> = ids.filter(|id| !known.aliases.contains_key(id)).collect();
        let keys = letters.filter_map(dedup_key);
        let keys: Vec<_> = keys.filter(|key| !known.owners.contains_key(key)).collect();
        if !ids.is_empty() {
            self.originals.aliases.extend(ids.iter().map(|id| (*id, None)));
            let sql = format!(
                "SELECT alias, letter_id, generation FROM {} WHERE alias = ANY(",
                self.names().aliases
            );
            let found = Query::new(sql).bind(ids).push(")").all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                Ok((fields.letter()?, Some((fields.letter()?, fields.count()?))))
            });
            let found = found.await?;
            self.originals.aliases.extend(found);
        }
        if !keys.is_empty() {
            self.originals.owners.extend(keys.iter().map(|key| (key.clone(), None)));
            let sql = format!(
                "SELECT dedup_key, letter_id FROM {} WHERE dedup_key IS NOT NULL \
                 AND sha256(dedup_key) = ANY(ARRAY(SELECT sha256(k) FROM unnest(",
                self.names().letters
            );
            let found =
                Query::new(sql).bind(keys).push("::bytea[]) AS k))").all(self.conn(), |record| {
                    let mut fields = Fields::of(record);
                    Ok((fields.bytes_or_none()?.unwrap_or_default(), Some(fields.letter()?)))
                });
            let found = found.await?;
            self.originals.owners.extend(found);
        }
        Ok(())
    }

    /// A death was written to the row: it takes the key of its original message, unless another row has it.
    pub(super) async fn take_key(&mut self, row: &Row) -> Result<()> {
        if !self.is_dedup().await? {
            return Ok(());
        }
        let id = row.letter.id;
        let before = self.originals.new_keys.get(&id).cloned().unwrap_or_else(|| row.key.clone());
        let key = dedup_key(&row.letter);
        if before == key {
            return Ok(());
        }
        self.fetch_originals([&row.letter].into_iter()).await?;
        let free = key.filter(|key| matches!(self.originals.owners.get(key), Some(None)));
        if let Some(before) = before {
            self.originals.owners.insert(before, None);
        }
        if let Some(key) = &free {
            self.originals.owners.insert(key.clone(), Some(id));
        }
        self.originals.new_keys.insert(id, free);
        Ok(())
    }

    /// The row of the same original message.
    pub(super) async fn owner_of(&mut self, letter: &DeadLetter) -> Result<Option<LetterId>> {
        if !self.is_dedup().await? {
            return Ok(None);
        }
        self.fetch_originals([letter].into_iter()).await?;
        let owner = dedup_key(letter).and_then(|key| self.originals.owners.get(&key).copied());
        Ok(owner.flatten())
    }

    /// The row that a merged letter went into, and which of its deaths.
    pub(super) async fn alias(&mut self, letter: &DeadLetter) -> Result<Option<(LetterId, u32)>> {
        self.fetch_originals([letter].into_iter()).await?;
        Ok(self.originals.aliases.get(&letter.id).copied().flatten())
    }

    pub(super) fn set_alias(&mut self, alias: LetterId, row: LetterId, generation: u32) {
        self.originals.aliases.insert(alias, Some((row, generation)));
        self.originals.new_aliases.insert(alias, (row, generation));
    }

    /// The answer for a death of a letter that was merged before.
    pub(super) async fn merge_known(&mut self, letter: &DeadLetter) -> Result<Option<Receipt>> {
        let Some((row, generation)) = self.alias(letter).await? else { return Ok(None) };
        if letter.generation <= generation {
            return Ok(Some(Receipt::Merged(row)));
        }
        self.merge(row, letter.clone()).await.map(Some)
    }

    pub(super) async fn merge(&mut self, owner: LetterId, death: DeadLetter) -> Result<Receipt> {
        self.set_alias(death.id, owner, death.generation);
        if let Some(mut row) = self.whole(owner).await? {
            self.died_anew(&mut row, &death).await?;
            row.void();
            rules::merge(&mut row.letter, death, self.now());
            self.take_key(&row).await?;
            self.update(row, Changed::All);
        }
        Ok(Receipt::Merged(owner))
    }

    /// Writes keys and aliases; the rows have been written.
    pub(super) async fn write_originals(&mut self) -> Result<()> {
        let keys = std::mem::take(&mut self.originals.new_keys);
        // Those that are given up first, so that no two rows have one at any moment.
        for is_given_up in [true, false] {
            let mut batch = Batch::default();
            let changed: Vec<_> =
                keys.iter().filter(|(_, key)| key.is_none() == is_given_up).collect();
            for (id, key) in &changed {
                let row = batch.row();
                row.bytes(Some(id.as_bytes()))?;
                row.bytes(key.as_deref())?;
            }
            if !changed.is_empty() {
                let sql = format!("UPDATE {} t SET dedup_key = u.key FROM ", self.names().letters);
                let update = Query::new(sql).batch(batch)?;
                update
                    .push(" AS u (letter_id, key) WHERE t.letter_id = u.letter_id")
                    .run(self.conn())
                    .await?;
            }
        }
        let aliases = std::mem::take(&mut self.originals.new_aliases);
        if !aliases.is_empty() {
            let mut batch = Batch::default();
            for (alias, (letter, generation)) in &aliases {
                let row = batch.row();
                row.bytes(Some(alias.as_bytes()))?;
                row.bytes(Some(letter.as_bytes()))?;
                row.count(*generation)?;
            }
            let sql = format!(
                "INSERT INTO {} (alias, letter_id, generation) SELECT * FROM ",
                self.names().aliases
            );
            let insert = Query::new(sql).batch(batch)?.push(
                " AS u ON CONFLICT (alias) DO UPDATE SET letter_id = excluded.letter_id, generation = excluded.generation",
            );
            insert.run(self.conn()).await?;
        }
        Ok(())
    }
}
