//! Format of a message as an entry of a stream.
//!
//! | field | what |
//! |---|---|
//! | `d`, or the one that is configured | payload |
//! | `absent` | there is no payload, which differs from an empty one |
//! | `k` | key |
//! | `id` | the producer's id of the message |
//! | `s` | subject, where it is not that of the stream |
//! | `h:NAME` | header, in order; a name may come again |
//! | `n:NAME` | header without a value |
//! | any other | a header called `field:NAME` |
//!
//! An entry with neither payload nor `absent` was written by somebody else. Its payload is all of its fields as a JSON
//! object; where a field is not text or comes twice, as an array of pairs in which what is not text is `{"hex": …}`.

use bytes::Bytes;
use dlq_core::{Header, Headers, Message, Timestamp};
use redis::Value;
use serde_json::json;

/// The prefix of headers that are fields of a foreign entry.
const FIELD: &str = "field:";

/// Names of the fields with payload and key.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub(crate) payload: String,
    pub(crate) key: String,
}

impl Default for Fields {
    fn default() -> Self {
        Self { payload: "d".to_owned(), key: "k".to_owned() }
    }
}

/// Name and value of a field.
pub(crate) type Pair = (Vec<u8>, Bytes);

/// Reads an id such as `1700000000000-3`.
pub(crate) fn position(id: &str) -> Option<(u64, u64)> {
    let (millis, number) = id.split_once('-')?;
    Some((millis.parse().ok()?, number.parse().ok()?))
}

/// Names and values of an entry.
pub(crate) fn pairs(value: Value) -> Vec<Pair> {
    let flat: Vec<Bytes> = match value {
        Value::Array(items) => items.into_iter().map(bytes).collect(),
        Value::Map(pairs) => {
            pairs.into_iter().flat_map(|(name, value)| [bytes(name), bytes(value)]).collect()
        }
        _ => Vec::new(),
    };
    let mut pairs = Vec::with_capacity(flat.len() / 2);
    let mut flat = flat.into_iter();
    while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
        pairs.push((name.to_vec(), value));
    }
    pairs
}

pub(crate) fn bytes(value: Value) -> Bytes {
    match value {
        Value::BulkString(bytes) => bytes.into(),
        Value::SimpleString(text) => text.into_bytes().into(),
        Value::Int(number) => number.to_string().into_bytes().into(),
        _ => Bytes::new(),
    }
}

/// Reads the entry with this id.
pub(crate) fn read(
    id: &str,
    pairs: Vec<Pair>,
    fields: &Fields,
    subject: &std::sync::Arc<str>,
) -> Message {
    // The server makes ids of its time, so an entry knows when it was added without a field for it.
    let published = position(id).map_or(0, |(millis, _)| i64::try_from(millis).unwrap_or(i64::MAX));
    let published = Timestamp::from_millis(published);
    let marks_our_entry =
        |(name, _): &&Pair| *name == fields.payload.as_bytes() || name == b"absent";
    // An entry of others has no field for the payload. All of it is the payload, so that nothing of it is lost (G8).
    if pairs.iter().find(marks_our_entry).is_none() {
        let payload = everything(&pairs);
        return Message::new(subject.clone(), payload).with_published_at(published);
    }
    let mut message = Message::tombstone(subject.clone()).with_published_at(published);
    let mut headers = Headers::new();
    for (name, value) in pairs {
        if name == fields.payload.as_bytes() {
            message = message.with_payload(Some(value));
        } else if name == fields.key.as_bytes() {
            message = message.with_key(value);
        } else if let Some(header) = name.strip_prefix(b"h:") {
            headers.push(Header { name: Bytes::copy_from_slice(header), value: Some(value) });
        } else if let Some(header) = name.strip_prefix(b"n:") {
            headers.push(Header { name: Bytes::copy_from_slice(header), value: None });
        } else {
            let text = std::str::from_utf8(&value).ok();
            match (&name[..], text) {
                (b"absent", _) => {}
                (b"id", Some(id)) => message = message.with_id(id),
                // A message has its subject from the start, so it is made anew with what was read so far.
                (b"s", Some(subject)) => {
                    let (payload, key, id) = (
                        message.payload().cloned(),
                        message.key().cloned(),
                        message.id().map(str::to_owned),
                    );
                    message = Message::tombstone(subject)
                        .with_payload(payload)
                        .with_published_at(published);
                    if let Some(key) = key {
                        message = message.with_key(key);
                    }
                    if let Some(id) = id {
                        message = message.with_id(id);
                    }
                }
                _ => {
                    let name = [FIELD.as_bytes(), &name].concat().into();
                    headers.push(Header { name, value: Some(value) });
                }
            }
        }
    }
    message.with_headers(headers)
}

/// All fields of a foreign entry as JSON.
fn everything(pairs: &[Pair]) -> Vec<u8> {
    let texts: Option<Vec<(&str, &str)>> = pairs
        .iter()
        .map(|(name, value)| {
            Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
        })
        .collect();
    let object = texts.and_then(|texts| {
        let mut object = serde_json::Map::new();
        for (name, value) in texts {
            // An object has each name once, so that one value of a field that comes twice would be lost.
            if object.insert(name.to_owned(), value.into()).is_some() {
                return None;
            }
        }
        Some(serde_json::Value::Object(object))
    });
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => {
            json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
    };
    let json = object.unwrap_or_else(|| {
        pairs
            .iter()
            .map(|(name, value)| json!([text(name), text(value)]))
            .collect::<Vec<_>>()
            .into()
    });
    json.to_string().into_bytes()
}

/// Writes the parts of a message that come before its headers.
pub(crate) fn body(
    message: &Message,
    fields: &Fields,
    subject: &str,
    to: &mut impl FnMut(&[u8], &[u8]),
) {
    match message.payload() {
        Some(payload) => to(fields.payload.as_bytes(), payload),
        None => to(b"absent", b"1"),
    }
    if let Some(key) = message.key() {
        to(fields.key.as_bytes(), key);
    }
    if let Some(id) = message.id() {
        to(b"id", id.as_bytes());
    }
    // Nearly every message has the subject of its stream, which costs no field then.
    if message.subject() != subject {
        to(b"s", message.subject().as_bytes());
    }
}

/// Writes one header.
pub(crate) fn header(header: &Header, fields: &Fields, to: &mut impl FnMut(&[u8], &[u8])) {
    match (&header.value, header.name.strip_prefix(FIELD.as_bytes())) {
        // A header that was read from a field of a foreign entry becomes that field again, so that its owners can read it.
        (Some(value), Some(field)) if is_foreign(field, fields) => to(field, value),
        (Some(value), _) => to(&[b"h:", &header.name[..]].concat(), value),
        // A field always has a value, so that an absent one needs a name of its own (G8).
        (None, _) => to(&[b"n:", &header.name[..]].concat(), b""),
    }
}

/// Returns true if a field of this name is read as a header called `field:NAME`.
fn is_foreign(field: &[u8], fields: &Fields) -> bool {
    let ours: [&[u8]; 5] = [b"d", b"k", b"id", b"s", b"absent"];
    !ours.contains(&field)
        && field != fields.payload.as_bytes()
        && field != fields.key.as_bytes()
        && !field.starts_with(b"h:")
        && !field.starts_with(b"n:")
        // Letters have a field of this name, so that a header may not take it.
        && field != b"rest"
}

/// Writes a message as one entry: pairs of name and value.
#[must_use]
pub(crate) fn entry(message: &Message, fields: &Fields, subject: &str) -> Vec<Vec<u8>> {
    let mut flat = Vec::new();
    let mut to = |name: &[u8], value: &[u8]| flat.extend([name.to_vec(), value.to_vec()]);
    body(message, fields, subject, &mut to);
    for one in message.headers().iter() {
        header(one, fields, &mut to);
    }
    flat
}

#[cfg(test)]
mod tests {
    use dlq_testkit::fixtures::hostile_messages;

    use super::*;

    fn there_and_back(message: &Message) -> Message {
        back(message, &Fields::default())
    }

    fn back(message: &Message, fields: &Fields) -> Message {
        let flat = entry(message, fields, "s").into_iter().map(Value::BulkString).collect();
        read("0-1", pairs(Value::Array(flat)), fields, &"s".into())
    }

    #[test]
    fn g8_every_message_comes_back_byte_for_byte() {
        for (what, message) in hostile_messages() {
            let back = there_and_back(&message);
            assert_eq!(back.payload(), message.payload(), "{what}");
            assert_eq!(back.key(), message.key(), "{what}");
            assert_eq!(back.headers(), message.headers(), "{what}");
            assert_eq!((back.id(), back.subject()), (message.id(), message.subject()), "{what}");
        }
        let odd = Message::new("s", "x")
            .with_header("field:h:a", "1")
            .with_header("field:type", "2")
            .with_header("field:d", "3");
        assert_eq!(there_and_back(&odd).headers(), odd.headers());
        let named = Fields { payload: "data".to_owned(), key: "id-of".to_owned() };
        let odd = Message::new("s", "x")
            .with_key("y")
            .with_header("field:data", "1")
            .with_header("field:id-of", "2")
            .with_header("field:d", "3");
        let back = back(&odd, &named);
        assert_eq!((back.payload(), back.key()), (odd.payload(), odd.key()));
        assert_eq!(back.headers(), odd.headers());
    }

    #[test]
    fn g8_entries_of_others_are_messages() {
        let read = |flat: &[&[u8]], fields: &Fields| {
            let flat = flat.iter().map(|part| Value::BulkString(part.to_vec())).collect();
            super::read("5-0", pairs(Value::Array(flat)), fields, &"s".into())
        };
        let fields = Fields::default();
        let all = read(&[b"a", b"1", b"b", b"x"], &fields);
        assert_eq!(all.payload().unwrap(), &br#"{"a":"1","b":"x"}"#[..]);
        assert_eq!(all.published_at(), Some(Timestamp::from_millis(5)));
        let twice = read(&[b"a", b"1", b"a", b"\xff"], &fields);
        assert_eq!(twice.payload().unwrap(), &br#"[["a","1"],["a",{"hex":"ff"}]]"#[..]);
        let fields = Fields { payload: "data".to_owned(), ..fields };
        let own = read(&[b"type", b"paid", b"data", b"\0"], &fields);
        assert_eq!(own.payload().unwrap(), &b"\0"[..]);
        assert_eq!(own.headers().get("field:type"), Some(&b"paid"[..]));
    }
}
