//! The consumer on Kafka, and how far its group has come.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::error::KafkaResult;
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_kafka::{Brokers, KafkaConsumer, Ladder};

use crate::work::CONSUMER;

/// The topic that it reads.
pub const TOPIC: &str = "work";
/// Where messages wait for their next attempt.
pub const RETRIES: &str = "work.tests.work.retry.300ms";
/// Where the letters are.
pub const LETTERS: &str = "work.dlq";
/// How many partitions each topic has.
pub const PARTITIONS: i32 = 6;
/// After how long a process that says nothing is dead, in milliseconds. The client says something about once a second.
pub const SESSION: &str = "3000";

/// How long the servers may take for an answer.
const ASKING: Duration = Duration::from_secs(10);

/// The consumer that is killed.
pub fn consumer(bootstrap: &str) -> KafkaConsumer {
    let brokers = Brokers::at(bootstrap)
        .with("session.timeout.ms", SESSION)
        .with("heartbeat.interval.ms", "300");
    KafkaConsumer::new(&brokers, TOPIC, CONSUMER)
        .with_ladder(Ladder::of([Duration::from_millis(300)]))
        .with_missing_topics_created()
}

/// The consumer group, seen from outside: who asks is no member.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Group(BaseConsumer);

impl Group {
    /// Asks these servers.
    ///
    /// # Errors
    ///
    /// When the client cannot be made.
    pub fn at(bootstrap: &str) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", CONSUMER);
        config.set("enable.auto.commit", "false").create().map(Self)
    }

    /// Whether every message is done and none waits for a retry.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub fn is_done(&self) -> KafkaResult<bool> {
        let mut all = TopicPartitionList::new();
        for topic in [TOPIC, RETRIES] {
            all.add_partition_range(topic, 0, PARTITIONS - 1);
        }
        // What is done first, then what there is: a retry is written before what it comes from is done.
        for element in self.0.committed_offsets(all, ASKING)?.elements() {
            let (low, high) =
                self.0.fetch_watermarks(element.topic(), element.partition(), ASKING)?;
            let Offset::Offset(position) = element.offset() else {
                if low < high { return Ok(false) } else { continue }
            };
            if position < high {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nothing of it moves, each member having its partitions; and who they are.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub fn standing(&self) -> KafkaResult<(bool, BTreeSet<String>)> {
        let groups = self.0.fetch_group_list(Some(CONSUMER), ASKING)?;
        let Some(group) = groups.groups().first() else { return Ok(Default::default()) };
        let members = group.members().iter().map(|member| member.id().to_owned());
        Ok((group.state() == "Stable", members.collect()))
    }
}
