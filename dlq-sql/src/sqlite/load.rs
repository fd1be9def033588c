//! [`Loader`]: rows that a verb needs, read within its transaction.

use std::collections::BTreeMap;

use dlq_core::store::rules::DedupKey;
use dlq_core::store::{ItemOutcome, OperationState};
use dlq_core::{LetterId, OperationId};
use dlq_letters::{
    Alias, Depth, DocumentKey, DocumentKind, DocumentRange, Needs, Row, Rows, Select,
};
use rusqlite::Connection;
use rusqlite::types::ToSql;

use super::codec::{Fields, read_head, read_whole};
use super::names::Names;
use super::operations;
use super::query::{Bind, Query};
use super::select::{self, SelectedRows};
use crate::columns;
use crate::error::Result;
use crate::values::{Take as _, signed};

/// Reads what a verb needs. Knows which fencing tokens it has supplied to it.
pub(super) struct Loader<'c> {
    conn: &'c Connection,
    names: &'c Names,
    /// Pages that were read a moment ago, before the transaction began.
    seen: &'c [(Select, Vec<SelectedRows>)],
    /// The next token to supply. Nobody else takes any before the transaction ends.
    fence: Option<u64>,
}

impl<'c> Loader<'c> {
    pub(super) fn new(
        conn: &'c Connection,
        names: &'c Names,
        seen: &'c [(Select, Vec<SelectedRows>)],
    ) -> Self {
        Self { conn, names, seen, fence: None }
    }

    /// Supplies `rows` with all of `needs`.
    pub(super) fn load(&mut self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        let Needs { letters, selects, items, operations, states, active, .. } = needs;
        for depth in [Depth::Head, Depth::Whole] {
            let ids = letters.iter().filter(|(_, of)| **of == depth).map(|(id, _)| *id);
            self.letters(ids, depth, rows)?;
        }
        for (select, depth) in selects {
            self.select(select, *depth, rows)?;
        }
        for (operation, index) in items {
            self.item(*operation, *index, rows)?;
        }
        for id in operations {
            rows.supply_operation(*id, operations::load(self.conn, self.names, *id)?);
        }
        for id in states {
            rows.supply_state(*id, self.state(*id)?);
        }
        if *active {
            rows.supply_active(operations::active(self.conn, self.names)?);
        }
        self.originals(needs, rows)?;
        for consumer in &needs.schedules {
            let last = format!("SELECT last_run FROM {} WHERE consumer = ", self.names.schedules);
            let last = Query::new(last).bind(consumer.as_str());
            let last = last.first(self.conn, |row| Fields::after(row, 0).time())?;
            rows.supply_schedule(consumer.clone(), last);
        }
        for key in &needs.documents {
            rows.supply_document(key.clone(), self.document(key)?);
        }
        // The transaction holds the lock of the whole file, so that a glimpse is read like everything else.
        for key in &needs.glimpses {
            rows.supply_glimpse(key.clone(), self.document(key)?);
        }
        for kind in &needs.listed {
            rows.supply_documents(*kind, self.documents(*kind)?);
        }
        for range in &needs.ranges {
            rows.supply_document_names(range.clone(), self.document_names(range)?);
        }
        if needs.operation_number {
            let sql = format!("SELECT coalesce(max(seq), 0) FROM {}", self.names.operations);
            let number: i64 = self.conn.query_row(&sql, [], |row| row.get(0))?;
            rows.supply_operation_number(number.cast_unsigned());
        }
        self.fences(needs.fences, rows)
    }

    fn document(&self, key: &DocumentKey) -> Result<Option<String>> {
        let sql = format!("SELECT value FROM {} WHERE kind = ", self.names.documents);
        let query = Query::new(sql).bind(key.kind.as_str()).push(" AND name = ");
        query.bind(key.name.as_str()).first(self.conn, |row| Fields::after(row, 0).text())
    }

    fn documents(&self, kind: DocumentKind) -> Result<Vec<(DocumentKey, String)>> {
        let sql = format!("SELECT name, value FROM {} WHERE kind = ", self.names.documents);
        Query::new(sql).bind(kind.as_str()).all(self.conn, |row| {
            let mut fields = Fields::after(row, 0);
            Ok((DocumentKey { kind, name: fields.text()? }, fields.text()?))
        })
    }

    fn document_names(&self, range: &DocumentRange) -> Result<Vec<String>> {
        let sql = format!("SELECT name FROM {} WHERE kind = ", self.names.documents);
        let mut query = Query::new(sql).bind(range.kind.as_str());
        if let Some(after) = &range.after {
            query.add(columns::name_after(range.order));
            query.add_bind(after.as_str());
        }
        query.add(columns::by_name(range.order));
        query.bind(range.limit).all(self.conn, |row| Fields::after(row, 0).text())
    }

    /// Supplies fencing tokens. What is not taken is not written.
    fn fences(&mut self, count: u64, rows: &mut Rows) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let first = match self.fence {
            Some(next) => next,
            None => meta(self.conn, self.names, "fence")?.cast_unsigned() + 1,
        };
        let end = first.saturating_add(count);
        rows.supply_fences(first..end);
        self.fence = Some(end);
        Ok(())
    }

    /// Supplies letters by id and, since who changes a letter tells the operation that holds it, their items.
    fn letters(
        &self,
        ids: impl Iterator<Item = LetterId>,
        depth: Depth,
        rows: &mut Rows,
    ) -> Result<()> {
        let mut ids = ids.peekable();
        if ids.peek().is_none() {
            return Ok(());
        }
        let mut held = Vec::new();
        self.each(0, ids.map(|id| (id, *id.as_bytes())), depth, |id, row| {
            held.extend(row.as_ref().and_then(|row| row.item));
            rows.supply_letter(id, row, depth);
        })?;
        held.into_iter().try_for_each(|(operation, index)| self.item(operation, index, rows))
    }

    /// Reads the row of each key, by the id or by the number of the row.
    fn each<K: ToSql>(
        &self,
        by: usize,
        keys: impl Iterator<Item = (LetterId, K)>,
        depth: Depth,
        mut read: impl FnMut(LetterId, Option<Row>),
    ) -> Result<()> {
        let is_whole = depth == Depth::Whole;
        let sql = if is_whole { &self.names.whole_by[by] } else { &self.names.head_by[by] };
        let mut statement = self.conn.prepare_cached(sql)?;
        for (id, key) in keys {
            statement.raw_bind_parameter(1, key)?;
            let mut records = statement.raw_query();
            // A key is that of one row at most. The end of `records` makes the statement ready for the next key.
            let row = match records.next()? {
                Some(record) if is_whole => Some(read_whole(record)?),
                Some(record) => Some(read_head(record)?),
                None => None,
            };
            read(id, row);
        }
        Ok(())
    }

    fn select(&mut self, select: &Select, depth: Depth, rows: &mut Rows) -> Result<()> {
        let seen = self.seen.iter().find(|(it, _)| it == select);
        // The page was read outside of the transaction: it counts only if its letters still match.
        let again = match seen {
            Some((_, seen)) => select::find_again(self.conn, self.names, select, seen)?,
            None => None,
        };
        let found = match again {
            Some(found) => found,
            None => select::find(self.conn, self.names, select, rows.now())?,
        };
        let (there, gone): (Vec<&SelectedRows>, Vec<&SelectedRows>) =
            found.iter().partition(|it| it.seq.is_some());
        let there = there.into_iter().map(|it| (it.selected.letter, it.seq));
        let mut held = Vec::new();
        // Marks and deletions end the items of what they select. Other verbs get the items with the selection, or leave
        // them alone.
        let changes_items = matches!(select, Select::Matching { .. });
        self.each(1, there, depth, |id, row| {
            held.extend(row.as_ref().and_then(|row| row.item).filter(|_| changes_items));
            rows.supply_letter(id, row, depth);
        })?;
        held.into_iter().try_for_each(|(operation, index)| self.item(operation, index, rows))?;
        // What the letter of an orphan is by now, if there is one, its id says.
        let gone = gone.into_iter().map(|it| it.selected.letter);
        self.letters(gone, depth, rows)?;
        for SelectedRows { selected, item, .. } in &found {
            if let Some((operation, outcome)) = item {
                rows.supply_item(*operation, selected.index, Some(*outcome));
            }
        }
        // What a claim asks for next: tokens for what it hands out, and operations that may release into the room left.
        if let Select::Due { .. } | Select::Queued { .. } = select {
            self.fences(found.len() as u64, rows)?;
        }
        if let Select::Due { limit, .. } = select
            && (found.len() as u64) < *limit
        {
            rows.supply_active(operations::active(self.conn, self.names)?);
        }
        let found = found.into_iter().map(|it| it.selected).collect();
        rows.supply_select(select.clone(), depth, found);
        Ok(())
    }

    fn item(&self, operation: OperationId, index: u64, rows: &mut Rows) -> Result<()> {
        let outcome =
            Query::new(format!("SELECT outcome FROM {} WHERE operation = ", self.names.items))
                .bind(operation)
                .push(" AND idx = ")
                .bind(signed(index))
                .first(self.conn, |row| Fields::after(row, 0).word::<ItemOutcome>("outcome"))?;
        rows.supply_item(operation, index, outcome);
        Ok(())
    }

    fn state(&self, id: OperationId) -> Result<Option<OperationState>> {
        Query::new(format!("SELECT state FROM {} WHERE id = ", self.names.operations))
            .bind(id)
            .first(self.conn, |row| Fields::after(row, 0).word("state of an operation"))
    }

    /// Supplies who has which key, and which letters were merged into others.
    fn originals(&self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        if needs.dedup {
            rows.supply_dedup(meta(self.conn, self.names, "dedup")? != 0);
        }
        for key in &needs.owners {
            rows.supply_owner(key.clone(), owner(self.conn, self.names, key)?);
        }
        let Names { aliases, .. } = self.names;
        let is_asked = !needs.aliases.is_empty() || !needs.aliases_of.is_empty();
        // Most stores have none.
        let has_any = is_asked && {
            let sql = format!("SELECT EXISTS (SELECT 1 FROM {aliases})");
            self.conn.prepare_cached(&sql)?.query_row([], |row| row.get(0))?
        };
        let find = |column: &str, id: LetterId| -> Result<BTreeMap<LetterId, Alias>> {
            if !has_any {
                return Ok(BTreeMap::new());
            }
            let sql =
                format!("SELECT alias, letter_id, generation FROM {aliases} WHERE {column} = ");
            let all = Query::new(sql).bind(id).all(self.conn, |row| {
                let mut fields = Fields::after(row, 0);
                let (id, row) = (fields.letter()?, fields.letter()?);
                Ok((id, Alias { row, generation: fields.count()? }))
            })?;
            Ok(all.into_iter().collect())
        };
        for id in &needs.aliases {
            rows.supply_alias(*id, find("alias", *id)?.remove(id));
        }
        for id in &needs.aliases_of {
            rows.supply_aliases_of(*id, find("letter_id", *id)?.into_iter().collect());
        }
        Ok(())
    }
}

/// The letter that has a key.
pub(super) fn owner(conn: &Connection, names: &Names, key: &DedupKey) -> Result<Option<LetterId>> {
    Query::new(format!("SELECT letter_id FROM {} WHERE dedup_key = ", names.letters))
        .bind(Bind::Value(key.to_bytes().into()))
        .first(conn, |row| Fields::after(row, 0).letter())
}

/// A number that the store keeps under this name.
pub(super) fn meta(conn: &Connection, names: &Names, name: &str) -> Result<i64> {
    let sql = format!("SELECT value FROM {} WHERE name = ?1", names.meta);
    Ok(conn.prepare_cached(&sql)?.query_row([name], |row| row.get(0))?)
}
