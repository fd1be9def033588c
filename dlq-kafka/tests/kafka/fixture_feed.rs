//! Topics of dead letters for who follows them into a store.

use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::log::{Entries as _, Log};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_kafka::rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaEntries, KafkaLetters};
use tokio::time::timeout;

pub(crate) use crate::fixture::PATIENCE;
use crate::fixture::{available, url};
use crate::topic;

/// A topic of dead letters.
pub(crate) struct Topic {
    pub(crate) bootstrap: String,
    pub(crate) name: String,
    pub(crate) partitions: i32,
}

impl Topic {
    pub(crate) async fn new(name: &str, partitions: i32) -> Option<Self> {
        if !available() {
            return None;
        }
        Some(Self::at(&url(), name, partitions).await)
    }

    pub(crate) async fn at(bootstrap: &str, name: &str, partitions: i32) -> Self {
        let topic = Self { bootstrap: bootstrap.to_owned(), name: name.to_owned(), partitions };
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        topic::make(bootstrap, &new).await;
        topic
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config
    }

    pub(crate) fn brokers(&self) -> Brokers {
        Brokers::at(&*self.bootstrap)
    }

    pub(crate) fn letters(&self) -> KafkaLetters {
        KafkaLetters::new(&self.brokers(), &*self.name)
    }

    /// Changes a setting; returns once the broker goes by it.
    pub(crate) async fn alter(&self, setting: &str, value: &str) {
        topic::alter(&self.config().create().unwrap(), &self.name, setting, value).await;
    }

    /// Writes these numbers, each into the partition of its remainder.
    pub(crate) async fn write(&self, numbers: impl IntoIterator<Item = u32>) {
        let producer: FutureProducer = self.config().create().unwrap();
        let mut sent = Vec::new();
        for number in numbers {
            let (key, text) = (number.to_string(), format!("number {number}"));
            let partition = i32::try_from(number).unwrap() % self.partitions;
            let record = FutureRecord::to(&self.name).partition(partition).key(&key).payload(&text);
            sent.push(producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        for sent in sent {
            timeout(PATIENCE, sent).await.unwrap().unwrap().unwrap();
        }
    }

    /// Writes some into partition 0 in a transaction that ends so.
    pub(crate) async fn transaction(&self, numbers: std::ops::Range<u32>, commit: bool) {
        let id = format!("{}-{}", self.name, numbers.start);
        let mut config = self.config();
        let producer: FutureProducer = config.set("transactional.id", id).create().unwrap();
        tokio::task::block_in_place(|| producer.init_transactions(PATIENCE)).unwrap();
        producer.begin_transaction().unwrap();
        for number in numbers {
            let (key, text) = (number.to_string(), format!("number {number}"));
            let record = FutureRecord::to(&self.name).partition(0).key(&key).payload(&text);
            producer.send_result(record).map_err(|(error, _)| error).unwrap();
        }
        tokio::task::block_in_place(|| {
            producer.flush(PATIENCE).unwrap();
            if commit {
                producer.commit_transaction(PATIENCE).unwrap();
            } else {
                producer.abort_transaction(PATIENCE).unwrap();
            }
            topic::settled(&self.bootstrap, &self.name);
        });
    }

    fn member(&self, group: &str) -> BaseConsumer {
        self.config().set("group.id", group).create().unwrap()
    }

    /// What this group has committed, by partition.
    pub(crate) fn committed(&self, group: &str) -> Vec<Option<i64>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.name, 0, self.partitions - 1);
        let read = || self.member(group).committed_offsets(list, PATIENCE).unwrap();
        let committed = tokio::task::block_in_place(read);
        let offset =
            |partition: i32| match committed.find_partition(&self.name, partition)?.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            };
        (0..self.partitions).map(offset).collect()
    }

    /// Commits an offset of partition 0 as any tool does.
    pub(crate) fn commit(&self, group: &str, offset: i64, metadata: &str) {
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&self.name, 0);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        topic::commit(&self.member(group), &list);
    }
}

/// Follows letters into the store of this name.
pub(crate) async fn follow(
    letters: &KafkaLetters,
    store: &str,
    lease: Duration,
) -> Result<KafkaEntries, StoreError> {
    letters.follow(store.to_owned(), lease).await
}

/// Confirms what was yielded, once the group lets it.
pub(crate) async fn confirm(feed: &mut KafkaEntries) {
    let confirmed = async {
        while let Err(error) = feed.confirm().await {
            assert!(error.is_transient(), "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, confirmed).await.expect("it is confirmed");
}
