//! Conversion between our types and SQLite's: integers for times and flags, text for JSON.

use dlq_core::{LetterSummary, Timestamp};
use dlq_letters::Row;
use rusqlite::Row as Record;
use rusqlite::types::FromSql;

use crate::columns;
use crate::error::Result;
use crate::values::Take;

/// Reads the columns of a row one after another.
pub(super) struct Fields<'r, 's> {
    record: &'r Record<'s>,
    next: usize,
}

impl<'r, 's> Fields<'r, 's> {
    pub(super) fn after(record: &'r Record<'s>, read: usize) -> Self {
        Self { record, next: read }
    }

    pub(super) fn next<T: FromSql>(&mut self) -> Result<T> {
        self.next += 1;
        Ok(self.record.get(self.next - 1)?)
    }
}

impl Take for Fields<'_, '_> {
    fn text_or_none(&mut self) -> Result<Option<String>> {
        self.next()
    }

    fn json_text(&mut self) -> Result<String> {
        self.next()
    }

    fn int_or_none(&mut self) -> Result<Option<i64>> {
        self.next()
    }

    fn bytes_or_none(&mut self) -> Result<Option<Vec<u8>>> {
        self.next()
    }

    fn time_or_none(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.next::<Option<i64>>()?.map(Timestamp::from_nanos))
    }

    fn flag(&mut self) -> Result<bool> {
        self.next()
    }
}

/// Reads what `select_head` selects.
pub(super) fn read_head(record: &Record<'_>) -> Result<Row> {
    let mut fields = Fields::after(record, 0);
    let mut row = columns::read_head(&mut fields)?;
    row.tag = fields.next()?;
    Ok(row)
}

/// The same, for a list.
pub(super) fn read_summary(record: &Record<'_>) -> Result<LetterSummary> {
    columns::read_summary(&mut Fields::after(record, 0))
}

/// Reads what `select_whole` selects.
pub(super) fn read_whole(record: &Record<'_>) -> Result<Row> {
    let mut fields = Fields::after(record, 0);
    let mut row = columns::read_whole(&mut fields)?;
    row.tag = fields.next()?;
    Ok(row)
}
