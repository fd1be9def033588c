//! Values as the database shows them.

use std::fmt;

use bytes::Bytes;
use dlq_core::{Header, Headers, Resolution, Status, Timestamp};
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// Reads a time as it is shown under `DateStyle` ISO in UTC, with or without its zone.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    let (day, hour) = text.split_once(' ')?;
    let hour = hour.strip_suffix("+00").unwrap_or(hour);
    // The rest of a time that is not in our years, or not in UTC, is not one that can be read.
    let is_plain = hour.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
    let at: Timestamp = format!("{day}T{hour}Z").parse().ok()?;
    is_plain.then_some(at)
}

/// Returns the status for a word; `None` if it is unknown.
pub(super) fn status(word: &str) -> Option<(Status, Option<Resolution>)> {
    let resolved = |resolution| (Status::Resolved, Some(resolution));
    match &*word.trim().to_ascii_lowercase() {
        // Whatever another program was about to do, nobody does it any more: the letter waits.
        "pending" | "new" | "open" | "failed" | "error" | "retrying" | "replaying" | "sent"
        | "held" | "processing" | "in_progress" => Some((Status::Pending, None)),
        "succeeded" | "success" | "successful" | "completed" | "complete" | "done" | "resolved"
        | "processed" | "replayed" | "retried" => Some(resolved(Resolution::Succeeded)),
        "duplicate" => Some(resolved(Resolution::Duplicate)),
        "dismissed" | "ignored" | "discarded" => Some(resolved(Resolution::Dismissed)),
        "quarantined" => Some((Status::Quarantined, None)),
        _ => None,
    }
}

/// Reads an object of JSON as headers, in order; whether they say all that it says.
pub(super) fn headers(json: &str) -> Option<(Headers, bool)> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let read = reader.deserialize_map(Object).ok()?;
    reader.end().ok().map(|()| read)
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = (Headers, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut headers = Headers::new();
        let mut is_all = true;
        while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
            let text = serde_json::from_str::<String>(value.get());
            is_all &= text.is_ok();
            let value = text.unwrap_or_else(|_| value.get().to_owned());
            headers.push(Header { name: name.into(), value: Some(Bytes::from(value)) });
        }
        Ok((headers, is_all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_microsecond() {
        let read = |text| time(text).map(|time| time.to_string());
        let at = Some("2026-11-21T03:00:00.123456000Z".to_owned());
        assert_eq!(read("2026-11-21 03:00:00.123456+00"), at);
        assert_eq!(read("2026-11-21 03:00:00.123456"), at);
        for text in [
            "infinity",
            "-infinity",
            "0044-03-15 00:00:00+00 BC",
            "12026-01-01 00:00:00+00",
            "2026-11-21 03:00:00+01",
            "2026-11-21 03:00:00+00:30",
            "2400-01-01 00:00:00+00",
            "1600-01-01 00:00:00+00",
            "2026-11-21",
            "",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn headers_keep_order_repetitions_and_digits() {
        let (read, is_all) = headers(r#"{"b": "1\n", "a": "", "b": "é", "": "x"}"#).unwrap();
        let pairs = read.iter().map(|header| (&*header.name, header.value.as_deref().unwrap()));
        let wanted: [(&[u8], &[u8]); 4] =
            [(b"b", b"1\n"), (b"a", b""), (b"b", "é".as_bytes()), (b"", b"x")];
        assert_eq!(pairs.collect::<Vec<_>>(), wanted);
        assert!(is_all);
        let (read, is_all) =
            headers(r#"{"n": 12345678901234567890.50, "o": {"a": [1, null]}, "z": null}"#).unwrap();
        assert_eq!(read.get_str("n"), Some("12345678901234567890.50"));
        assert_eq!(read.get_str("o"), Some(r#"{"a": [1, null]}"#));
        assert_eq!(read.get_str("z"), Some("null"));
        assert!(!is_all);
        for no in ["[]", "null", "", "{", r#"{"a": "\ud800"} x"#, "{} {}"] {
            assert_eq!(headers(no), None, "{no}");
        }
    }
}
