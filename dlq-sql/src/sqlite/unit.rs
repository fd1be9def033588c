//! [`Unit`]: one call within a transaction, with what it has changed and not yet written: counts and operations.

use std::collections::BTreeMap;

use dlq_core::store::{Actor, AuditEntry, ItemOutcome, Operation};
use dlq_core::{Cause, DeadLetter, ErrorClass, LetterId, OperationId, Reason, Status, Timestamp};
use dlq_letters::{Changed, Row};
use rusqlite::Connection;

use super::binder::Binder;
use super::codec::{read_head, read_whole};
use super::names::Names;
use super::query::Query;
use crate::columns;
use crate::error::Result;
use crate::values;

/// The dimensions by which letters are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CountKey {
    status: Status,
    reason: Reason,
    cause: Option<Cause>,
    class: ErrorClass,
    consumer: String,
    subject: String,
}

impl CountKey {
    fn of(letter: &DeadLetter) -> Self {
        Self {
            status: letter.state.status,
            reason: letter.reason,
            cause: letter.cause,
            class: letter.class,
            consumer: letter.consumer.clone(),
            subject: letter.message.subject().to_owned(),
        }
    }
}

/// A row, and what it counts as until it is written.
pub(super) struct Loaded {
    pub(super) row: Row,
    counted: CountKey,
}

impl From<Row> for Loaded {
    fn from(row: Row) -> Self {
        Self { counted: CountKey::of(&row.letter), row }
    }
}

impl std::ops::Deref for Loaded {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.row
    }
}

impl std::ops::DerefMut for Loaded {
    fn deref_mut(&mut self) -> &mut Row {
        &mut self.row
    }
}

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
    pub(super) fn head(&self, id: LetterId) -> Result<Option<Loaded>> {
        let row = Query::new(&self.names.select_head)
            .push(" WHERE t.letter_id = ")
            .bind(id)
            .first(self.conn, read_head)?;
        Ok(row.map(Loaded::from))
    }

    /// The row of a letter.
    pub(super) fn whole(&self, id: LetterId) -> Result<Option<Loaded>> {
        let row = Query::new(&self.names.select_whole)
            .push(" WHERE t.letter_id = ")
            .bind(id)
            .first(self.conn, read_whole)?;
        Ok(row.map(Loaded::from))
    }

    /// Writes what has changed of a row.
    pub(super) fn update(&mut self, row: &mut Loaded, changed: Changed) -> Result<()> {
        let sql = match changed {
            Changed::State => &self.names.update_state,
            Changed::Run => &self.names.update_run,
            Changed::All => &self.names.update_all,
        };
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut binder = Binder::new(&mut statement);
        columns::put_state(&row.row, &mut binder)?;
        if changed != Changed::State {
            columns::put_run(&row.row, &mut binder)?;
        }
        if changed == Changed::All {
            columns::put_body(&row.letter, &mut binder)?;
            columns::put_since(&row.row, &mut binder)?;
        }
        binder.put(row.tag)?;
        statement.raw_execute()?;
        let now = CountKey::of(&row.letter);
        if row.counted != now {
            let before = std::mem::replace(&mut row.counted, now.clone());
            self.count(before, -1);
            self.count(now, 1);
        }
        Ok(())
    }

    /// Removes a row and what hangs on it.
    pub(super) fn remove(&mut self, row: Loaded) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE seq = ", self.names.letters);
        Query::new(sql).bind(row.tag).run(self.conn)?;
        self.count(row.counted, -1);
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
        let is_dedup = super::load::meta(self.conn, self.names, "dedup")? != 0;
        self.is_dedup = Some(is_dedup);
        Ok(is_dedup)
    }

    pub(super) fn set_dedup_flag(&mut self, is_dedup: bool) -> Result<()> {
        let sql = format!("UPDATE {} SET value = ?1 WHERE name = 'dedup'", self.names.meta);
        self.conn.prepare_cached(&sql)?.execute([is_dedup])?;
        self.is_dedup = Some(is_dedup);
        Ok(())
    }

    /// A fencing token that nobody has been given.
    pub(super) fn fence(&self) -> Result<u64> {
        let sql = format!(
            "UPDATE {} SET value = value + 1 WHERE name = 'fence' RETURNING value",
            self.names.meta
        );
        let fence: i64 = self.conn.prepare_cached(&sql)?.query_row([], |row| row.get(0))?;
        Ok(fence.cast_unsigned())
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
}
