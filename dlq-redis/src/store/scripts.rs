//! The scripts, and calls of them.

use redis::Value;

use super::codec::StoredRow;
use super::fault::{Fault, Result};
use super::names::Bytes;
use crate::client::Script;

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)+) => {
        $($(#[$doc])* pub(super) static $name: Script = Script::new(concat!(
            include_str!("lua/prelude.lua"),
            include_str!(concat!("lua/", $file, ".lua"))
        ));)+
    };
}

scripts! {
    /// Letters by id.
    LETTERS = "letters";
    /// A part of the index.
    WALK = "walk";
    /// Letters that can be claimed.
    DUE = "due";
    /// Operations.
    OPERATIONS = "ops";
    /// Items of an operation.
    ITEMS = "items";
    /// Writes what was decided.
    COMMIT = "commit";
    /// Says what became of a commit.
    SETTLE = "settle";
    /// Writes letters that are plainly new.
    PUT = "put";
    /// Counts a run that begins.
    BEGIN = "begin";
    /// Ends a run.
    END = "end";
    /// Appends to the processing audit.
    PROCESSED = "processed";
    /// The time, and what every call needs to know.
    META = "meta";
    /// Facts that the server states about itself.
    INFO = "info";
    /// Opens a store.
    OPEN = "open";
}

/// The bytes of a string; `None` for anything else.
pub(super) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        Value::Okay => Some(b"OK".to_vec()),
        _ => None,
    }
}

/// The elements of an array; none of anything else.
pub(super) fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        // The third version of the protocol has types of its own for what the second sends as an array.
        Value::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => Vec::new(),
    }
}

/// A number, also one written as text; 0 for anything else.
pub(super) fn number(value: Value) -> u64 {
    bytes(value)
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// A letter as scripts return it; `None` if there is none.
pub(super) fn letter(value: Value, is_whole: bool) -> Result<Option<StoredRow>> {
    match value {
        Value::Array(fields) => {
            StoredRow::read(fields.into_iter().map(bytes).collect(), is_whole).map(Some)
        }
        _ => Ok(None),
    }
}

/// The parts of an answer, of which there are so many.
pub(super) fn parts<const N: usize>(value: Value) -> Result<[Value; N]> {
    array(value).try_into().map_err(|found: Vec<Value>| {
        Fault::corrupt("answer of a script", format!("it has {} parts instead of {N}", found.len()))
    })
}
