//! What no client of ours would write.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{PATIENCE, TestTopic};

/// The checksum of record batches.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    };
    !bytes.iter().fold(!0, step)
}

/// A small number as the format of records has it; -1 is nothing.
fn varint(to: &mut Vec<u8>, number: i8) {
    to.push(((number << 1) ^ (number >> 7)).cast_unsigned());
}

fn sized(to: &mut Vec<u8>, bytes: &[u8]) {
    varint(to, i8::try_from(bytes.len()).unwrap());
    to.extend_from_slice(bytes);
}

/// A batch of one record.
fn batch(value: &[u8], headers: &[(&[u8], &[u8])]) -> Vec<u8> {
    // Attributes, time and offset are those of the batch; no key.
    let mut record = vec![0, 0, 0];
    varint(&mut record, -1);
    sized(&mut record, value);
    varint(&mut record, i8::try_from(headers.len()).unwrap());
    for (name, value) in headers {
        sized(&mut record, name);
        sized(&mut record, value);
    }
    // No codec, the last is the first.
    let mut rest = vec![0; 6];
    rest.extend_from_slice(&1_700_000_000_000_i64.to_be_bytes().repeat(2));
    // No producer's number, epoch and sequence.
    rest.extend_from_slice(&[0xff; 14]);
    rest.extend_from_slice(&1_i32.to_be_bytes());
    sized(&mut rest, &record);
    let mut batch = vec![0; 8];
    batch.extend_from_slice(&(rest.len() as i32 + 9).to_be_bytes());
    batch.extend_from_slice(&(-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend_from_slice(&crc32c(&rest).to_be_bytes());
    batch.extend_from_slice(&rest);
    batch
}

/// Writes one record to the first partition, headers as they are: clients have names that are text.
pub(crate) fn produce_raw(place: &TestTopic, value: &[u8], headers: &[(&[u8], &[u8])]) {
    // `Produce`, version 3, with a number and without a name of the client; no transaction, all replicas, ten seconds.
    let mut body = vec![0, 0, 0, 3, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    body.extend_from_slice(&10_000_i32.to_be_bytes());
    body.extend_from_slice(&1_i32.to_be_bytes());
    body.extend_from_slice(&(place.topic.len() as i16).to_be_bytes());
    body.extend_from_slice(place.topic.as_bytes());
    body.extend_from_slice(&1_i32.to_be_bytes());
    body.extend_from_slice(&0_i32.to_be_bytes());
    let batch = batch(value, headers);
    body.extend_from_slice(&(batch.len() as i32).to_be_bytes());
    body.extend_from_slice(&batch);
    let mut stream = TcpStream::connect(place.brokers.bootstrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&(body.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    // Length, number, one topic, its name, one partition, its number, its error.
    let mut answer = vec![0; 4 + 4 + 4 + 2 + place.topic.len() + 4 + 4 + 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[4..8], &answer[answer.len() - 2..]), (&[0, 0, 0, 7][..], &[0, 0][..]));
}

/// The warnings of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|warning| warning.contains(text)).cloned().collect()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
