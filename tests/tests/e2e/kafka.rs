//! `kill -9` of brokers: every message succeeded or has exactly one letter.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::message::Headers as _;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaLetters, Reading, Record, dialect};
use dlq_services::Service;
use dlq_tests::kafka::{LETTERS, PARTITIONS, RETRIES, TOPIC};
use dlq_tests::work::{Kind, kind};
use dlq_tower::core::log::Range;
use dlq_tower::core::protocol::split;
use dlq_tower::core::{DeadLetter, Filter, Header, Position, Timestamp};

use crate::random::number;
use crate::servers::Servers;
use crate::victim::Victim;
use crate::world::{World, kill_servers};

/// How long the servers may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers, and the messages on them.
pub(crate) struct Kafka {
    servers: Servers,
    messages: u64,
    pub(crate) bootstrap: String,
}

impl Kafka {
    pub(crate) fn one() -> Option<Servers> {
        tokio::task::block_in_place(|| Servers::one(Service::Kafka, SETTINGS))
    }

    fn three() -> Option<Servers> {
        tokio::task::block_in_place(|| Servers::three(Service::Kafka, SETTINGS))
    }

    /// Message `n` is in partition `n % PARTITIONS`.
    pub(crate) async fn new(servers: Option<Servers>, messages: u64) -> Option<Self> {
        let servers = servers?;
        let bootstrap = servers.urls().join(",");
        create(&bootstrap, TOPIC, PARTITIONS, servers.replicas()).await;
        publish(&bootstrap, TOPIC, PARTITIONS, messages).await;
        Some(Self { servers, messages, bootstrap })
    }

    /// Every letter and every retry record as it stands, by message; a copy is counted.
    pub(crate) fn copies(&self) -> Copies {
        let mut copies = Copies::default();
        for letter in letters(&self.bootstrap, LETTERS, PARTITIONS) {
            *copies.letters.entry(message_of(&letter)).or_default() += 1;
        }
        for record in read(&self.bootstrap, RETRIES, PARTITIONS) {
            let (_, ours) = split(&record.headers);
            assert_eq!(ours.delayed_retries, Some(1), "{record:?}");
            let text = std::str::from_utf8(record.value.as_ref().unwrap()).unwrap();
            *copies.hops.entry(text.parse().unwrap()).or_default() += 1;
        }
        let flaky = (0..self.messages).filter(|n| kind(*n) == Kind::Flaky);
        assert!(
            copies.hops.keys().copied().eq(flaky),
            "only what fails once goes to the retry topic"
        );
        copies
    }
}

/// Kills come faster than by default.
const SETTINGS: &[(&str, &str)] = &[("group.min.session.timeout.ms", "500")];

/// How often each message stands in a topic of ours.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) letters: BTreeMap<u64, usize>,
    pub(crate) hops: BTreeMap<u64, usize>,
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = |of: &BTreeMap<u64, usize>| of.values().map(|times| times - 1).sum::<usize>();
        let (letters, hops) = (self.letters.len(), self.hops.len());
        write!(f, "{letters} letters and {} copies, ", more(&self.letters))?;
        write!(f, "{hops} retry records and {} copies", more(&self.hops))
    }
}

fn message_of(letter: &DeadLetter) -> u64 {
    let origin = &letter.origin;
    let (&Position::Offset(offset), Some(partition)) = (origin.position(), origin.partition())
    else {
        panic!("{letter:?}")
    };
    assert_eq!(origin.stream(), TOPIC);
    offset * PARTITIONS as u64 + u64::from(partition)
}

impl World for Kafka {
    fn servers(&mut self) -> &mut Servers {
        &mut self.servers
    }

    fn messages(&self) -> u64 {
        self.messages
    }

    fn victim(&self, folder: &Path) -> Victim {
        Victim::of(env!("CARGO_BIN_EXE_kafka-victim"), folder, &[&self.bootstrap])
    }

    async fn letters(&self) -> Vec<(u64, DeadLetter)> {
        let letters = KafkaLetters::new(&Brokers::at(&*self.bootstrap), LETTERS);
        let reading = Reading::of(letters, Range::all()).await.unwrap();
        let rows = reading.rows(&Filter::new()).await.unwrap().into_iter();
        rows.map(|row| (message_of(&row.letter), row.letter)).collect()
    }
}

fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

pub(crate) async fn create(bootstrap: &str, topic: &str, partitions: i32, replicas: usize) {
    let admin: AdminClient<DefaultClientContext> = client(bootstrap).create().unwrap();
    let replication = TopicReplication::Fixed(i32::try_from(replicas).unwrap());
    let topic = NewTopic::new(topic, partitions, replication);
    let made = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    made.into_iter().next().unwrap().unwrap();
    // The controller answers before the brokers have heard of it.
    let reader: BaseConsumer = client(bootstrap).create().unwrap();
    let is_led = |partition| reader.fetch_watermarks(topic.name, partition, PATIENCE).is_ok();
    let until = Instant::now() + PATIENCE;
    while !tokio::task::block_in_place(|| (0..partitions).all(is_led)) {
        assert!(Instant::now() < until, "`{}` is not there", topic.name);
    }
}

/// Publishes so many messages, of which each is its number, to the partitions in turn.
pub(crate) async fn publish(bootstrap: &str, topic: &str, partitions: i32, messages: u64) {
    let producer: FutureProducer =
        client(bootstrap).set("enable.idempotence", "true").create().unwrap();
    let mut sent = Vec::new();
    for n in 0..messages {
        let partition = i32::try_from(n % partitions as u64).unwrap();
        let text = n.to_string();
        let record = FutureRecord::<[u8], str>::to(topic).partition(partition).payload(&text);
        sent.push(producer.send_result(record).unwrap());
    }
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
}

/// Every record of a topic.
pub(crate) fn read(bootstrap: &str, topic: &str, partitions: i32) -> Vec<Record> {
    tokio::task::block_in_place(|| {
        let mut config = client(bootstrap);
        let config = config.set("group.id", "tests.reader").set("enable.auto.commit", "false");
        let reader: BaseConsumer = config.create().unwrap();
        let (mut all, mut left) = (TopicPartitionList::new(), 0);
        for partition in 0..partitions {
            let (low, high) = reader.fetch_watermarks(topic, partition, PATIENCE).unwrap();
            left += high - low;
            all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        reader.assign(&all).unwrap();
        let next = |_| {
            let message = reader.poll(PATIENCE).expect("a record comes").unwrap();
            let header = |header: dlq_kafka::rdkafka::message::Header<'_, &[u8]>| Header {
                name: header.key.to_owned().into(),
                value: header.value.map(|value| value.to_vec().into()),
            };
            let headers = message.headers();
            Record {
                topic: topic.into(),
                partition: u32::try_from(message.partition()).unwrap(),
                offset: u64::try_from(message.offset()).unwrap(),
                timestamp: message.timestamp().to_millis().map(Timestamp::from_millis),
                key: message.key().map(|key| key.to_vec().into()),
                value: message.payload().map(|value| value.to_vec().into()),
                headers: headers.into_iter().flat_map(|all| all.iter().map(header)).collect(),
                unreadable_headers: 0,
            }
        };
        (0..left).map(next).collect()
    })
}

/// Every letter of a topic, and every copy.
pub(crate) fn letters(bootstrap: &str, topic: &str, partitions: i32) -> Vec<DeadLetter> {
    let cluster = Arc::from("default");
    let records = read(bootstrap, topic, partitions);
    records.iter().map(|record| dialect::letter(record, &cluster)).collect()
}

async fn kill_brokers(servers: Option<Servers>) -> Option<String> {
    let kafka = Kafka::new(servers, number("DLQ_KAFKA_MESSAGES", 6_000)).await?;
    Some(kill_servers(kafka, number("DLQ_KAFKA_SERVER_KILLS", 3)).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_kafka_a_killed_broker_loses_nothing() {
    let Some(found) = kill_brokers(Kafka::one()).await else { return };
    println!("one broker: {found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_kafka_a_killed_broker_of_three_loses_nothing() {
    let Some(found) = kill_brokers(Kafka::three()).await else { return };
    println!("one broker of three: {found}");
}
