//! [`Batch`]: the values of many rows, column by column, as arrays that one statement takes.

use std::borrow::Cow;
use std::iter::repeat;

use dlq_core::Timestamp;
use sqlx::Arguments as _;
use sqlx::postgres::PgArguments;

use super::codec::{Blob, Time, escape};
use crate::error::{Fault, Result};
use crate::values::Put;

/// Number of rows from which a statement is fitted to its batch.
const MANY: usize = 64;

enum Column<'v> {
    Text(Vec<Option<Cow<'v, str>>>),
    Int(Vec<Option<i64>>),
    Bytes(Vec<Option<Blob<'v>>>),
    Time(Vec<Option<Time>>),
    Flag(Vec<bool>),
}

impl Column<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Int(_) => "bigint",
            Self::Bytes(_) => "bytea",
            Self::Time(_) => "timestamptz",
            Self::Flag(_) => "boolean",
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Int(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Time(values) => values.len(),
            Self::Flag(values) => values.len(),
        }
    }

    /// Returns true if every row has the same value. Bytes are not compared: they are rarely the same and may be long.
    fn is_uniform(&self) -> bool {
        fn same<T: PartialEq>(values: &[T]) -> bool {
            values.windows(2).all(|two| two[0] == two[1])
        }
        match self {
            Self::Text(values) => same(values),
            Self::Int(values) => same(values),
            Self::Bytes(values) => values.iter().all(Option::is_none),
            // Nearly every letter has a time of its own.
            Self::Time(_) => false,
            Self::Flag(values) => same(values),
        }
    }
}

/// Rows of the same columns. The first row says of which type each column is.
#[derive(Default)]
pub(super) struct Batch<'v> {
    columns: Vec<Column<'v>>,
    /// True for columns that are bound as the single value that they have.
    is_single: Vec<bool>,
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

    /// Returns the number of columns.
    pub(super) fn width(&self) -> usize {
        self.columns.len()
    }

    /// `unnest($1::text[], …)` of all columns, from `$first` on.
    pub(super) fn unnest(&self, first: usize) -> String {
        let arrays = self.columns.iter().zip(first..);
        let arrays = arrays.map(|(column, n)| format!("${n}::{}[]", column.kind()));
        format!("unnest({})", arrays.collect::<Vec<_>>().join(", "))
    }

    /// Returns the select list for the columns, and the rest of that statement. A value that all of many rows share is
    /// sent once, and need not be taken apart row by row.
    pub(super) fn select(&mut self, first: usize) -> String {
        let is_many = self.columns.first().is_some_and(|column| column.rows() >= MANY);
        let (mut list, mut names, mut arrays) = (Vec::new(), Vec::new(), Vec::new());
        for (n, column) in (first..).zip(&self.columns) {
            let kind = column.kind();
            // With few rows the text of the statement would differ from batch to batch, and be prepared for each.
            let is_single = is_many && column.is_uniform();
            self.is_single.push(is_single);
            if is_single {
                list.push(format!("${n}::{kind}"));
            } else {
                list.push(format!("u.c{n}"));
                names.push(format!("c{n}"));
                arrays.push(format!("${n}::{kind}[]"));
            }
        }
        let [list, names, arrays] = [list, names, arrays].map(|parts| parts.join(", "));
        format!("{list} FROM unnest({arrays}) AS u ({names})")
    }

    /// Binds the arrays, and what is single.
    pub(super) fn bind(self, arguments: &mut PgArguments) -> Result<()> {
        // `unnest` has marked no column: all of them are arrays then.
        let is_single = self.is_single.into_iter().chain(repeat(false));
        for (column, is_single) in self.columns.into_iter().zip(is_single) {
            match column {
                Column::Text(mut values) if is_single => arguments.add(values.pop().flatten()),
                Column::Int(mut values) if is_single => arguments.add(values.pop().flatten()),
                Column::Bytes(mut values) if is_single => arguments.add(values.pop().flatten()),
                Column::Flag(mut values) if is_single => arguments.add(values.pop()),
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
