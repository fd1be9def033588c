//! The consumer on Kafka, and how far its group has come.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::error::KafkaResult;
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaTransport, Ladder};

use crate::work::CONSUMER;

/// The topic that it reads.
pub const TOPIC: &str = "work";
/// Topic of delayed retries.
pub const RETRIES: &str = "work.tests.work.retry.300ms";
/// Topic of letters.
pub const LETTERS: &str = "work.dlq";
/// Number of partitions of each topic.
pub const PARTITIONS: i32 = 6;
/// After how long a process that says nothing is dead, in milliseconds. The client says something about once a second.
pub const SESSION: &str = "3000";

/// Time limit for an answer of the servers.
const ASKING: Duration = Duration::from_secs(10);

/// The brokers, for a consumer that is killed.
pub fn brokers(bootstrap: &str) -> Brokers {
    Brokers::at(bootstrap).with("session.timeout.ms", SESSION).with("heartbeat.interval.ms", "300")
}

/// The consumer that is killed.
pub fn consumer() -> KafkaTransport {
    KafkaTransport::new(TOPIC)
        .name(CONSUMER)
        .ladder(Ladder::of([Duration::from_millis(300)]))
        .create_missing_topics()
}

/// The consumer group, seen from outside: who asks is no member.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Group {
    config: ClientConfig,
    client: Mutex<BaseConsumer>,
}

impl Group {
    /// Asks these servers.
    ///
    /// # Errors
    ///
    /// When the client cannot be made.
    pub fn at(bootstrap: &str) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", CONSUMER);
        config.set("enable.auto.commit", "false");
        Ok(Self { client: Mutex::new(config.create()?), config })
    }

    fn client(&self) -> MutexGuard<'_, BaseConsumer> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the messages and retries that are left: topic, partition and offsets. `None` when every message is done.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub fn left(&self) -> KafkaResult<Option<String>> {
        let mut client = self.client();
        let left = left(&client);
        if left.is_err() {
            // A client that has once heard of fewer partitions than there are may go on to say so.
            *client = self.config.create()?;
        }
        left
    }

    /// Returns whether the group is stable, each member having its partitions; and its members.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub fn standing(&self) -> KafkaResult<(bool, BTreeSet<String>)> {
        let groups = self.client().fetch_group_list(Some(CONSUMER), ASKING)?;
        let Some(group) = groups.groups().first() else { return Ok(Default::default()) };
        let members = group.members().iter().map(|member| member.id().to_owned());
        Ok((group.state() == "Stable", members.collect()))
    }
}

fn left(client: &BaseConsumer) -> KafkaResult<Option<String>> {
    let mut all = TopicPartitionList::new();
    for topic in [TOPIC, RETRIES] {
        all.add_partition_range(topic, 0, PARTITIONS - 1);
    }
    // What is done first, then what there is: a retry is written before what it comes from is done.
    for element in client.committed_offsets(all, ASKING)?.elements() {
        let (low, high) = client.fetch_watermarks(element.topic(), element.partition(), ASKING)?;
        let position = match element.offset() {
            Offset::Offset(position) => position,
            _ => low,
        };
        if position < high {
            let (topic, partition) = (element.topic(), element.partition());
            return Ok(Some(format!("{topic}[{partition}] from {position} to {high}")));
        }
    }
    Ok(None)
}
