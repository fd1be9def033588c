//! The client alone, with as many records in flight as ours has. They end in another order than they came, so it takes a
//! tracker to know what may be committed: of each partition, up to the lowest record that has not ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::pin::pin;
use std::time::{Duration, Instant};

use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, StreamConsumer};
use dlq_kafka::rdkafka::message::{BorrowedMessage, OwnedMessage};
use dlq_kafka::rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use futures_util::StreamExt as _;

use super::Failed;
use super::raw::{COMMIT, joined, next};

/// Records that have been received and may not be committed yet.
#[derive(Default)]
struct Tracker {
    /// Number of records that have gone from the front.
    gone: usize,
    /// Offsets, which may have gaps, and whether they have ended.
    open: VecDeque<(i64, bool)>,
    /// Offset to commit.
    next: i64,
}

impl Tracker {
    fn received(&mut self, offset: i64) -> usize {
        self.open.push_back((offset, false));
        self.gone + self.open.len() - 1
    }

    fn ended(&mut self, number: usize) {
        self.open[number - self.gone].1 = true;
        while let Some((offset, _)) = self.open.pop_front_if(|(_, ended)| *ended) {
            self.gone += 1;
            self.next = offset + 1;
        }
    }
}

/// A record in flight.
#[derive(Clone, Copy)]
struct RecordInFlight {
    partition: i32,
    number: usize,
}

struct Trackers {
    topic: String,
    partitions: BTreeMap<i32, Tracker>,
    committed: Instant,
}

impl Trackers {
    fn new(topic: &str) -> Self {
        let (partitions, committed) = (BTreeMap::new(), Instant::now());
        Self { topic: topic.to_owned(), partitions, committed }
    }

    fn received(&mut self, message: &BorrowedMessage<'_>) -> RecordInFlight {
        let partition = message.partition();
        let number = self.partitions.entry(partition).or_default().received(message.offset());
        RecordInFlight { partition, number }
    }

    fn ended(&mut self, consumer: &impl Consumer, place: RecordInFlight) -> Result<(), Failed> {
        let tracker = self.partitions.get_mut(&place.partition).ok_or("never received")?;
        tracker.ended(place.number);
        if self.committed.elapsed() >= COMMIT {
            self.committed = Instant::now();
            self.commit(consumer, CommitMode::Async)?;
        }
        Ok(())
    }

    fn commit(&self, consumer: &impl Consumer, mode: CommitMode) -> Result<(), Failed> {
        let mut list = TopicPartitionList::new();
        for (partition, tracker) in &self.partitions {
            list.add_partition_offset(&self.topic, *partition, Offset::Offset(tracker.next))?;
        }
        Ok(consumer.commit(&list, mode)?)
    }
}

/// Numbers that look like chance, the same in each run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Measures a loop that polls and has so many records in flight, of which it ends any.
pub(super) fn polled(
    config: ClientConfig,
    topic: &str,
    group: &str,
    count: usize,
    in_flight: usize,
) -> Result<Duration, Failed> {
    let consumer: BaseConsumer = joined(config, topic, group)?;
    let mut trackers = Trackers::new(topic);
    let mut held: Vec<(RecordInFlight, BorrowedMessage<'_>)> = Vec::with_capacity(in_flight);
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let mut start = None;
    for received in 0..count + in_flight {
        if held.len() == in_flight || received >= count {
            if held.is_empty() {
                break;
            }
            let (place, message) = held.swap_remove(chance.below(held.len()));
            black_box(message.payload().map(<[u8]>::len));
            drop(message);
            trackers.ended(&consumer, place)?;
        }
        if received < count {
            let message = next(&consumer)?;
            start.get_or_insert_with(Instant::now);
            held.push((trackers.received(&message), message));
        }
    }
    trackers.commit(&consumer, CommitMode::Sync)?;
    drop(held);
    drop(consumer);
    Ok(start.map(|start| start.elapsed()).unwrap_or_default())
}

/// An async handler that owns its record, as one that is spawned has to.
async fn own(message: OwnedMessage) {
    black_box(message.payload().map(<[u8]>::len));
}

async fn borrow(message: BorrowedMessage<'_>) {
    black_box(message.payload().map(<[u8]>::len));
}

/// The same by the client's stream and an async handler, which so many records are given to at once.
pub(super) async fn streamed(
    config: ClientConfig,
    topic: &str,
    group: &str,
    count: usize,
    in_flight: usize,
    owns: bool,
) -> Result<Duration, Failed> {
    let consumer: StreamConsumer = joined(config, topic, group)?;
    let trackers = RefCell::new(Trackers::new(topic));
    let start = Cell::new(None);
    {
        let received = consumer.stream().take(count).map(|message| {
            let received = message.map(|message| {
                start.set(start.get().or_else(|| Some(Instant::now())));
                (trackers.borrow_mut().received(&message), message)
            });
            async move {
                let (place, message) = received?;
                if owns {
                    own(message.detach()).await;
                } else {
                    borrow(message).await;
                }
                Ok::<_, Failed>(place)
            }
        });
        let mut ended = pin!(received.buffer_unordered(in_flight));
        while let Some(place) = ended.next().await {
            trackers.borrow_mut().ended(&consumer, place?)?;
        }
    }
    tokio::task::block_in_place(|| trackers.borrow().commit(&consumer, CommitMode::Sync))?;
    drop(consumer);
    Ok(start.get().map(|start| start.elapsed()).unwrap_or_default())
}
