use rusqlite::Connection;

use super::names::Names;
use crate::error::Result;

/// A call within a transaction.
pub(super) struct Unit<'c> {
    conn: &'c Connection,
    names: &'c Names,
}

impl<'c> Unit<'c> {
    pub(super) fn new(conn: &'c Connection, names: &'c Names) -> Self {
        Self { conn, names }
    }

    pub(super) fn conn(&self) -> &'c Connection {
        self.conn
    }

    pub(super) fn names(&self) -> &'c Names {
        self.names
    }

    /// A fencing token that nobody has been given.
    pub(super) fn fence(&self) -> Result<u64> {
        // It is counted in the transaction: a token that is rolled back was told to nobody, and goes to the next call.
        let sql = format!(
            "UPDATE {} SET value = value + 1 WHERE name = 'fence' RETURNING value",
            self.names.meta
        );
        let fence: i64 = self.conn.prepare_cached(&sql)?.query_row([], |row| row.get(0))?;
        Ok(fence.cast_unsigned())
    }
}
