//! Reading of responses.

use redis::Value;

/// The elements of an array; none of anything else.
pub(crate) fn as_array(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        _ => &[],
    }
}

/// The bytes of a string.
pub(crate) fn as_bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        Value::Okay => Some(b"OK"),
        _ => None,
    }
}

/// The same as text.
pub(crate) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::VerbatimString { text, .. } => Some(text.clone()),
        other => as_bytes(other).map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
    }
}

/// A number, also one written as text; 0 for anything else.
pub(crate) fn as_int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => as_text(other).and_then(|text| text.parse().ok()).unwrap_or(0),
    }
}
