//! Values of documents as they are stored, of which a text need not be UTF-8.

use std::borrow::Cow;
use std::fmt::Write as _;

use dlq_core::Timestamp;
use mongodb::bson::spec::{BinarySubtype, ElementType};
use mongodb::bson::{Bson, RawBsonRef, RawDocument, doc};

/// A value, as far as it has been looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'d> {
    Null,
    /// A text, which other drivers may have written without looking whether it is UTF-8.
    Text(&'d [u8]),
    /// Plain binary.
    Bytes(&'d [u8]),
    Time(i64),
    Document(&'d RawDocument),
    Other(RawBsonRef<'d>),
}

/// The fields of a document, in order. Ends with an error where the bytes are not a document.
pub(super) fn elements(
    document: &RawDocument,
) -> impl Iterator<Item = Result<(&str, Value<'_>), String>> {
    // The driver refuses a text that is not UTF-8, so texts are cut out of the bytes here. For that their places are
    // counted.
    let mut at = size_of::<i32>();
    document.iter_elements().map(move |element| {
        let element = element.map_err(|error| error.to_string())?;
        let name = element.key().as_str();
        // The type, the name and its end come before the value.
        let start = at + 1 + name.len() + 1;
        at = start + element.size();
        if element.element_type() == ElementType::String {
            // Its length comes before a text, and a zero after it.
            let text = document.as_bytes().get(start + size_of::<i32>()..at.saturating_sub(1));
            let text = text.ok_or_else(|| format!("field `{name}` is cut off"))?;
            return Ok((name, Value::Text(text)));
        }
        let value = element.value();
        let value = value.map_err(|error| format!("field `{name}` cannot be read ({error})"))?;
        Ok((
            name,
            match value {
                RawBsonRef::Null | RawBsonRef::Undefined => Value::Null,
                RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Generic => {
                    Value::Bytes(binary.bytes)
                }
                RawBsonRef::DateTime(time) => Value::Time(time.timestamp_millis()),
                RawBsonRef::Document(document) => Value::Document(document),
                other => Value::Other(other),
            },
        ))
    })
}

impl<'d> Value<'d> {
    /// The type, as the database calls it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Text(_) => "string",
            Self::Bytes(_) => "binData",
            Self::Time(_) => "date",
            Self::Document(_) => "object",
            Self::Other(value) => match value {
                RawBsonRef::Array(_) => "array",
                RawBsonRef::Binary(_) => "binData of another subtype",
                RawBsonRef::Boolean(_) => "bool",
                RawBsonRef::Double(_) => "double",
                RawBsonRef::Int32(_) => "int",
                RawBsonRef::Int64(_) => "long",
                RawBsonRef::Decimal128(_) => "decimal",
                RawBsonRef::ObjectId(_) => "objectId",
                RawBsonRef::Timestamp(_) => "timestamp",
                _ => "a rare type",
            },
        }
    }

    /// The value as a text: texts and times as they are, bytes in hexadecimal digits, all else as JSON.
    pub(super) fn shown(&self) -> Result<Cow<'d, str>, String> {
        Ok(match self {
            Self::Null => Cow::Borrowed("null"),
            Self::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => Cow::Owned(hex(bytes)),
            },
            Self::Bytes(bytes) => Cow::Owned(hex(bytes)),
            Self::Time(millis) => Cow::Owned(match time(*millis) {
                Some(time) => time.to_string(),
                None => format!("{millis} ms since 1970"),
            }),
            Self::Document(document) => Cow::Owned(json(RawBsonRef::Document(document))?),
            Self::Other(RawBsonRef::ObjectId(id)) => Cow::Owned(id.to_hex()),
            Self::Other(RawBsonRef::Binary(binary)) => Cow::Owned(hex(binary.bytes)),
            Self::Other(value) => Cow::Owned(json(*value)?),
        })
    }

    /// A whole number, of whatever type.
    pub(super) fn whole(&self) -> Option<i64> {
        match self {
            Self::Other(RawBsonRef::Int32(number)) => Some((*number).into()),
            Self::Other(RawBsonRef::Int64(number)) => Some(*number),
            #[allow(clippy::cast_possible_truncation, reason = "it is whole and small")]
            Self::Other(RawBsonRef::Double(number))
                if number.fract() == 0.0 && number.abs() < 1e15 =>
            {
                Some(*number as i64)
            }
            Self::Text(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// A time in the years that a letter can hold.
pub(super) fn time(millis: i64) -> Option<Timestamp> {
    millis.checked_mul(1_000_000).map(Timestamp::from_nanos)
}

fn json(value: RawBsonRef<'_>) -> Result<String, String> {
    let value: Bson = value.try_into().map_err(|error| format!("it cannot be read ({error})"))?;
    serde_json::to_string(&finite(value)).map_err(|error| format!("it is no JSON ({error})"))
}

/// Names the numbers for which JSON has no digits.
fn finite(value: Bson) -> Bson {
    match value {
        Bson::Double(number) if !number.is_finite() => {
            Bson::Document(doc! { "$numberDouble": number.to_string() })
        }
        Bson::Array(values) => Bson::Array(values.into_iter().map(finite).collect()),
        Bson::Document(fields) => {
            Bson::Document(fields.into_iter().map(|(name, value)| (name, finite(value))).collect())
        }
        other => other,
    }
}

/// Bytes in hexadecimal digits, as an import of a table shows them.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
