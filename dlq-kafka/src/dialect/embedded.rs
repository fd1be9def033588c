//! Headers that stand in front of the payload, as Spring Cloud Stream writes them where it was told to
//! (`headerMode: embeddedHeaders`): `0xff`, one byte with how many there are, and of each the length of its name in one
//! byte, the name, the length of its value in four, the value as JSON. The payload is the rest.

use bytes::{BufMut as _, Bytes};
use dlq_core::Header;
use serde_json::Value;

use super::fields::{Fields, Newest};
use super::spring_cloud_stream as stream;
use crate::client::record::Record;

const MAGIC: u8 = 0xff;

/// The record as it would be with the headers of a death in their place: the payload is what the producer sent, with
/// headers that the producer had embedded in front of it as they were. `None` for every record but such a dead letter.
pub(super) fn opened(record: &Record) -> Option<Record> {
    let value = record.value.as_ref()?;
    let (&count, mut rest) = value.strip_prefix(&[MAGIC])?.split_first()?;
    let mut headers = record.headers.clone();
    let mut others: Vec<&[u8]> = Vec::new();
    for _ in 0..count {
        let start = rest;
        let (name, json);
        (name, rest) = taken::<1>(rest)?;
        (json, rest) = taken::<4>(rest)?;
        if stream::owns(name) {
            let value = Some(native(name, serde_json::from_slice(json).ok()?)?);
            headers.push(Header { name: Bytes::copy_from_slice(name), value });
        } else {
            // The bytes are kept as they were, since the producer's own embedded headers are a part of what it sent (G8).
            others.push(&start[..start.len() - rest.len()]);
        }
    }
    if headers.len() == record.headers.len() {
        // Whatever it begins with, none of it tells of a death.
        return None;
    }
    let mut payload = Vec::with_capacity(value.len());
    if !others.is_empty() {
        payload.put_slice(&[MAGIC, u8::try_from(others.len()).ok()?]);
        others.iter().for_each(|header| payload.put_slice(header));
    }
    payload.put_slice(rest);
    let opened = Record { headers, value: Some(payload.into()), ..record.clone() };
    // Any payload may begin with this byte and happen to fit. Only one that tells a whole death is opened.
    stream::read(Fields::new(&opened, Newest::Last, stream::owns))?;
    Some(opened)
}

/// Splits off a part that is preceded by its length, in so many bytes. Returns the part and the rest.
fn taken<const N: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<N>()?;
    let length = length.iter().fold(0_usize, |length, byte| (length << 8) | usize::from(*byte));
    rest.split_at_checked(length)
}

/// A value as it stands in a header.
fn native(name: &[u8], value: Value) -> Option<Bytes> {
    Some(match (name, value) {
        (b"x-original-partition", value) => {
            Bytes::copy_from_slice(&i32::try_from(value.as_i64()?).ok()?.to_be_bytes())
        }
        (b"x-original-offset" | b"x-original-timestamp", value) => {
            Bytes::copy_from_slice(&value.as_i64()?.to_be_bytes())
        }
        (_, Value::String(text)) => text.into(),
        _ => return None,
    })
}
