use std::borrow::Cow;

use dlq_core::Timestamp;
use rusqlite::CachedStatement;
use rusqlite::types::ToSql;

use crate::error::Result;
use crate::values::Put;

/// Binds values to the parameters of a statement, in the order `?1`, `?2`, ….
///
/// Bind all parameters, then call `raw_execute` or `raw_query`: rusqlite does not mix these with `execute` and `query`. A
/// parameter that was not bound keeps the value of the run before, since statements are reused for many rows.
pub(super) struct Binder<'s, 'c> {
    statement: &'s mut CachedStatement<'c>,
    /// Number of parameters bound so far, which is the index of the last one.
    bound: usize,
}

impl<'s, 'c> Binder<'s, 'c> {
    pub(super) fn new(statement: &'s mut CachedStatement<'c>) -> Self {
        Self { statement, bound: 0 }
    }

    pub(super) fn bind(&mut self, value: impl ToSql) -> Result<&mut Self> {
        // Incremented first: SQLite counts parameters from 1.
        self.bound += 1;
        self.statement.raw_bind_parameter(self.bound, value)?;
        Ok(self)
    }
}

impl<'v> Put<'v> for Binder<'_, '_> {
    fn text(&mut self, value: Option<Cow<'v, str>>) -> Result<()> {
        self.bind(value.as_deref()).map(|_| ())
    }

    fn json(&mut self, value: String) -> Result<()> {
        self.bind(value).map(|_| ())
    }

    fn int(&mut self, value: Option<i64>) -> Result<()> {
        self.bind(value).map(|_| ())
    }

    fn bytes(&mut self, value: Option<&'v [u8]>) -> Result<()> {
        self.bind(value).map(|_| ())
    }

    fn owned_bytes(&mut self, value: Option<Vec<u8>>) -> Result<()> {
        self.bind(value).map(|_| ())
    }

    fn time(&mut self, value: Option<Timestamp>) -> Result<()> {
        self.bind(value.map(Timestamp::as_nanos)).map(|_| ())
    }

    fn flag(&mut self, value: bool) -> Result<()> {
        self.bind(value).map(|_| ())
    }
}
