//! Values on their way into a row and out of it. What one is to the database, [`Put`] and [`Take`] of each know.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use dlq_core::{Binding, LetterId, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Fault, Result};

/// Takes the values of a row one after another.
pub(crate) trait Put<'v> {
    fn text(&mut self, value: Option<Cow<'v, str>>) -> Result<()>;
    fn json(&mut self, value: String) -> Result<()>;
    fn int(&mut self, value: Option<i64>) -> Result<()>;
    fn bytes(&mut self, value: Option<&'v [u8]>) -> Result<()>;
    /// A time that the store gave.
    fn time(&mut self, value: Option<Timestamp>) -> Result<()>;
    fn flag(&mut self, value: bool) -> Result<()>;
    fn owned_bytes(&mut self, value: Option<Vec<u8>>) -> Result<()>;

    fn word(&mut self, value: &'v str) -> Result<()> {
        self.text(Some(value.into()))
    }

    fn count(&mut self, value: u32) -> Result<()> {
        self.int(Some(value.into()))
    }

    /// A time to the nanosecond.
    fn nanos(&mut self, value: Option<Timestamp>) -> Result<()> {
        self.int(value.map(Timestamp::as_nanos))
    }
}

/// Gives the values of a row one after another.
pub(crate) trait Take {
    fn text_or_none(&mut self) -> Result<Option<String>>;
    fn json_text(&mut self) -> Result<String>;
    fn int_or_none(&mut self) -> Result<Option<i64>>;
    fn bytes_or_none(&mut self) -> Result<Option<Vec<u8>>>;
    fn time_or_none(&mut self) -> Result<Option<Timestamp>>;
    fn flag(&mut self) -> Result<bool>;

    fn text(&mut self) -> Result<String> {
        there(self.text_or_none()?)
    }

    fn int(&mut self) -> Result<i64> {
        there(self.int_or_none()?)
    }

    /// A count that was written as one.
    fn count(&mut self) -> Result<u32> {
        u32::try_from(self.int()?).map_err(|error| Fault::corrupt("count", &error))
    }

    /// The bits of an unsigned number: databases know signed ones only.
    fn unsigned(&mut self) -> Result<u64> {
        self.int().map(i64::cast_unsigned)
    }

    fn time(&mut self) -> Result<Timestamp> {
        there(self.time_or_none()?)
    }

    fn nanos_or_none(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.int_or_none()?.map(Timestamp::from_nanos))
    }

    /// The sixteen bytes of an id.
    fn id_or_none(&mut self) -> Result<Option<[u8; 16]>> {
        let bytes = self.bytes_or_none()?;
        let id = bytes.map(|bytes| <[u8; 16]>::try_from(&bytes[..])).transpose();
        id.map_err(|error| Fault::corrupt("id", &error))
    }

    fn bindings(&mut self) -> Result<Vec<Binding>> {
        let bytes = self.bytes_or_none()?;
        // A binding that is cut off is damage: passed over, it would let a former message count as another one.
        let (bindings, rest) = bytes.as_deref().unwrap_or_default().as_chunks();
        if !rest.is_empty() {
            return Err(Fault::corrupt("list of bindings", &"it does not end with a whole one"));
        }
        Ok(bindings.iter().copied().map(Binding::from_bytes).collect())
    }

    fn letter(&mut self) -> Result<LetterId> {
        there(self.id_or_none()?).map(LetterId::from_bytes)
    }

    fn word<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T> {
        self.text()?.parse().map_err(|error| Fault::corrupt(what, &error))
    }

    fn word_or_none<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<Option<T>> {
        let text = self.text_or_none()?;
        text.map(|text| text.parse().map_err(|error| Fault::corrupt(what, &error))).transpose()
    }

    fn json<T: DeserializeOwned>(&mut self, what: &str) -> Result<T> {
        serde_json::from_str(&self.json_text()?).map_err(|error| Fault::corrupt(what, &error))
    }
}

fn there<T>(value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Fault::corrupt("value", &"there is none"))
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the types have no map with keys other than text")
}

/// Databases know signed integers only; the bits stay.
pub(crate) fn signed(number: u64) -> i64 {
    number.cast_signed()
}
