//! [`Batch`]: the values of many rows, column by column, as arrays that one statement takes.

use std::borrow::Cow;

use dlq_core::Timestamp;
use sqlx::Arguments as _;
use sqlx::postgres::PgArguments;

use super::codec::{Blob, Time, escape};
use crate::error::{Fault, Result};
use crate::values::Put;

enum Column<'v> {
    Text(Vec<Option<Cow<'v, str>>>),
    Int(Vec<Option<i64>>),
    Bytes(Vec<Option<Blob<'v>>>),
    Time(Vec<Option<Time>>),
    Flag(Vec<bool>),
}

/// Rows of the same columns. The first row says of which type each column is.
#[derive(Default)]
pub(super) struct Batch<'v> {
    columns: Vec<Column<'v>>,
    at: usize,
}

macro_rules! push {
    ($batch:ident, $kind:ident, $value:expr) => {{
        if $batch.at == $batch.columns.len() {
            $batch.columns.push(Column::$kind(Vec::new()));
        }
        let Column::$kind(column) = &mut $batch.columns[$batch.at] else {
            unreachable!("every row has the same columns")
        };
        column.push($value);
        $batch.at += 1;
        Ok(())
    }};
}

impl<'v> Batch<'v> {
    /// Begins the next row.
    pub(super) fn row(&mut self) -> &mut Self {
        self.at = 0;
        self
    }

    /// How many columns there are.
    pub(super) fn width(&self) -> usize {
        self.columns.len()
    }

    /// `unnest($1::text[], …)` of all columns, from `$first` on.
    pub(super) fn unnest(&self, first: usize) -> String {
        let arrays = self.columns.iter().enumerate().map(|(index, column)| {
            let kind = match column {
                Column::Text(_) => "text",
                Column::Int(_) => "bigint",
                Column::Bytes(_) => "bytea",
                Column::Time(_) => "timestamptz",
                Column::Flag(_) => "boolean",
            };
            format!("${}::{kind}[]", first + index)
        });
        format!("unnest({})", arrays.collect::<Vec<_>>().join(", "))
    }

    /// Binds the arrays.
    pub(super) fn bind(self, arguments: &mut PgArguments) -> Result<()> {
        for column in self.columns {
            match column {
                Column::Text(values) => arguments.add(values),
                Column::Int(values) => arguments.add(values),
                Column::Bytes(values) => arguments.add(values),
                Column::Time(values) => arguments.add(values),
                Column::Flag(values) => arguments.add(values),
            }
            .map_err(|error| Fault::from(sqlx::Error::Encode(error)))?;
        }
        Ok(())
    }
}

impl<'v> Put<'v> for Batch<'v> {
    fn text(&mut self, value: Option<Cow<'v, str>>) -> Result<()> {
        push!(self, Text, value.map(escape))
    }

    fn json(&mut self, value: String) -> Result<()> {
        push!(self, Text, Some(value.into()))
    }

    fn int(&mut self, value: Option<i64>) -> Result<()> {
        push!(self, Int, value)
    }

    fn bytes(&mut self, value: Option<&'v [u8]>) -> Result<()> {
        push!(self, Bytes, value.map(|value| Blob(value.into())))
    }

    fn owned_bytes(&mut self, value: Option<Vec<u8>>) -> Result<()> {
        push!(self, Bytes, value.map(|value| Blob(value.into())))
    }

    fn time(&mut self, value: Option<Timestamp>) -> Result<()> {
        push!(self, Time, value.map(Time))
    }

    fn flag(&mut self, value: bool) -> Result<()> {
        push!(self, Flag, value)
    }
}
