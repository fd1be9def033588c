use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dlq_core::{Headers, Origin, Position, Timestamp};
use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;

use crate::client::record::{Record, kafka, read_headers};
use crate::consumer::partition::{Partition, Received};
use crate::consumer::shared::{DeliveryPosition, Taken};

/// Keys and values of so many bytes share an allocation. What is kept of one record keeps no more than this of others.
const MOST: usize = 4 * 1024;

/// Records of one partition that were fetched in a row.
///
/// They go from the thread that polls to that of the source as they are, so that the two write to the same memory once
/// for some dozens of records.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) partition: Arc<Partition>,
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    offset: u64,
    timestamp: Option<Timestamp>,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    headers: Headers,
    unreadable_headers: usize,
    received: Received,
}

impl Piece {
    /// `like` is one of which is to be thought that this will be as large.
    pub(crate) fn new(partition: Arc<Partition>, like: (usize, usize)) -> Self {
        let (bytes, rows) = like;
        Self { partition, bytes: Vec::with_capacity(bytes), rows: Vec::with_capacity(rows) }
    }

    /// Returns the size in bytes and records.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.bytes.len(), self.rows.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Retry records wait for long, and each for itself.
    pub(crate) fn is_full(&self) -> bool {
        // Records without bytes are bounded by their number.
        self.bytes.len() >= MOST || self.len() >= MOST / 16 || self.partition.stage.is_some()
    }

    pub(crate) fn push(&mut self, message: &BorrowedMessage<'_>) {
        let (headers, unreadable_headers) = message.headers().map(read_headers).unwrap_or_default();
        // The bytes are copied: a message that is kept borrows the client, and keeps the buffer of its whole fetch.
        let row = Row {
            offset: u64::try_from(message.offset()).unwrap_or(0),
            timestamp: message.timestamp().to_millis().map(Timestamp::from_millis),
            key: self.add(message.key()),
            value: self.add(message.payload()),
            headers,
            unreadable_headers,
            received: Received::default(),
        };
        self.rows.push(row);
    }

    fn add(&mut self, bytes: Option<&[u8]>) -> Option<Range<usize>> {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes?);
        Some(from..self.bytes.len())
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.rows.first().map(|row| row.offset)
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(u64) -> bool) {
        self.rows.retain(|row| keeps(row.offset));
    }

    /// Its records count as received by its partition. Those that an owner before has done are left out.
    pub(crate) fn receive(&mut self) {
        let rows = self.rows.iter_mut().map(|row| (row.offset, &mut row.received));
        self.partition.receive(rows);
        self.rows.retain(|row| !row.received.is_done);
    }

    /// Its records, one by one.
    pub(crate) fn records(self, cluster: &Arc<str>) -> Records {
        let Self { partition, mut bytes, rows } = self;
        // Records keep these bytes for as long as their handlers run, and must not keep the spare room.
        bytes.shrink_to_fit();
        let number = u32::try_from(partition.number).unwrap_or(0);
        let origin = Origin::new(kafka(), Arc::clone(&partition.topic), Position::Offset(0))
            .with_cluster(Arc::clone(cluster))
            .with_partition(number);
        Records { partition, bytes: bytes.into(), rows: rows.into_iter(), number, origin }
    }
}

/// The records of a [`Piece`].
#[derive(Debug)]
pub(crate) struct Records {
    partition: Arc<Partition>,
    bytes: Bytes,
    rows: std::vec::IntoIter<Row>,
    number: u32,
    origin: Origin,
}

impl Records {
    fn part(&self, part: Range<usize>) -> Bytes {
        self.bytes.slice(part)
    }
}

impl Iterator for Records {
    type Item = Taken;

    fn next(&mut self) -> Option<Taken> {
        let row = self.rows.next()?;
        let Row { offset, timestamp, key, value, headers, unreadable_headers, received } = row;
        let record = Record {
            topic: Arc::clone(&self.partition.topic),
            partition: self.number,
            offset,
            timestamp,
            key: key.map(|key| self.part(key)),
            value: value.map(|value| self.part(value)),
            headers,
            unreadable_headers,
        };
        let origin = self.origin.clone().with_position(Position::Offset(offset));
        let partition = Arc::clone(&self.partition);
        let place = DeliveryPosition { partition, sequence: received.sequence, offset };
        Some(Taken { record, origin, place, deaths: received.deaths })
    }
}
