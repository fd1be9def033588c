//! Writing of a verb's changes within its transaction.

use std::collections::BTreeMap;

use dlq_core::store::{AuditEntry, Operation};
use dlq_core::{Cause, ErrorClass, LetterId, OperationId, Reason, Status, StoreErrorKind};
use dlq_letters::{
    Alias, Changed, DocumentChange, ItemChange, LetterChange, Note, OperationChange, Row, Rows,
};
use rusqlite::{CachedStatement, Connection};

use super::binder::Binder;
use super::names::Names;
use super::operations;
use super::query::Query;
use crate::columns;
use crate::error::{Fault, Result};
use crate::values::{self, signed};

/// Writes all changes of `rows`. Returns the number of the last new note.
pub(super) fn write(conn: &Connection, names: &Names, rows: &Rows) -> Result<Option<i64>> {
    // A transaction in which nothing is written costs no flush, and most looks of an idle consumer are such.
    if rows.is_unchanged() {
        return Ok(None);
    }
    let mut writer =
        Writer { conn, names, counts: BTreeMap::new(), statements: [const { None }; 4] };
    writer.letters(rows)?;
    writer.counts()?;
    for (id, alias) in rows.aliases() {
        writer.alias(id, alias)?;
    }
    for operation in rows.started() {
        // Operations come before their items, which refer to them.
        writer.start(operation, rows)?;
    }
    for (id, change) in rows.operations() {
        writer.operation(id, change, rows)?;
    }
    for (operation, index, change) in rows.items() {
        writer.item(operation, index, change)?;
    }
    for consumer in rows.schedules() {
        let sql = format!(
            "INSERT INTO {} (consumer, last_run) VALUES (?1, ?2) ON CONFLICT (consumer) \
             DO UPDATE SET last_run = excluded.last_run",
            names.schedules
        );
        conn.prepare_cached(&sql)?.execute((consumer, rows.now().as_nanos()))?;
    }
    for DocumentChange { key, after, .. } in rows.changed_documents() {
        let (kind, name) = (key.kind.as_str(), key.name.as_str());
        match after {
            Some(text) => {
                let sql = format!(
                    "INSERT INTO {} (kind, name, value) VALUES (?1, ?2, ?3) ON CONFLICT (kind, name) \
                     DO UPDATE SET value = excluded.value",
                    names.documents
                );
                conn.prepare_cached(&sql)?.execute((kind, name, text))?;
            }
            None => {
                let sql = format!("DELETE FROM {} WHERE kind = ?1 AND name = ?2", names.documents);
                conn.prepare_cached(&sql)?.execute((kind, name))?;
            }
        }
    }
    // The number is never lowered: keys take their tokens from it, in transactions of their own.
    if let Some(last) = rows.last_fence() {
        let sql = format!("UPDATE {} SET value = max(value, ?1) WHERE name = 'fence'", names.meta);
        conn.prepare_cached(&sql)?.execute([signed(last)])?;
    }
    let mut last = None;
    for note in rows.notes() {
        match note {
            Note::New(entry) => last = Some(writer.note(entry)?),
            Note::Grow { entry, by } => writer.grow(*entry, *by)?,
        }
    }
    Ok(last)
}

/// Writes those of these rows whose ids are free, where nothing is merged. Returns for each whether it was.
pub(super) fn put_new(conn: &Connection, names: &Names, rows: &[Row]) -> Result<Vec<bool>> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {})", names.aliases);
    let has_aliases: bool = conn.prepare_cached(&sql)?.query_row([], |row| row.get(0))?;
    // Where letters may have to be merged, the engine looks at each of them.
    if has_aliases || super::load::meta(conn, names, "dedup")? != 0 {
        return Ok(vec![false; rows.len()]);
    }
    let mut writer =
        Writer { conn, names, counts: BTreeMap::new(), statements: [const { None }; 4] };
    let new = rows.iter().map(|row| writer.try_insert(row)).collect::<Result<_>>()?;
    writer.counts()?;
    Ok(new)
}

/// The dimensions by which letters are counted: status, reason, cause, class, consumer, subject.
type Kind<'r> = (Status, Reason, Option<Cause>, ErrorClass, &'r str, &'r str);

fn kind(row: &Row) -> Kind<'_> {
    let letter = &row.letter;
    let subject = letter.message.subject();
    (letter.state.status, letter.reason, letter.cause, letter.class, &letter.consumer, subject)
}

struct Writer<'r, 'c> {
    conn: &'c Connection,
    names: &'c Names,
    counts: BTreeMap<Kind<'r>, i64>,
    /// Statements that insert a row, change its state, change what a run changes, and change all of it.
    statements: [Option<CachedStatement<'c>>; 4],
}

impl<'r, 'c> Writer<'r, 'c> {
    fn letters(&mut self, rows: &'r Rows) -> Result<()> {
        // A key is free before another row takes it.
        for LetterChange { before, after, .. } in rows.letters() {
            let Some(before) = before else { continue };
            match after {
                None => self.remove(before)?,
                Some(after) if before.key.is_some() && before.key != after.key => {
                    self.set_key(before.tag, None)?;
                }
                Some(_) => {}
            }
        }
        for LetterChange { before, after, changed, .. } in rows.letters() {
            let Some(after) = after else { continue };
            let seq = match before {
                Some(before) => {
                    self.update(before, after, changed)?;
                    before.tag
                }
                None => self.insert(after)?,
            };
            if let Some(key) = &after.key
                && before.is_none_or(|before| before.key.as_ref() != Some(key))
            {
                self.set_key(seq, Some(key.to_bytes()))?;
            }
        }
        Ok(())
    }

    fn count(&mut self, row: &'r Row, by: i64) {
        // Counts are added up here and written once for each kind, since many letters of a step are of few kinds.
        *self.counts.entry(kind(row)).or_default() += by;
    }

    fn statement(&mut self, which: usize) -> Result<&mut CachedStatement<'c>> {
        let slot = &mut self.statements[which];
        if let Some(statement) = slot {
            return Ok(statement);
        }
        let Names { insert, update_state, update_run, update_all, .. } = self.names;
        let sql = [insert, update_state, update_run, update_all][which];
        Ok(slot.insert(self.conn.prepare_cached(sql)?))
    }

    /// Writes a new row. Returns its number.
    fn insert(&mut self, row: &'r Row) -> Result<i64> {
        if self.try_insert(row)? {
            return Ok(self.conn.last_insert_rowid());
        }
        let detail = format!("letter {} is there although it was not found", row.letter.id);
        Err(Fault::new(StoreErrorKind::Corrupt, detail))
    }

    /// Writes a row unless its id is there. Returns whether it did.
    fn try_insert(&mut self, row: &'r Row) -> Result<bool> {
        let statement = self.statement(0)?;
        let mut binder = Binder::new(statement);
        // The order is that of the columns in `Names`: parameters have no names.
        columns::put_kept(row, &mut binder)?;
        columns::put_state(row, &mut binder)?;
        columns::put_run(row, &mut binder)?;
        columns::put_body(&row.letter, &mut binder)?;
        columns::put_since(row, &mut binder)?;
        let is_new = statement.raw_execute()? == 1;
        if is_new {
            self.count(row, 1);
        }
        Ok(is_new)
    }

    fn update(&mut self, before: &'r Row, row: &'r Row, changed: Changed) -> Result<()> {
        let statement = self.statement(match changed {
            Changed::State => 1,
            Changed::Run => 2,
            Changed::All => 3,
        })?;
        let mut binder = Binder::new(statement);
        columns::put_state(row, &mut binder)?;
        if changed != Changed::State {
            columns::put_run(row, &mut binder)?;
        }
        if changed == Changed::All {
            columns::put_body(&row.letter, &mut binder)?;
            columns::put_since(row, &mut binder)?;
        }
        // The row is there: it was read in this transaction, and nobody else writes before that ends.
        binder.bind(before.tag)?;
        statement.raw_execute()?;
        // Counts change in the transaction of the letter, so that they are right at any moment, and after any crash.
        if kind(before) != kind(row) {
            self.count(before, -1);
            self.count(row, 1);
        }
        // A letter that others were merged into is as old as the oldest of them.
        let (was, is) = (before.letter.state.created_at, row.letter.state.created_at);
        if changed != Changed::All && was != is {
            let sql = format!("UPDATE {} SET created_at = ?1 WHERE seq = ?2", self.names.letters);
            self.conn.prepare_cached(&sql)?.execute((is.as_nanos(), before.tag))?;
        }
        Ok(())
    }

    /// Deletes a row, and with it the aliases that point at it.
    fn remove(&mut self, row: &'r Row) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE seq = ?1", self.names.letters);
        self.conn.prepare_cached(&sql)?.execute([row.tag])?;
        self.count(row, -1);
        Ok(())
    }

    fn set_key(&self, seq: i64, key: Option<Vec<u8>>) -> Result<()> {
        let sql = format!("UPDATE {} SET dedup_key = ?1 WHERE seq = ?2", self.names.letters);
        self.conn.prepare_cached(&sql)?.execute((key, seq))?;
        Ok(())
    }

    fn counts(&mut self) -> Result<()> {
        let counts = std::mem::take(&mut self.counts);
        // What several letters of a call change may cancel out, and then no row is touched.
        let mut changed = counts.into_iter().filter(|(_, by)| *by != 0);
        changed.try_for_each(|(kind, by)| self.write_count(kind, by))
    }

    fn write_count(&self, kind: Kind<'_>, by: i64) -> Result<()> {
        let (status, reason, cause, class, consumer, subject) = kind;
        let mut statement = self.conn.prepare_cached(&self.names.count)?;
        Binder::new(&mut statement)
            .bind(status.as_str())?
            .bind(reason.as_str())?
            .bind(cause.map_or("", |cause| cause.as_str()))?
            .bind(class.as_str())?
            .bind(consumer)?
            .bind(subject)?
            .bind(by)?;
        statement.raw_execute()?;
        if by < 0 {
            // Kinds of which nothing is left are taken out, or statistics would read all that there ever were.
            let sql = format!("DELETE FROM {} WHERE n = 0 AND status = ", self.names.counts);
            Query::new(sql)
                .bind(status.as_str())
                .push(" AND consumer = ")
                .bind(consumer)
                .push(" AND subject = ")
                .bind(subject)
                .run(self.conn)?;
        }
        Ok(())
    }

    fn alias(&self, id: LetterId, alias: Alias) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (alias, letter_id, generation) VALUES (?1, ?2, ?3) ON CONFLICT (alias) \
             DO UPDATE SET letter_id = excluded.letter_id, generation = excluded.generation",
            self.names.aliases
        );
        let binds = (id.as_bytes(), alias.row.as_bytes(), alias.generation);
        self.conn.prepare_cached(&sql)?.execute(binds)?;
        Ok(())
    }

    fn start(&self, operation: &Operation, rows: &Rows) -> Result<()> {
        // The row is written as the operation is at the end of the call, which spares an update.
        let mut operation = operation.clone();
        if let Some((_, change)) = rows.operations().find(|(id, _)| *id == operation.id) {
            change.apply(&mut operation, rows.now());
        }
        let sql = format!(
            "INSERT INTO {} (id, spec, state, who, note, created_at, updated_at, next_release, total, progress) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self.names.operations
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .bind(operation.id.as_bytes())?
            .bind(values::json(&operation.spec))?
            .bind(operation.state.as_str())?
            .bind(&operation.by.who)?
            .bind(operation.by.note.as_deref())?
            .bind(operation.created_at.as_nanos())?
            .bind(operation.updated_at.as_nanos())?
            .bind(operation.next_release.as_nanos())?
            .bind(signed(operation.progress.total))?
            .bind(values::json(&operation.progress.by_outcome))?;
        statement.raw_execute()?;
        Ok(())
    }

    /// Applies a change to an operation as it is stored. One that was started by this call has its changes already.
    fn operation(&self, id: OperationId, change: &OperationChange, rows: &Rows) -> Result<()> {
        if rows.started().iter().any(|started| started.id == id) {
            return Ok(());
        }
        let Some(mut operation) = operations::load(self.conn, self.names, id)? else {
            return Ok(());
        };
        // The change applies to what is stored in this transaction, so that counts of other processes are kept.
        change.apply(&mut operation, rows.now());
        let sql = format!(
            "UPDATE {} SET state = ?, updated_at = ?, next_release = ?, total = ?, progress = ? WHERE id = ?",
            self.names.operations
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .bind(operation.state.as_str())?
            .bind(operation.updated_at.as_nanos())?
            .bind(operation.next_release.as_nanos())?
            .bind(signed(operation.progress.total))?
            .bind(values::json(&operation.progress.by_outcome))?
            .bind(operation.id.as_bytes())?;
        statement.raw_execute()?;
        // Apart, since a specification can be long and hardly ever changes.
        if change.spec.is_some() {
            let sql = format!("UPDATE {} SET spec = ?1 WHERE id = ?2", self.names.operations);
            let binds = (values::json(&operation.spec), operation.id.as_bytes());
            self.conn.prepare_cached(&sql)?.execute(binds)?;
        }
        Ok(())
    }

    fn item(&self, operation: OperationId, index: u64, change: &ItemChange) -> Result<()> {
        let items = &self.names.items;
        match change {
            ItemChange::Append { item, consumer } => {
                let sql = format!(
                    "INSERT INTO {items} (operation, idx, letter_id, generation, consumer, outcome, why, at) \
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                );
                let mut statement = self.conn.prepare_cached(&sql)?;
                Binder::new(&mut statement)
                    .bind(operation.as_bytes())?
                    .bind(signed(index))?
                    .bind(item.letter.as_bytes())?
                    .bind(item.generation)?
                    .bind(consumer)?
                    .bind(item.outcome.as_str())?
                    .bind(item.why.as_deref())?
                    .bind(item.at.as_nanos())?;
                statement.raw_execute()?;
            }
            ItemChange::Outcome { outcome, why, at } => {
                let sql = format!(
                    "UPDATE {items} SET outcome = ?, why = ?, at = ? WHERE operation = ? AND idx = ?"
                );
                let mut statement = self.conn.prepare_cached(&sql)?;
                Binder::new(&mut statement)
                    .bind(outcome.as_str())?
                    .bind(why.as_deref())?
                    .bind(at.as_nanos())?
                    .bind(operation.as_bytes())?
                    .bind(signed(index))?;
                statement.raw_execute()?;
            }
        }
        Ok(())
    }

    /// Appends to the record of what operators did. Returns the number of the entry.
    fn note(&self, entry: &AuditEntry) -> Result<i64> {
        let sql = format!(
            "INSERT INTO {} (at, who, note, action, subject, affected, operation) VALUES (?, ?, ?, ?, ?, ?, ?)",
            self.names.audit
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .bind(entry.at.as_nanos())?
            .bind(&entry.by.who)?
            .bind(entry.by.note.as_deref())?
            .bind(&entry.action)?
            .bind(&entry.subject)?
            .bind(signed(entry.affected))?
            .bind(entry.operation.as_ref().map(OperationId::as_bytes))?;
        statement.raw_execute()?;
        Ok(self.conn.last_insert_rowid())
    }

    fn grow(&self, entry: i64, by: u64) -> Result<()> {
        let sql =
            format!("UPDATE {} SET affected = affected + ?1 WHERE seq = ?2", self.names.audit);
        self.conn.prepare_cached(&sql)?.execute((signed(by), entry))?;
        Ok(())
    }
}
