//! Deduplication: a single letter for each original message, if it is switched on.

use std::collections::BTreeMap;

use dlq_core::store::rules::DedupKey;
use dlq_core::{LetterId, Timestamp};

use super::PostgresStore;
use super::batch::Batch;
use super::call::on_connection;
use super::codec::{Fields, read_row};
use super::query::Query;
use super::step::Step;
use crate::error::Result;
use crate::values::{Put as _, Take as _};

/// Number of letters that are given keys at a time.
// A store of any size is gone through without all of it in memory.
const PAGE: u32 = 5_000;

impl PostgresStore {
    /// Switches deduplication on or off, unless it is so.
    pub(super) async fn set_dedup(&self, is_dedup: bool) -> Result<()> {
        on_connection!(self, conn => async {
            let mut step = Step::begin(conn, &self.inner, self.given_time()).await?;
            let switched = match step.dedup_flag().await {
                // Most programs find it as they want it when they start, and then take no lock for which all others
                // wait.
                Ok(is_so) if is_so == is_dedup => Ok(()),
                Ok(_) => step.switch_dedup(is_dedup).await,
                Err(fault) => Err(fault),
            };
            step.close(switched).await
        })
    }

    /// Switches deduplication on, and gives every original message its key.
    pub(super) async fn give_all_keys(&self) -> Result<()> {
        on_connection!(self, conn => async {
            let mut step = Step::begin(conn, &self.inner, self.given_time()).await?;
            // It waits for everybody who writes.
            Query::new("SET LOCAL statement_timeout = 0").run(step.conn()).await?;
            let switched = step.switch_dedup(true).await;
            step.close(switched).await
        })
    }
}

impl Step<'_> {
    /// Switches deduplication. Nobody writes letters until the step is done: each write looks at the switch.
    async fn switch_dedup(&mut self, is_dedup: bool) -> Result<()> {
        let names = self.names();
        // It excludes the lock that every write takes, so that no letter is written after the walk under the old setting.
        let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", names.letters);
        Query::new(lock).run(self.conn()).await?;
        let switch = Query::new(format!("UPDATE {} SET value = ", names.meta));
        let switch = switch.bind(i64::from(is_dedup)).push(" WHERE name = 'dedup'");
        switch.run(self.conn()).await?;
        if is_dedup {
            self.give_keys().await?;
        }
        Ok(())
    }

    /// Gives the oldest letter of each original its key, unless another has it.
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
            let rows = query.all(self.conn(), |record| read_row(record, false)).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((last.letter.state.created_at, last.letter.id));
            // A record is not dead and merges with nothing, so it takes no key.
            let deaths: Vec<_> = rows.iter().filter(|row| !row.is_record()).collect();
            let keys = deaths.iter().filter_map(|row| DedupKey::of(&row.letter));
            let mut owners = self.owners(&keys.collect::<Vec<_>>()).await?;
            let (mut given_up, mut taken) = (Vec::new(), Vec::new());
            for row in deaths {
                let (id, key) = (row.letter.id, DedupKey::of(&row.letter));
                if row.key == key {
                    continue;
                }
                let free = key.filter(|key| !owners.contains_key(key));
                if let Some(former) = &row.key {
                    owners.remove(former);
                    given_up.push((id, None));
                }
                if let Some(key) = free {
                    taken.push((id, Some(key.to_bytes())));
                    owners.insert(key, id);
                }
            }
            // Keys are given up first: the unique index has a key in one row at any moment.
            self.write_keys(&given_up).await?;
            self.write_keys(&taken).await?;
        }
    }

    /// Returns the letters that have these keys.
    pub(super) async fn owners<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k DedupKey>,
    ) -> Result<BTreeMap<DedupKey, LetterId>> {
        // The index has hashes of keys, which may be longer than its rows can be. The caller compares the keys
        // themselves.
        let keys: Vec<_> = keys.into_iter().map(|key| key.to_bytes()).collect();
        let sql = format!(
            "SELECT dedup_key, letter_id FROM {} WHERE dedup_key IS NOT NULL \
             AND sha256(dedup_key) = ANY(ARRAY(SELECT sha256(k) FROM unnest(",
            self.names().letters
        );
        let query = Query::new(sql).bind(keys).push("::bytea[]) AS k))");
        let found = query.all(self.conn(), |record| {
            let mut fields = Fields::of(record);
            let key = fields.bytes_or_none()?.unwrap_or_default();
            Ok((crate::columns::dedup_key(&key)?, fields.letter()?))
        });
        Ok(found.await?.into_iter().collect())
    }

    pub(super) async fn write_keys(&mut self, keys: &[(LetterId, Option<Vec<u8>>)]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (id, key) in keys {
            let row = batch.row();
            row.bytes(Some(id.as_bytes()))?;
            row.bytes(key.as_deref())?;
        }
        let sql = format!("UPDATE {} t SET dedup_key = u.key FROM ", self.names().letters);
        let update = Query::new(sql).batch(batch)?;
        let update = update.push(" AS u (letter_id, key) WHERE t.letter_id = u.letter_id");
        update.run(self.conn()).await?;
        Ok(())
    }
}
