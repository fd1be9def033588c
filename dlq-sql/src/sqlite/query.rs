//! [`Query`]: SQL text and what is bound to it, grown side by side.

use std::rc::Rc;

use dlq_core::{LetterId, OperationId, Timestamp};
use rusqlite::types::{ToSql, ToSqlOutput, Value};
use rusqlite::{CachedStatement, Connection};

use crate::error::Result;

/// A value for one `?`.
#[derive(Clone, Debug)]
pub(super) enum Bind {
    Value(Value),
    Many(Rc<Vec<Value>>),
}

impl ToSql for Bind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Value(value) => value.to_sql(),
            Self::Many(values) => values.to_sql(),
        }
    }
}

macro_rules! binds {
    ($($type:ty: $value:ident => $to:expr),+ $(,)?) => {
        $(impl From<$type> for Bind { fn from($value: $type) -> Self { Self::Value($to) } })+
    };
}

binds! {
    i64: value => Value::Integer(value),
    u32: value => Value::Integer(value.into()),
    Timestamp: value => Value::Integer(value.as_nanos()),
    LetterId: value => Value::Blob(value.as_bytes().to_vec()),
    OperationId: value => Value::Blob(value.as_bytes().to_vec()),
    &str: value => Value::Text(value.to_owned()),
    String: value => Value::Text(value),
}

/// SQL text whose `?` and bound values are added in the same order. Texts repeat, so that statements are prepared once.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    sql: String,
    binds: Vec<Bind>,
}

impl Query {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), binds: Vec::new() }
    }

    /// Binds the next `?` that is in the text.
    pub(super) fn bound(mut self, value: impl Into<Bind>) -> Self {
        self.binds.push(value.into());
        self
    }

    pub(super) fn push(mut self, sql: &str) -> Self {
        self.sql.push_str(sql);
        self
    }

    pub(super) fn add(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Adds a `?` with its value.
    pub(super) fn bind(mut self, value: impl Into<Bind>) -> Self {
        self.add_bind(value);
        self
    }

    pub(super) fn add_bind(&mut self, value: impl Into<Bind>) {
        self.sql.push('?');
        self.binds.push(value.into());
    }

    /// Adds ` = ?` or ` IN (…)`; however many values, they take one place.
    pub(super) fn add_any<T: Into<Bind>>(&mut self, values: impl ExactSizeIterator<Item = T>) {
        // SQLite uses an index in its order for a single value, which it does not for a list.
        if values.len() == 1 {
            self.add(" = ");
            values.for_each(|value| self.add_bind(value));
            return;
        }
        let values = values.filter_map(|value| match value.into() {
            Bind::Value(value) => Some(value),
            Bind::Many(_) => None,
        });
        self.add(" IN (SELECT value FROM rarray(");
        self.binds.push(Bind::Many(Rc::new(values.collect())));
        self.add("?))");
    }

    /// The statement with everything bound; run it with `raw_query` or `raw_execute`.
    pub(super) fn prepare<'c>(&self, conn: &'c Connection) -> Result<CachedStatement<'c>> {
        // A statement from the cache still has the values of its last run, so that all of them are bound anew.
        let mut statement = conn.prepare_cached(&self.sql)?;
        for (index, bind) in self.binds.iter().enumerate() {
            statement.raw_bind_parameter(index + 1, bind)?;
        }
        Ok(statement)
    }

    /// Reads every row.
    pub(super) fn all<T>(
        &self,
        conn: &Connection,
        mut read: impl FnMut(&rusqlite::Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.prepare(conn)?;
        let mut rows = statement.raw_query();
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(read(row)?);
        }
        Ok(all)
    }

    /// Reads the first row, if there is one.
    pub(super) fn first<T>(
        &self,
        conn: &Connection,
        read: impl FnOnce(&rusqlite::Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.prepare(conn)?;
        let mut rows = statement.raw_query();
        rows.next()?.map(read).transpose()
    }

    /// The same, to be told how it would be read.
    #[cfg(test)]
    pub(super) fn explained(&self) -> Self {
        Self { sql: format!("EXPLAIN QUERY PLAN {}", self.sql), binds: self.binds.clone() }
    }

    /// Runs it; how many rows it changed.
    pub(super) fn run(&self, conn: &Connection) -> Result<usize> {
        Ok(self.prepare(conn)?.raw_execute()?)
    }
}
