//! Between our types and SQLite's: integers for times and counts, words for vocabularies, JSON for what is nested.

use std::fmt::Display;
use std::str::FromStr;

use dlq_core::{Binding, Timestamp};
use rusqlite::types::FromSql;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Fault, Result};

/// Reads the columns of a row one after another.
pub(super) struct Fields<'r, 's> {
    record: &'r rusqlite::Row<'s>,
    next: usize,
}

impl<'r, 's> Fields<'r, 's> {
    pub(super) fn after(record: &'r rusqlite::Row<'s>, read: usize) -> Self {
        Self { record, next: read }
    }

    pub(super) fn next<T: FromSql>(&mut self) -> Result<T> {
        self.next += 1;
        Ok(self.record.get(self.next - 1)?)
    }

    pub(super) fn time(&mut self) -> Result<Timestamp> {
        self.next().map(Timestamp::from_nanos)
    }

    pub(super) fn time_or_none(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.next::<Option<i64>>()?.map(Timestamp::from_nanos))
    }

    pub(super) fn bindings(&mut self) -> Result<Vec<Binding>> {
        let bytes: Option<Vec<u8>> = self.next()?;
        let (bindings, rest) = bytes.as_deref().unwrap_or_default().as_chunks();
        if !rest.is_empty() {
            return Err(Fault::corrupt("list of bindings", &"it does not end with a whole one"));
        }
        Ok(bindings.iter().copied().map(Binding::from_bytes).collect())
    }

    pub(super) fn word<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T> {
        self.next += 1;
        let text = self.record.get_ref(self.next - 1)?.as_str();
        let text = text.map_err(|error| Fault::corrupt(what, &error))?;
        text.parse().map_err(|error| Fault::corrupt(what, &error))
    }

    pub(super) fn word_or_none<T: FromStr<Err: Display>>(
        &mut self,
        what: &str,
    ) -> Result<Option<T>> {
        let text: Option<String> = self.next()?;
        text.map(|text| text.parse().map_err(|error| Fault::corrupt(what, &error))).transpose()
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self, what: &str) -> Result<T> {
        self.next += 1;
        let text = self.record.get_ref(self.next - 1)?.as_str();
        let text = text.map_err(|error| Fault::corrupt(what, &error))?;
        serde_json::from_str(text).map_err(|error| Fault::corrupt(what, &error))
    }
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the types have no map with keys other than text")
}

/// One after another; `None` when there is none.
pub(super) fn bindings(bindings: &[Binding]) -> Option<Vec<u8>> {
    let bytes = || bindings.iter().flat_map(|binding| *binding.as_bytes()).collect();
    (!bindings.is_empty()).then(bytes)
}

pub(super) fn nanos(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_nanos)
}

/// SQLite knows signed integers only; the bits stay.
pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

pub(super) fn unsigned(number: i64) -> u64 {
    number.cast_unsigned()
}
