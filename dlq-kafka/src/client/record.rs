use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use bytes::Bytes;
use dlq_core::{Header, Headers, Origin, Position, Timestamp};
use rdkafka::Message as _;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _};

/// A record of a topic, as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// Its timestamp, in milliseconds; `None` where it has none.
    pub timestamp: Option<Timestamp>,
    /// Its key; absent differs from empty.
    pub key: Option<Bytes>,
    /// Its value; an absent one is a tombstone.
    pub value: Option<Bytes>,
    /// Its headers in their order, names repeated and values absent where they are so.
    pub headers: Headers,
    /// Number of headers that could not be read because their names are not UTF-8: the client does not give their
    /// bytes.
    pub unreadable_headers: usize,
}

impl Record {
    /// `topic` is that of the message, shared.
    pub(crate) fn of(message: &BorrowedMessage<'_>, topic: Arc<str>) -> Self {
        let (headers, unreadable_headers) = message.headers().map(read_headers).unwrap_or_default();
        Self {
            topic,
            partition: u32::try_from(message.partition()).unwrap_or(0),
            offset: u64::try_from(message.offset()).unwrap_or(0),
            timestamp: message.timestamp().to_millis().map(Timestamp::from_millis),
            key: message.key().map(Bytes::copy_from_slice),
            value: message.payload().map(Bytes::copy_from_slice),
            headers,
            unreadable_headers,
        }
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn size(&self) -> usize {
        // What the structures take besides their bytes, by estimate: a record without a payload still takes room.
        const EACH: usize = 256;
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let header = |header: &Header| header.name.len() + part(&header.value) + 64;
        let headers: usize = self.headers.iter().map(header).sum();
        EACH + part(&self.key) + part(&self.value) + headers
    }

    /// Returns the position of the record.
    pub fn origin(&self, cluster: &Arc<str>) -> Origin {
        Origin::new(kafka(), Arc::clone(&self.topic), Position::Offset(self.offset))
            .with_cluster(Arc::clone(cluster))
            .with_partition(self.partition)
    }
}

/// Returns the name of this transport in origins, shared.
pub(crate) fn kafka() -> Arc<str> {
    thread_local! {
        static KAFKA: Arc<str> = Arc::from("kafka");
    }
    KAFKA.with(Arc::clone)
}

pub(crate) fn read_headers(headers: &BorrowedHeaders) -> (Headers, usize) {
    if cfg!(panic = "abort") {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            tracing::warn!(
                "this program is built with `panic = \"abort\"`: a header whose name is not UTF-8 ends it; build it with \
                 `panic = \"unwind\"`"
            );
        });
    }
    // The client panics at a name that is not UTF-8, which any producer can write. Whatever hook there is for panics
    // hears of it, so it is asked once.
    let each = (0..headers.count())
        .map(|index| catch_unwind(AssertUnwindSafe(|| read_header(headers, index))));
    let mut unreadable = 0;
    let readable = each.filter_map(|header| header.inspect_err(|_| unreadable += 1).ok()).collect();
    (readable, unreadable)
}

fn read_header(headers: &BorrowedHeaders, index: usize) -> Header {
    let header = headers.get(index);
    Header {
        name: Bytes::copy_from_slice(header.key.as_bytes()),
        value: header.value.map(Bytes::copy_from_slice),
    }
}
