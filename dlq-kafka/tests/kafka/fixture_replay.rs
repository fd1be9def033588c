//! Letters of a consumer, and what was sent back of them.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use dlq_core::protocol::{Facts, on_death};
use dlq_core::{DeadLetter, Filter, LetterId, Message, OperationId, Origin, Position, Timestamp};
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer};
use dlq_kafka::rdkafka::error::KafkaError;
use dlq_kafka::rdkafka::message::{Header, Headers, OwnedHeaders};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaLetters, KafkaReplay, KafkaTarget, ReplayReport};
use dlq_testkit::fixtures::letter_of;
use futures_util::future::join_all;

pub(crate) use crate::fixture::PATIENCE;
use crate::fixture::available;
use crate::fixture_letters::shared;
use crate::topic;

/// The partitions of the topics that letters are born in.
pub(crate) const PARTITIONS: i32 = 3;

/// Where the broker is that all tests share; `None`, and a word of it, when there is none.
pub(crate) fn broker() -> Option<String> {
    available().then(|| shared().lock().unwrap_or_else(PoisonError::into_inner).url().to_owned())
}

/// The dead letters of `billing`, which reads a topic.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) url: String,
    /// Where they are born.
    pub(crate) topic: String,
    pub(crate) dlq: String,
}

impl Shop {
    /// With topics of this name.
    pub(crate) async fn open(name: &str) -> Option<Self> {
        let shop = Self::at(broker()?, name);
        shop.create(&shop.topic, PARTITIONS, &[]).await;
        shop.create(&shop.dlq, 2, &[]).await;
        Some(shop)
    }

    /// The same, whose topics are there.
    pub(crate) fn at(url: String, name: &str) -> Self {
        Self { url, topic: name.to_owned(), dlq: format!("{name}.billing.dlq") }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.url);
        config
    }

    pub(crate) fn brokers(&self) -> Brokers {
        Brokers::at(&self.url)
    }

    pub(crate) async fn create(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (setting, value) in config {
            new = new.set(setting, value);
        }
        topic::make(&self.url, &new).await;
    }

    pub(crate) fn has_topic(&self, topic: &str) -> bool {
        let client: BaseConsumer = self.config().create().unwrap();
        let all = tokio::task::block_in_place(|| client.fetch_metadata(None, PATIENCE).unwrap());
        all.topics().iter().any(|found| found.name() == topic)
    }

    /// A letter of `billing` for this message, born in partition `number` modulo their count.
    pub(crate) fn letter(&self, number: u32, message: Message) -> DeadLetter {
        let message = message.with_published_at(Timestamp::from_millis(1_790_000_000_000));
        let mut letter = letter_of(message, u64::from(number));
        let partitions = u32::try_from(PARTITIONS).unwrap();
        letter.origin =
            Origin::new("kafka", self.topic.as_str(), Position::Offset(u64::from(number)))
                .with_partition(number % partitions);
        letter.consumer = "billing".to_owned();
        letter.id = LetterId::of(&letter.origin, letter.message.published_at(), &letter.consumer);
        letter
    }

    /// Letters for messages of which each is its number.
    pub(crate) fn dead(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<DeadLetter> {
        let one = |number: u32| {
            let message = Message::new(self.topic.as_str(), number.to_string());
            let message = message.with_header("traceparent", "00-1-2-01");
            self.letter(number, message.with_key(format!("customer-{}", number % 7)))
        };
        numbers.into_iter().map(one).collect()
    }

    /// Writes letters as a sink does.
    pub(crate) async fn bury(&self, letters: &[DeadLetter]) -> KafkaLetters {
        let producer: FutureProducer =
            self.config().set("message.max.bytes", "10000000").create().unwrap();
        let each = letters.iter().map(|letter| async {
            let (headers, key, payload) = written(letter);
            let mut record: FutureRecord<'_, [u8], [u8]> =
                FutureRecord::to(&self.dlq).headers(headers);
            (record.key, record.payload) = (key, payload);
            producer.send(record, PATIENCE).await.unwrap();
        });
        join_all(each).await;
        self.letters()
    }

    pub(crate) fn letters(&self) -> KafkaLetters {
        KafkaLetters::new(&self.brokers(), self.dlq.as_str())
    }

    /// What stands in a topic, for who reads what was committed.
    pub(crate) async fn read(&self, topic: &str) -> Vec<Read> {
        let (mut config, topic) = (self.config(), topic.to_owned());
        let url = self.url.clone();
        let read = move || {
            topic::settled(&url, &topic);
            let client: BaseConsumer = config
                .set("group.id", "reading")
                .set("enable.partition.eof", "true")
                .set("fetch.wait.max.ms", "10")
                .set("isolation.level", "read_committed")
                .create()
                .unwrap();
            let found = client.fetch_metadata(Some(&topic), PATIENCE).unwrap();
            let mut all = TopicPartitionList::new();
            for partition in found.topics()[0].partitions() {
                all.add_partition_offset(&topic, partition.id(), Offset::Beginning).unwrap();
            }
            client.assign(&all).unwrap();
            let (mut left, mut records) = (all.count(), Vec::new());
            let until = Instant::now() + PATIENCE;
            while left > 0 {
                assert!(Instant::now() < until, "the end of `{topic}` comes");
                match client.poll(Duration::from_secs(1)) {
                    Some(Ok(message)) => records.push(Read::of(&message)),
                    Some(Err(KafkaError::PartitionEOF(_))) => left -= 1,
                    _ => {}
                }
            }
            records
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    /// How often each payload was sent back to where it was born.
    pub(crate) async fn sent_back(&self) -> BTreeMap<String, u32> {
        let mut sent = BTreeMap::new();
        for read in self.read(&self.topic).await {
            if read.header("replay.id").is_some() {
                *sent.entry(read.text()).or_default() += 1;
            }
        }
        sent
    }

    /// Each of these numbers was sent back to where it was born once, and nothing else was.
    pub(crate) async fn assert_once(&self, numbers: impl IntoIterator<Item = u32>) {
        let mut sent = self.sent_back().await;
        let numbers = numbers.into_iter().map(|number| number.to_string());
        let missing: Vec<String> = numbers.filter(|n| sent.remove(n) != Some(1)).collect();
        assert!(
            missing.is_empty() && sent.is_empty(),
            "not once: {missing:?}; not asked: {sent:?}"
        );
    }
}

type Parts<'a> = (OwnedHeaders, Option<&'a [u8]>, Option<&'a [u8]>);

/// The record of a letter: headers, key, payload.
fn written(letter: &DeadLetter) -> Parts<'_> {
    let mut rest = BTreeMap::from([
        ("facts", serde_json::to_value(Facts::of(letter)).unwrap()),
        ("origin", serde_json::to_value(&letter.origin).unwrap()),
        ("subject", letter.message.subject().into()),
    ]);
    let names = letter.message.headers().iter().map(|header| std::str::from_utf8(&header.name));
    if names.into_iter().any(|name| name.is_err()) {
        rest.insert("headers", serde_json::to_value(letter.message.headers()).unwrap());
    }
    let rest = serde_json::to_string(&rest).unwrap();
    let mut headers = OwnedHeaders::new();
    for header in &on_death(letter) {
        if let Ok(key) = std::str::from_utf8(&header.name) {
            headers = headers.insert(Header { key, value: header.value.as_deref() });
        }
    }
    headers = headers.insert(Header { key: "dlq.kafka.rest", value: Some(&rest) });
    let message = &letter.message;
    (headers, message.key().map(|key| &key[..]), message.payload().map(|payload| &payload[..]))
}

/// A record as it stands in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) partition: i32,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Read {
    fn of(message: &dlq_kafka::rdkafka::message::BorrowedMessage<'_>) -> Self {
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    /// The last header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().rev().find(|(key, _)| key == name)?;
        std::str::from_utf8(found.1.as_deref()?).ok()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.payload.clone().unwrap()).unwrap()
    }
}

pub(crate) const ORIGIN: KafkaTarget = KafkaTarget::Origin { keep_partition: false };

pub(crate) fn operation(number: u64) -> OperationId {
    OperationId::of("ana", Timestamp::EPOCH, number)
}

/// Sends everything to this target, as the operation of this number.
pub(crate) fn replay(letters: &KafkaLetters, target: KafkaTarget, number: u64) -> KafkaReplay {
    KafkaReplay::new(letters, Filter::new(), target, operation(number)).who("ana")
}

pub(crate) fn to_origin(letters: &KafkaLetters, number: u64) -> KafkaReplay {
    replay(letters, ORIGIN, number)
}

pub(crate) async fn run(replay: KafkaReplay) -> ReplayReport {
    let report = replay.run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete(), "{report}");
    report
}

/// Commits an offset of this group in a topic, as one does that reads it.
pub(crate) fn commit(shop: &Shop, group: &str, topic: &str) {
    let client: BaseConsumer = shop.config().set("group.id", group).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(0)).unwrap();
    topic::commit(&client, &offsets);
}
