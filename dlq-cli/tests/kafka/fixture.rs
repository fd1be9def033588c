//! One broker for all tests, and topics for each.

use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dlq_core::protocol::{Facts, on_death};
use dlq_core::{DeadLetter, LetterId, Message, Origin, Position};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_services::{Running, Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter;
use serde_json::json;
use tokio::time::timeout;

use crate::common::{Ran, dlq};
use crate::process::Process;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the broker is; `None` where there is none to be had.
fn broker() -> Option<&'static str> {
    static BROKER: OnceLock<Option<Running>> = OnceLock::new();
    let started = || {
        or_skip(Service::Kafka, ensure_installed(Service::Kafka)).ok()?;
        let builder = Service::Kafka.builder().setting("group.min.session.timeout.ms", "3000");
        Some(builder.start().unwrap())
    };
    BROKER.get_or_init(started).as_ref().map(Running::url)
}

/// The topics of one test, and the command on its dead letters.
pub(crate) struct Bench {
    /// `host:port`.
    pub(crate) host: &'static str,
    /// Where messages are born.
    pub(crate) source: String,
    /// Where their letters are: three partitions.
    pub(crate) dlq: String,
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    /// One of this name; `None` where there is no broker to be had.
    pub(crate) async fn new(name: &str) -> Option<Self> {
        let host = tokio::task::block_in_place(broker)?;
        let bench = Self::at(host, name);
        bench.create(&bench.dlq, 3).await;
        Some(bench)
    }

    /// One at this server, without any topic yet.
    pub(crate) fn at(host: &'static str, name: &str) -> Self {
        let (source, dlq) = (name.to_owned(), format!("{name}.dlq"));
        Self { host, source, dlq, folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) async fn with(name: &str, letters: Vec<DeadLetter>) -> Option<Self> {
        let bench = Self::new(name).await?;
        bench.put(letters).await;
        Some(bench)
    }

    /// One with letters of messages that were really born, two partitions of them.
    pub(crate) async fn born(name: &str, count: u64) -> Option<Self> {
        Self::born_in("default", name, count).await
    }

    /// The same of consumers that have this alias for the cluster.
    pub(crate) async fn born_in(cluster: &str, name: &str, count: u64) -> Option<Self> {
        let bench = Self::new(name).await?;
        bench.create(&bench.source, 2).await;
        let producer = bench.producer();
        let mut letters = Vec::new();
        for n in 1..=count {
            let (key, value) = (format!("k-{n}"), n.to_string());
            let record = FutureRecord::to(&bench.source).key(&key).payload(&value);
            let sent = producer.send_result(record).map_err(|(error, _)| error).unwrap();
            let at = timeout(PATIENCE, sent).await.unwrap().unwrap().unwrap();
            let offset = Position::Offset(at.offset.try_into().unwrap());
            let origin = Origin::new("kafka", bench.source.as_str(), offset)
                .with_partition(at.partition.try_into().unwrap())
                .with_cluster(cluster);
            let message = Message::new(bench.source.as_str(), value).with_key(key);
            let mut letter = letter(n).with_message(message).with_consumer("billing");
            letter.id = LetterId::of(&origin, None, "billing");
            letter.origin = origin;
            letters.push(letter);
        }
        bench.put(letters).await;
        Some(bench)
    }

    pub(crate) async fn create(&self, topic: &str, partitions: i32) {
        self.create_with(topic, partitions, &[]).await;
    }

    pub(crate) async fn create_with(
        &self,
        topic: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) {
        let mut topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        self.make(&topic).await;
    }

    pub(crate) async fn make(&self, topic: &NewTopic<'_>) {
        let admin: AdminClient<DefaultClientContext> = self.config().create().unwrap();
        let made = admin.create_topics([topic], &AdminOptions::new()).await.unwrap();
        made[0].as_ref().unwrap();
        // The controller answers before the broker knows of it.
        let client: BaseConsumer = self.config().create().unwrap();
        let is_led = |partition| client.fetch_watermarks(topic.name, partition, PATIENCE).is_ok();
        let until = Instant::now() + PATIENCE;
        while !tokio::task::block_in_place(|| (0..topic.num_partitions).all(is_led)) {
            assert!(Instant::now() < until, "`{}` is not there", topic.name);
        }
    }

    /// Returns when the cluster has noticed that nobody is left who has this topic.
    pub(crate) fn await_leaderless(&self, topic: &str) {
        let until = Instant::now() + PATIENCE;
        let is_led = || {
            let client: BaseConsumer = self.config().create().unwrap();
            let found = client.fetch_metadata(Some(topic), PATIENCE).unwrap();
            found.topics()[0].partitions().iter().any(|partition| partition.leader() >= 0)
        };
        while tokio::task::block_in_place(is_led) {
            assert!(Instant::now() < until, "`{topic}` is still led");
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.host);
        config
    }

    fn producer(&self) -> FutureProducer {
        self.config().set("linger.ms", "0").create().unwrap()
    }

    /// Writes letters as a consumer of ours does, one partition after the other.
    pub(crate) async fn put(&self, letters: Vec<DeadLetter>) {
        self.put_at(None, letters).await;
    }

    /// The same, written so many milliseconds after 1970.
    pub(crate) async fn put_at(&self, at: Option<i64>, letters: Vec<DeadLetter>) {
        let producer = self.producer();
        let mut sent = Vec::new();
        for (partition, letter) in (0..3).cycle().zip(&letters) {
            let (message, facts) = (&letter.message, Facts::of(letter));
            let rest = json!({
                "id": message.id(), "event": message.event(), "subject": message.subject(),
                "origin": letter.origin, "facts": facts,
            });
            let mut headers = OwnedHeaders::new();
            for header in &on_death(letter) {
                let key = std::str::from_utf8(&header.name).unwrap();
                headers = headers.insert(Header { key, value: header.value.as_deref() });
            }
            let rest = rest.to_string();
            headers = headers.insert(Header { key: "dlq.kafka.rest", value: Some(&rest) });
            let mut record =
                FutureRecord::<[u8], [u8]>::to(&self.dlq).partition(partition).headers(headers);
            record.timestamp = at;
            record.key = message.key().map(|key| &key[..]);
            record.payload = message.payload().map(|payload| &payload[..]);
            sent.push(producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        for sent in sent {
            timeout(PATIENCE, sent).await.unwrap().unwrap().unwrap();
        }
    }

    /// Writes a record to the topic of dead letters that nobody of us wrote.
    pub(crate) async fn put_foreign(&self, value: &[u8], headers: OwnedHeaders) {
        self.write(&self.dlq, value, headers).await;
    }

    /// Writes a record to this topic.
    pub(crate) async fn write(&self, topic: &str, value: &[u8], headers: OwnedHeaders) {
        let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers);
        record.payload = Some(value);
        let sent = self.producer().send(record, PATIENCE).await;
        sent.map_err(|(error, _)| error).unwrap();
    }

    /// How many offsets a topic has.
    pub(crate) fn written(&self, topic: &str) -> i64 {
        let count = || {
            let consumer: BaseConsumer = self.config().create().unwrap();
            let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
            let partitions = metadata.topics()[0].partitions().iter();
            partitions
                .map(|one| consumer.fetch_watermarks(topic, one.id(), PATIENCE).unwrap())
                .map(|(low, high)| high - low)
                .sum()
        };
        tokio::task::block_in_place(count)
    }

    /// The records of a topic, as keys and partitions, read as committed ones.
    pub(crate) fn records(&self, topic: &str) -> Vec<(String, i32)> {
        let read = || {
            let mut config = self.config();
            config.set("isolation.level", "read_uncommitted");
            let all: BaseConsumer = config.create().unwrap();
            config.set("group.id", "records").set("enable.partition.eof", "true");
            config.set("fetch.wait.max.ms", "10");
            config.set("isolation.level", "read_committed").set("enable.auto.commit", "false");
            let consumer: BaseConsumer = config.create().unwrap();
            let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
            let count = metadata.topics()[0].partitions().len();
            let mut list = dlq_kafka::rdkafka::TopicPartitionList::new();
            for partition in 0..i32::try_from(count).unwrap() {
                // A transaction ends for readers a moment after its producer was told.
                let end = |of: &BaseConsumer| of.fetch_watermarks(topic, partition, PATIENCE);
                let (last, until) = (end(&all).unwrap().1, Instant::now() + PATIENCE);
                while end(&consumer).unwrap().1 < last {
                    assert!(Instant::now() < until, "a transaction in `{topic}` does not end");
                }
                let from = dlq_kafka::rdkafka::Offset::Beginning;
                list.add_partition_offset(topic, partition, from).unwrap();
            }
            consumer.assign(&list).unwrap();
            let (mut records, mut ended) = (Vec::new(), 0);
            while ended < count {
                use dlq_kafka::rdkafka::Message as _;
                use dlq_kafka::rdkafka::error::KafkaError::PartitionEOF;
                match consumer.poll(PATIENCE).expect("the end comes") {
                    Ok(message) => {
                        let key = String::from_utf8(message.key().unwrap_or_default().to_vec());
                        records.push((key.unwrap(), message.partition()));
                    }
                    Err(PartitionEOF(_)) => ended += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            records.sort_unstable();
            records
        };
        tokio::task::block_in_place(read)
    }

    pub(crate) fn url(&self) -> String {
        format!("kafka://{}/{}", self.host, self.dlq)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn store_url(&self) -> String {
        format!("sqlite://{}", self.file("dlq.db"))
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_FROM", self.url());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        tokio::task::block_in_place(|| self.command(args).output().unwrap().into())
    }

    pub(crate) fn start(&self, args: &[&str]) -> Process {
        Process::start(self.command(args))
    }
}
