//! One broker for all tests, with topics and groups of its own for each; and one of its own for who kills it.
//!
//! Tests that are about settings of brokers have theirs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dlq_core::{Delivery, Disposition, Message, Settle, SharedClock, Source, SystemClock};
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaRetryQueue, KafkaSettle, KafkaSource, KafkaTransport, Ladder};
use dlq_services::{Builder, Running, Service, ensure_installed, or_skip};
use dlq_testkit::transport::{TransportFixture, is_quick};
use tokio::time::{sleep, timeout};

use crate::topic;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// After how long a process that says nothing is dead.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// The header that carries the id of a message.
const ID: &str = "message-id";

/// Whether there is a broker to be had; says so if not.
pub(crate) fn available() -> bool {
    or_skip(Service::Kafka, ensure_installed(Service::Kafka)).is_ok()
}

/// A topic at a broker, and what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct TestTopic {
    running: Arc<Mutex<Running>>,
    pub(crate) brokers: Brokers,
    pub(crate) topic: String,
}

/// The broker that all share.
pub(crate) fn shared() -> Arc<Mutex<Running>> {
    static BROKER: OnceLock<Arc<Mutex<Running>>> = OnceLock::new();
    Arc::clone(BROKER.get_or_init(|| Arc::new(Mutex::new(start()))))
}

/// Where it is.
pub(crate) fn url() -> String {
    shared().lock().unwrap_or_else(PoisonError::into_inner).url().to_owned()
}

/// A broker whose groups may miss a process soon.
pub(crate) fn start() -> Running {
    start_with(&[("group.min.session.timeout.ms", "500")])
}

/// A broker with these settings, which is ready for groups.
pub(crate) fn start_with(settings: &[(&str, &str)]) -> Running {
    let builder = Service::Kafka.builder().ours();
    start_as(settings.iter().fold(builder, |builder, (name, value)| builder.setting(*name, *value)))
}

/// A broker as this describes it, which is ready for groups.
pub(crate) fn start_as(builder: Builder) -> Running {
    tokio::task::block_in_place(|| {
        let running = builder.start().unwrap();
        // The first group of a cluster waits seconds for the topic of its offsets to be made.
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", running.url()).set("group.id", "first");
        let first: BaseConsumer = config.create().unwrap();
        let mut nothing = TopicPartitionList::new();
        nothing.add_partition("nothing", 0);
        let until = Instant::now() + PATIENCE;
        while let Err(error) = first.committed_offsets(nothing.clone(), PATIENCE) {
            assert!(Instant::now() < until, "the broker is not ready for groups: {error}");
        }
        running
    })
}

impl TestTopic {
    /// A topic of two partitions at the broker that all share.
    pub(crate) async fn fresh(name: &str) -> Self {
        Self::at(shared(), name, 2).await
    }

    /// The same at a broker of its own.
    pub(crate) async fn own(name: &str) -> Self {
        Self::at(Arc::new(Mutex::new(start())), name, 2).await
    }

    pub(crate) async fn with_partitions(name: &str, partitions: i32) -> Self {
        Self::at(shared(), name, partitions).await
    }

    pub(crate) async fn at(running: Arc<Mutex<Running>>, name: &str, partitions: i32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The number keeps topics of a test apart that is run by several suites, and Kafka bounds the length of names.
        let topic = format!("{}-{number}", &name[..name.len().min(60)]);
        let url = running.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let brokers = Brokers::at(url)
            .with("session.timeout.ms", LEASE.as_millis().to_string())
            .with("heartbeat.interval.ms", "500");
        let place = Self { running, brokers, topic };
        place.create(&place.topic, partitions, &[]).await;
        place
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers.bootstrap());
        config
    }

    pub(crate) async fn create(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (setting, value) in settings {
            new = new.set(setting, value);
        }
        topic::make(self.brokers.bootstrap(), &new).await;
    }

    /// Changes a setting of a topic; returns once the broker goes by it.
    pub(crate) async fn alter(&self, topic: &str, setting: &str, value: &str) {
        topic::alter(&self.config().create().unwrap(), topic, setting, value).await;
    }

    pub(crate) fn producer(&self) -> FutureProducer {
        self.config().set("linger.ms", "0").create().unwrap()
    }

    /// Publishes messages of which each is its number, without keys.
    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let producer = self.producer();
        for number in numbers {
            let payload = number.to_string();
            let record = FutureRecord::<[u8], _>::to(&self.topic).payload(payload.as_bytes());
            producer.send(record, PATIENCE).await.unwrap();
        }
    }

    pub(crate) async fn publish_keyed(&self, number: u32, key: &str) {
        let payload = number.to_string();
        let record = FutureRecord::to(&self.topic).key(key).payload(payload.as_bytes());
        self.producer().send(record, PATIENCE).await.unwrap();
    }

    pub(crate) async fn send(&self, topic: &str, payload: &[u8], headers: &[(&str, &[u8])]) {
        let mut all = OwnedHeaders::new();
        for (key, value) in headers {
            all = all.insert(Header { key, value: Some(*value) });
        }
        let record = FutureRecord::<[u8], _>::to(topic).payload(payload).headers(all);
        self.producer().send(record, PATIENCE).await.unwrap();
    }

    /// The consumer that most tests are about.
    pub(crate) fn billing(&self) -> KafkaTransport {
        self.consumer("billing")
    }

    pub(crate) fn consumer(&self, name: &str) -> KafkaTransport {
        KafkaTransport::new(&*self.topic)
            .name(name)
            .group(format!("{}-{name}", self.topic))
            .ladder(Ladder::of([Duration::from_secs(3), Duration::from_secs(20)]))
            .create_missing_topics()
    }

    /// The brokers for a member of this name; members of a group have their partitions in the order of their names.
    pub(crate) fn member(&self, name: &str) -> Brokers {
        self.brokers.clone().with("client.id", name)
    }

    /// The offset after the last record of partition 0 of this topic.
    pub(crate) fn end_of(&self, topic: &str) -> i64 {
        let asking: BaseConsumer = self.config().create().unwrap();
        let ends = || asking.fetch_watermarks(topic, 0, PATIENCE).unwrap();
        tokio::task::block_in_place(ends).1
    }

    pub(crate) fn kill_and_restart(&self) {
        let starts = self.running().starts();
        tokio::task::block_in_place(|| self.running().restart().unwrap());
        assert_eq!(self.running().starts(), starts + 1, "it was really killed");
    }
}

/// The next delivery; errors that pass are waited out, as a consumer does.
pub(crate) async fn next(source: &mut KafkaSource) -> (Delivery, KafkaSettle) {
    let next = async {
        loop {
            match source.next().await {
                Ok(next) => return next.expect("the source has not ended"),
                // It is not told again at once.
                Err(error) if error.is_transient() => {}
                Err(error) => panic!("the source failed: {error}"),
            }
        }
    };
    timeout(PATIENCE, next).await.expect("a delivery comes")
}

pub(crate) async fn handle(source: &mut KafkaSource) -> Delivery {
    let (delivery, settle) = next(source).await;
    settle.settle(Disposition::Succeeded).await.unwrap();
    delivery
}

pub(crate) fn number(delivery: &Delivery) -> u32 {
    std::str::from_utf8(delivery.message().payload().unwrap()).unwrap().parse().unwrap()
}

/// As the conformance suite wants it.
pub(crate) struct KafkaFixture {
    place: TestTopic,
    producer: FutureProducer,
    lease: Duration,
}

impl KafkaFixture {
    /// With a stage for what need not wait.
    fn consumer(&self, name: &str) -> KafkaTransport {
        let stages = [100, 3_000, 20_000].map(Duration::from_millis);
        self.place.consumer(name).id_header(ID).ladder(Ladder::of(stages))
    }
}

impl std::fmt::Debug for KafkaFixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.place.fmt(f)
    }
}

impl TransportFixture for KafkaFixture {
    type Source = KafkaSource;
    type DeliveredFrom = KafkaRetryQueue;

    const PAUSED: bool = false;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(check: &'static str) -> Self {
        let mut place = if check.contains("restart") {
            TestTopic::own(check).await
        } else {
            TestTopic::fresh(check).await
        };
        let lease = if is_quick(check) { PATIENCE } else { LEASE };
        let timeout = lease.as_millis().to_string();
        place.brokers = place.brokers.with("session.timeout.ms", timeout);
        let producer = place.producer();
        Self { place, producer, lease }
    }

    async fn publish(&self, message: Message) -> bool {
        let mut headers = OwnedHeaders::new();
        for header in message.headers() {
            let Ok(key) = std::str::from_utf8(&header.name) else { return false };
            if key.contains('\0') {
                return false;
            }
            headers = headers.insert(Header { key, value: header.value.as_deref() });
        }
        if let Some(id) = message.id() {
            headers = headers.insert(Header { key: ID, value: Some(id) });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.place.topic).headers(headers);
        record.key = message.key().map(|key| &key[..]);
        record.payload = message.payload().map(|payload| &payload[..]);
        self.producer.send(record, PATIENCE).await.unwrap();
        true
    }

    async fn source(&self, consumer: &str) -> KafkaSource {
        self.consumer(consumer).source(&self.place.brokers).await.unwrap()
    }

    async fn retry_queue(&self) -> Option<KafkaRetryQueue> {
        Some(self.consumer("billing").retry_queue(&self.place.brokers).await.unwrap())
    }

    /// What is done is committed a moment later; what was not comes again, which is tested apart. One message is done.
    async fn restart(&self) -> bool {
        let group = format!("{}-billing", self.place.topic);
        let asking: BaseConsumer = self.place.config().set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.place.topic, 0, 1);
        let committed = || {
            let found = tokio::task::block_in_place(|| {
                asking.committed_offsets(list.clone(), PATIENCE).unwrap()
            });
            let is_done = |offset: Offset| offset.to_raw().is_some_and(|offset| offset > 0);
            found.elements().iter().any(|element| is_done(element.offset()))
        };
        let done = async {
            while !committed() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, done).await.expect("what is done is committed");
        self.place.kill_and_restart();
        true
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn clock(&self) -> SharedClock {
        SystemClock::shared()
    }
}
