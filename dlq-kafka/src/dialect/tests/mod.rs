//! Golden records: dead letters as each system writes them, header by header.

mod connect;
mod fields;
mod others;
mod ours;
mod share_group;
mod smallrye;
mod spring;
mod spring_cloud_stream;
mod streams;
mod total;

use std::sync::Arc;

use bytes::Bytes;
use dlq_core::{DeadLetter, Header, Headers, LetterId, Origin, Position, Timestamp};

use super::*;

/// When the records below were written, and when the ones that died were.
const DIED: Timestamp = Timestamp::from_millis(1_800_000_060_000);
const BORN: i64 = 1_800_000_000_000;

/// A record of a dead-letter topic, in partition 2 at offset 7, with a header of the producer's.
fn record(topic: &str) -> Record {
    Record {
        topic: topic.into(),
        partition: 2,
        offset: 7,
        timestamp: Some(DIED),
        key: Some(Bytes::from_static(b"\xff\0key")),
        value: Some(Bytes::from_static(b"\0\xfe{\"amount\":12.50}")),
        headers: [header("traceparent", Some(b"00-ab-01"))].into_iter().collect(),
        unreadable_headers: 0,
    }
}

fn header(name: impl Into<Bytes>, value: Option<&[u8]>) -> Header {
    Header { name: name.into(), value: value.map(Bytes::copy_from_slice) }
}

impl Record {
    fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push(header(name, Some(value.as_ref())));
        self
    }

    fn with_null(mut self, name: &'static str) -> Self {
        self.headers.push(header(name, None));
        self
    }

    /// Puts headers in front, in this order.
    fn after(mut self, first: &[(&'static str, &str)]) -> Self {
        let first = first.iter().map(|(name, value)| header(*name, Some(value.as_bytes())));
        self.headers = first.chain(self.headers.iter().cloned()).collect();
        self
    }
}

fn read(record: &Record) -> DeadLetter {
    letter(record, &Arc::from("default"))
}

/// The id of what was born there.
fn id(topic: &str, partition: u32, offset: u64, at: Option<i64>, consumer: &str) -> LetterId {
    let origin = Origin::new("kafka", topic, Position::Offset(offset)).with_partition(partition);
    LetterId::of(&origin, at.map(Timestamp::from_millis), consumer)
}

/// Asserts that the message is the producer's, byte for byte, with these headers besides the one of [`record`].
#[track_caller]
fn assert_producers(letter: &DeadLetter, record: &Record, others: &[(&str, Option<&[u8]>)]) {
    assert_eq!(letter.message.key(), record.key.as_ref());
    assert_eq!(letter.message.payload(), record.value.as_ref());
    let others = others.iter().map(|(name, value)| header(name.to_string(), *value));
    let expected: Headers =
        [header("traceparent", Some(b"00-ab-01"))].into_iter().chain(others).collect();
    assert_eq!(letter.message.headers(), &expected);
}

#[track_caller]
fn assert_attributes(letter: &DeadLetter, expected: &[(&str, &str)]) {
    let found: Vec<_> =
        letter.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, expected);
}
