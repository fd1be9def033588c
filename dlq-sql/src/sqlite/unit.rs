//! [`Unit`]: one call within a transaction, with what it has changed and not yet written: counts and operations.

use std::collections::BTreeMap;

use dlq_core::store::{Actor, AuditEntry, ItemOutcome, Operation};
use dlq_core::{DeadLetter, LetterId, OperationId, Timestamp};
use rusqlite::Connection;

use super::binder::Binder;
use super::codec::{read_head, read_whole};
use super::names::Names;
use super::query::Query;
use crate::columns;
use crate::error::Result;
use crate::row::{Changed, CountKey, Row};
use crate::values;

/// One call within a transaction.
pub(super) struct Unit<'c> {
    conn: &'c Connection,
    names: &'c Names,
    counts: BTreeMap<CountKey, i64>,
    /// The operations it has touched, by id.
    pub(super) operations: BTreeMap<OperationId, Operation>,
    is_dedup: Option<bool>,
}

impl<'c> Unit<'c> {
    pub(super) fn new(conn: &'c Connection, names: &'c Names) -> Self {
        Self { conn, names, counts: BTreeMap::new(), operations: BTreeMap::new(), is_dedup: None }
    }

    pub(super) fn conn(&self) -> &'c Connection {
        self.conn
    }

    pub(super) fn names(&self) -> &'c Names {
        self.names
    }

    /// The row of a letter without the message's bytes and the history.
    pub(super) fn head(&self, id: LetterId) -> Result<Option<Row>> {
        Query::new(&self.names.select_head)
            .push(" WHERE t.letter_id = ")
            .bind(id)
            .first(self.conn, read_head)
    }

    /// The row of a letter.
    pub(super) fn whole(&self, id: LetterId) -> Result<Option<Row>> {
        Query::new(&self.names.select_whole)
            .push(" WHERE t.letter_id = ")
            .bind(id)
            .first(self.conn, read_whole)
    }

    /// Writes a row unless its id is there; whether it did.
    pub(super) fn insert(&mut self, row: &Row) -> Result<bool> {
        let mut statement = self.conn.prepare_cached(&self.names.insert)?;
        let mut binder = Binder::new(&mut statement);
        columns::put_kept(row, &mut binder)?;
        columns::put_state(row, &mut binder)?;
        columns::put_run(row, &mut binder)?;
        columns::put_body(&row.letter, &mut binder)?;
        columns::put_since(row, &mut binder)?;
        let is_new = statement.raw_execute()? == 1;
        if is_new {
            self.count(row.count_key(), 1);
        }
        Ok(is_new)
    }

    /// Writes what has changed of a row.
    pub(super) fn update(&mut self, row: &mut Row, changed: Changed) -> Result<()> {
        let sql = match changed {
            Changed::State => &self.names.update_state,
            Changed::Run => &self.names.update_run,
            Changed::All => &self.names.update_all,
        };
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut binder = Binder::new(&mut statement);
        columns::put_state(&*row, &mut binder)?;
        if changed != Changed::State {
            columns::put_run(&*row, &mut binder)?;
        }
        if changed == Changed::All {
            columns::put_body(&row.letter, &mut binder)?;
            columns::put_since(&*row, &mut binder)?;
        }
        binder.put(row.seq)?;
        statement.raw_execute()?;
        let now = row.count_key();
        if row.counted.as_ref() != Some(&now) {
            if let Some(before) = row.counted.replace(now.clone()) {
                self.count(before, -1);
            }
            self.count(now, 1);
        }
        Ok(())
    }

    /// Removes a row and what hangs on it.
    pub(super) fn remove(&mut self, row: Row) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE seq = ", self.names.letters);
        Query::new(sql).bind(row.seq).run(self.conn)?;
        if let Some(counted) = row.counted {
            self.count(counted, -1);
        }
        Ok(())
    }

    fn count(&mut self, key: CountKey, by: i64) {
        *self.counts.entry(key).or_default() += by;
    }

    /// Writes what was held back: counts and operations.
    pub(super) fn settle(&mut self) -> Result<()> {
        for (key, by) in std::mem::take(&mut self.counts) {
            if by != 0 {
                self.write_count(&key, by)?;
            }
        }
        for operation in std::mem::take(&mut self.operations).into_values() {
            self.write_operation(&operation)?;
        }
        Ok(())
    }

    fn write_count(&self, key: &CountKey, by: i64) -> Result<()> {
        let mut statement = self.conn.prepare_cached(&self.names.count)?;
        Binder::new(&mut statement)
            .put(key.status.as_str())?
            .put(key.reason.as_str())?
            .put(key.cause.map_or("", |cause| cause.as_str()))?
            .put(key.class.as_str())?
            .put(&key.consumer)?
            .put(&key.subject)?
            .put(by)?;
        statement.raw_execute()?;
        if by < 0 {
            let sql = format!("DELETE FROM {} WHERE n = 0 AND status = ", self.names.counts);
            Query::new(sql)
                .bind(key.status.as_str())
                .push(" AND consumer = ")
                .bind(key.consumer.as_str())
                .push(" AND subject = ")
                .bind(key.subject.as_str())
                .run(self.conn)?;
        }
        Ok(())
    }

    /// Whether letters of the same original message are kept as one.
    pub(super) fn is_dedup(&mut self) -> Result<bool> {
        if let Some(is_dedup) = self.is_dedup {
            return Ok(is_dedup);
        }
        let is_dedup = self.meta("dedup", 0)? != 0;
        self.is_dedup = Some(is_dedup);
        Ok(is_dedup)
    }

    pub(super) fn set_dedup_flag(&mut self, is_dedup: bool) -> Result<()> {
        let sql = format!("UPDATE {} SET value = ?1 WHERE name = 'dedup'", self.names.meta);
        self.conn.prepare_cached(&sql)?.execute([is_dedup])?;
        self.is_dedup = Some(is_dedup);
        Ok(())
    }

    /// The first of `count` fencing tokens that nobody has been given.
    pub(super) fn fences(&self, count: usize) -> Result<u64> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(i64::cast_unsigned(self.meta("fence", count)? - count + 1))
    }

    fn meta(&self, name: &str, add: i64) -> Result<i64> {
        let sql = if add == 0 {
            format!("SELECT value FROM {} WHERE name = ?1", self.names.meta)
        } else {
            format!(
                "UPDATE {} SET value = value + ?2 WHERE name = ?1 RETURNING value",
                self.names.meta
            )
        };
        let mut statement = self.conn.prepare_cached(&sql)?;
        let value = if add == 0 {
            statement.query_row([name], |row| row.get(0))
        } else {
            statement.query_row((name, add), |row| row.get(0))
        };
        Ok(value?)
    }

    /// Appends to the record of what operators did.
    pub(super) fn note(&self, entry: &AuditEntry) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (at, who, note, action, subject, affected, operation) VALUES (?, ?, ?, ?, ?, ?, ?)",
            self.names.audit
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .put(entry.at.as_nanos())?
            .put(&entry.by.who)?
            .put(entry.by.note.as_deref())?
            .put(&entry.action)?
            .put(&entry.subject)?
            .put(values::signed(entry.affected))?
            .put(entry.operation.as_ref().map(OperationId::as_bytes))?;
        statement.raw_execute()?;
        Ok(())
    }

    /// The same for what is not about an operation.
    pub(super) fn note_action(
        &self,
        by: &Actor,
        action: &str,
        subject: String,
        affected: u64,
        at: Timestamp,
    ) -> Result<()> {
        let (by, action) = (by.clone(), action.to_owned());
        self.note(&AuditEntry { at, by, action, subject, affected, operation: None })
    }

    /// The letter leaves the operation that holds it, which learns of the outcome.
    pub(super) fn end_item(
        &mut self,
        row: &mut Row,
        outcome: ItemOutcome,
        why: Option<&str>,
        now: Timestamp,
    ) -> Result<()> {
        self.set_item(row, outcome, why, now)?;
        row.item = None;
        row.letter.state.operation = None;
        Ok(())
    }

    /// The operation that holds the letter learns that it died anew, and of what.
    pub(super) fn died_anew(
        &mut self,
        row: &mut Row,
        death: &DeadLetter,
        now: Timestamp,
    ) -> Result<()> {
        let outcome = match row.item {
            Some((operation, index)) => self.item_outcome(operation, index)?,
            None => None,
        };
        if outcome == Some(ItemOutcome::Queued) {
            let why = Some("died again before it was sent");
            return self.end_item(row, ItemOutcome::Skipped, why, now);
        }
        self.end_item(row, ItemOutcome::FailedAgain, Some(&death.error()), now)
    }
}
