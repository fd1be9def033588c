//! Topics of dead letters, and what is written to them, record by record.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use dlq_core::DeadLetter;
use dlq_core::protocol::{Facts, on_death};
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaLetters};
use dlq_services::Running;

use crate::fixture::start;
pub(crate) use crate::fixture::{PATIENCE, available};
use crate::topic;

/// The timestamp of the first record, in milliseconds.
pub(crate) const BEGIN: i64 = 1_790_000_000_000;

/// The broker that all share. It has few groups: whoever plans a replay asks each of them.
pub(crate) fn shared() -> Arc<Mutex<Running>> {
    static BROKER: OnceLock<Arc<Mutex<Running>>> = OnceLock::new();
    Arc::clone(BROKER.get_or_init(|| Arc::new(Mutex::new(start()))))
}

/// A topic of dead letters.
pub(crate) struct Dead {
    running: Arc<Mutex<Running>>,
    pub(crate) brokers: Brokers,
    pub(crate) topic: String,
    admin: AdminClient<DefaultClientContext>,
    pub(crate) producer: FutureProducer,
    next: Mutex<i64>,
}

impl Dead {
    /// At the broker that all share.
    pub(crate) async fn fresh(partitions: i32) -> Self {
        Self::at(shared(), partitions).await
    }

    /// At a broker of its own.
    pub(crate) async fn own(partitions: i32) -> Self {
        Self::at(Arc::new(Mutex::new(start())), partitions).await
    }

    pub(crate) async fn at(running: Arc<Mutex<Running>>, partitions: i32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let topic = format!("orders-{}.dlq", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &url).set("linger.ms", "0");
        let (admin, producer) = (config.create().unwrap(), config.create().unwrap());
        let (brokers, next) = (Brokers::at(url), Mutex::new(0));
        let dead = Self { running, brokers, topic, admin, producer, next };
        dead.create(&dead.topic, partitions).await;
        dead
    }

    pub(crate) fn letters(&self) -> KafkaLetters {
        KafkaLetters::new(&self.brokers, self.topic.as_str())
    }

    pub(crate) async fn create(&self, name: &str, partitions: i32) {
        topic::make(self.brokers.bootstrap(), &new_topic(name, partitions)).await;
    }

    /// Deletes the topic, and makes it anew as soon as the broker lets.
    pub(crate) async fn create_anew(&self, partitions: i32) {
        let options = AdminOptions::new();
        let gone = self.admin.delete_topics(&[&self.topic], &options).await.unwrap();
        gone.into_iter().next().unwrap().unwrap();
        let new = new_topic(&self.topic, partitions);
        let made = async {
            while self.admin.create_topics([&new], &options).await.unwrap()[0].is_err() {}
        };
        tokio::time::timeout(PATIENCE, made).await.expect("the topic is made");
        // Until then the broker takes what is written for the old one.
        self.await_end(|end| end == Some(0));
    }

    /// Changes a setting of a topic; returns once the broker goes by it.
    pub(crate) async fn alter(&self, topic: &str, setting: &str, value: &str) {
        topic::alter(&self.admin, topic, setting, value).await;
    }

    /// Removes what stands before an offset, as retention does.
    pub(crate) async fn remove_before(&self, topic: &str, partition: i32, offset: i64) {
        let mut until = TopicPartitionList::new();
        until.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
        let gone = self.admin.delete_records(&until, &AdminOptions::new()).await.unwrap();
        gone.elements()[0].error().unwrap();
    }

    /// Writes a letter as a sink does, a second after the one before; its offset.
    pub(crate) async fn put(&self, partition: i32, letter: &DeadLetter) -> u64 {
        let at = BEGIN + 1_000 * self.count();
        let record = FutureRecord::<[u8], _>::to(&self.topic).partition(partition).timestamp(at);
        self.send(fill(record, letter)).await
    }

    fn count(&self) -> i64 {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        *next - 1
    }

    pub(crate) async fn send(&self, record: FutureRecord<'_, [u8], [u8]>) -> u64 {
        let written = self.producer.send(record, PATIENCE).await.unwrap();
        u64::try_from(written.offset).unwrap()
    }

    /// A producer of transactions that has begun one.
    pub(crate) fn transaction(&self, id: &str) -> FutureProducer {
        use dlq_kafka::rdkafka::producer::Producer as _;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers.bootstrap());
        config.set("transactional.id", format!("{}.{id}", self.topic)).set("linger.ms", "0");
        let producer: FutureProducer = config.create().unwrap();
        tokio::task::block_in_place(|| producer.init_transactions(PATIENCE).unwrap());
        producer.begin_transaction().unwrap();
        producer
    }

    /// Returns when the transactions before this offset of the first partition have ended: their marks are written
    /// after the producer has been answered.
    pub(crate) fn await_stable(&self, offset: i64) {
        self.await_end(|end| end.is_some_and(|end| end >= offset));
    }

    /// Returns when the first partition ends as it should; `None` stands for one that is not to be asked.
    fn await_end(&self, is_right: impl Fn(Option<i64>) -> bool) {
        let mut config = ClientConfig::new();
        let client: BaseConsumer =
            config.set("bootstrap.servers", self.brokers.bootstrap()).create().unwrap();
        let began = Instant::now();
        let end = || client.fetch_watermarks(&self.topic, 0, PATIENCE).ok().map(|ends| ends.1);
        while !is_right(tokio::task::block_in_place(end)) {
            assert!(began.elapsed() < PATIENCE, "the partition ends as it should");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Kills the broker, and starts it again on its data.
    pub(crate) fn kill_and_restart(&self) {
        tokio::task::block_in_place(|| {
            self.running.lock().unwrap_or_else(PoisonError::into_inner).restart().unwrap();
        });
    }
}

/// A topic that keeps what is months old: the broker looks for that half a minute after its start.
fn new_topic(name: &str, partitions: i32) -> NewTopic<'_> {
    NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1")
}

/// The record of a letter.
pub(crate) fn fill<'a>(
    record: FutureRecord<'a, [u8], [u8]>,
    letter: &'a DeadLetter,
) -> FutureRecord<'a, [u8], [u8]> {
    let message = &letter.message;
    let mut rest = BTreeMap::from([
        ("facts", serde_json::to_value(Facts::of(letter)).unwrap()),
        ("origin", serde_json::to_value(&letter.origin).unwrap()),
        ("subject", message.subject().into()),
    ]);
    rest.extend(message.id().map(|id| ("id", id.into())));
    rest.extend(message.event().map(|event| ("event", event.into())));
    let rest = serde_json::to_string(&rest).unwrap();
    let mut headers = OwnedHeaders::new();
    for header in &on_death(letter) {
        let key = std::str::from_utf8(&header.name).unwrap();
        headers = headers.insert(Header { key, value: header.value.as_deref() });
    }
    headers = headers.insert(Header { key: "dlq.kafka.rest", value: Some(&rest) });
    let mut record = record.headers(headers);
    record.key = message.key().map(|key| &key[..]);
    record.payload = message.payload().map(|payload| &payload[..]);
    record
}
