//! Bytes in JSON: a string when they are UTF-8, `{"base64": "…"}` when they are not, so that nothing is lost and what
//! is readable stays readable.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Base64 { base64: String },
}

/// Serializes bytes as text where they are text.
pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serializer.serialize_str(text),
        Err(_) => Text::Base64 { base64: STANDARD.encode(bytes) }.serialize(serializer),
    }
}

/// Reads what [`serialize`] writes.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    match Text::deserialize(deserializer)? {
        Text::Utf8(text) => Ok(Bytes::from(text)),
        Text::Base64 { base64 } => {
            STANDARD.decode(base64).map(Bytes::from).map_err(serde::de::Error::custom)
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Wrapped(#[serde(with = "crate::bytes_text")] Bytes);

/// The same for bytes that may be absent (`null`).
pub(crate) mod option {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer, Wrapped};

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Wrapped).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
    }
}
