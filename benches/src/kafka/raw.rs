//! The same by the client alone, as a careful program would do it.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlq_kafka::rdkafka::config::FromClientConfig;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use dlq_kafka::rdkafka::message::{BorrowedMessage, Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use futures_util::FutureExt as _;

use super::Failed;
use super::healthy::Watch;

/// Interval of commits, as ours.
pub(super) const COMMIT: Duration = Duration::from_millis(100);

struct Positions {
    topic: String,
    next: BTreeMap<i32, i64>,
    committed: Instant,
}

impl Positions {
    fn new(topic: &str) -> Self {
        Self { topic: topic.to_owned(), next: BTreeMap::new(), committed: Instant::now() }
    }

    fn list(&self) -> Result<TopicPartitionList, Failed> {
        let mut list = TopicPartitionList::new();
        for (partition, next) in &self.next {
            list.add_partition_offset(&self.topic, *partition, Offset::Offset(*next))?;
        }
        Ok(list)
    }

    fn done(&mut self, consumer: &BaseConsumer, partition: i32, offset: i64) -> Result<(), Failed> {
        self.next.insert(partition, offset + 1);
        if self.committed.elapsed() >= COMMIT {
            self.committed = Instant::now();
            consumer.commit(&self.list()?, CommitMode::Async)?;
        }
        Ok(())
    }
}

/// A consumer that has joined its group.
pub(super) fn joined<C>(mut config: ClientConfig, topic: &str, group: &str) -> Result<C, Failed>
where
    C: FromClientConfig + Consumer,
{
    config
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "100")
        // As ours: with the client's own a second passes whenever its buffer was full.
        .set("queued.min.messages", "20000")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.queue.backoff.ms", "10");
    let consumer: C = config.create()?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

pub(super) fn next(consumer: &BaseConsumer) -> Result<BorrowedMessage<'_>, Failed> {
    loop {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            return Ok(message?);
        }
    }
}

/// Measures consuming so many records, one in flight, and leaving the group.
pub(super) fn consume(
    config: ClientConfig,
    topic: &str,
    group: &str,
    count: usize,
) -> Result<Duration, Failed> {
    let consumer: BaseConsumer = joined(config, topic, group)?;
    let mut positions = Positions::new(topic);
    let mut start = None;
    for _ in 0..count {
        let message = next(&consumer)?;
        start.get_or_insert_with(Instant::now);
        black_box(message.payload().map(<[u8]>::len));
        positions.done(&consumer, message.partition(), message.offset())?;
    }
    consumer.commit(&positions.list()?, CommitMode::Sync)?;
    drop(consumer);
    Ok(start.map(|start| start.elapsed()).unwrap_or_default())
}

/// Measures writing so many records to another topic, with nine headers, awaiting the confirmation, and committing only
/// then; so many at once.
pub(super) async fn forward(
    config: ClientConfig,
    topic: &str,
    to: &str,
    group: &str,
    count: usize,
    in_flight: usize,
) -> Result<Duration, Failed> {
    let consumer: BaseConsumer = joined(config.clone(), topic, group)?;
    let mut config = config;
    let producer: FutureProducer =
        config.set("enable.idempotence", "true").set("linger.ms", "1").create()?;
    let mut positions = Positions::new(topic);
    let mut sent: VecDeque<(i32, i64, DeliveryFuture)> = VecDeque::new();
    let mut start = None;
    for _ in 0..count {
        if sent.len() == in_flight {
            confirm(&consumer, &mut positions, sent.pop_front()).await?;
        }
        let message = next(&consumer)?;
        start.get_or_insert_with(Instant::now);
        let mut record = FutureRecord::<[u8], [u8]>::to(to).headers(nine_headers());
        record.key = message.key();
        record.payload = message.payload();
        let delivery = producer.send_result(record).map_err(|(error, _)| error)?;
        sent.push_back((message.partition(), message.offset(), delivery));
    }
    while !sent.is_empty() {
        confirm(&consumer, &mut positions, sent.pop_front()).await?;
    }
    consumer.commit(&positions.list()?, CommitMode::Sync)?;
    Ok(start.map(|start| start.elapsed()).unwrap_or_default())
}

/// Reads a topic until it is told to stop, and commits. Where there is another topic, a tenth of the records is written to
/// it, and read there as well. How many were.
pub(super) fn divert(
    config: ClientConfig,
    topic: &str,
    to: Option<&str>,
    watch: &Watch,
    stop: &AtomicBool,
) -> Result<u64, Failed> {
    let consumer: BaseConsumer = joined(config.clone(), topic, topic)?;
    let topics: Vec<&str> = [topic].into_iter().chain(to).collect();
    consumer.subscribe(&topics)?;
    let mut config = config;
    let producer: FutureProducer =
        config.set("enable.idempotence", "true").set("linger.ms", "2").create()?;
    let mut positions = Positions::new(topic);
    let mut others = Positions::new(to.unwrap_or_default());
    let mut sent: VecDeque<(i32, i64, DeliveryFuture)> = VecDeque::new();
    let mut diverted = 0;
    while !stop.load(Ordering::Relaxed) {
        while let Some((partition, offset, delivery)) = sent.front_mut()
            && let Some(delivered) = delivery.now_or_never()
        {
            delivered?.map_err(|(error, _)| error)?;
            positions.done(&consumer, *partition, *offset)?;
            sent.pop_front();
        }
        let Some(message) = consumer.poll(Duration::from_millis(20)) else { continue };
        let message = message?;
        if message.topic() != topic {
            others.done(&consumer, message.partition(), message.offset())?;
        } else if !watch.is_healthy(message.key(), message.payload())
            && let Some(to) = to
        {
            let mut record = FutureRecord::<[u8], [u8]>::to(to).headers(nine_headers());
            record.key = message.key();
            record.payload = message.payload();
            let delivery = producer.send_result(record).map_err(|(error, _)| error)?;
            sent.push_back((message.partition(), message.offset(), delivery));
            diverted += 1;
        } else {
            positions.done(&consumer, message.partition(), message.offset())?;
        }
    }
    Ok(diverted)
}

fn nine_headers() -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(9);
    for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        headers = headers.insert(Header { key, value: Some("some text of a header") });
    }
    headers
}

async fn confirm(
    consumer: &BaseConsumer,
    positions: &mut Positions,
    first: Option<(i32, i64, DeliveryFuture)>,
) -> Result<(), Failed> {
    let Some((partition, offset, delivery)) = first else { return Ok(()) };
    delivery.await?.map_err(|(error, _)| error)?;
    positions.done(consumer, partition, offset)
}
