//! One broker for all tests of this file's friends; each has topics of its own.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use dlq_kafka::Brokers;
use dlq_kafka::admin::{ConsumerPlan, Deployment, Finding, Severity};
use dlq_kafka::rdkafka::admin::{
    AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication,
};
use dlq_kafka::rdkafka::client::DefaultClientContext;
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::rdkafka::{ClientConfig, Offset, TopicPartitionList};
use dlq_services::Running;

use crate::fixture::start_with;
pub(crate) use crate::fixture::{PATIENCE, available};
use crate::topic;

static BROKER: OnceLock<Running> = OnceLock::new();

/// The address of the broker that all share, whose commits have room for little and whose groups forget early.
pub(crate) fn shared() -> String {
    const SETTINGS: [(&str, &str); 2] =
        [("offset.metadata.max.bytes", "1024"), ("offsets.retention.minutes", "60")];
    tokio::task::block_in_place(|| BROKER.get_or_init(|| start_with(&SETTINGS)).url().to_owned())
}

/// One consumer of ours.
pub(crate) fn ours(topic: &str) -> Deployment {
    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(topic, "billing"));
    deployment
}

/// What an operator can do.
pub(crate) struct Operator {
    pub(crate) brokers: Brokers,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
    /// A consumer, since producers create what they ask for.
    looker: BaseConsumer,
}

impl Operator {
    pub(crate) fn at(url: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", url);
        let (admin, producer) = (config.create().unwrap(), config.create().unwrap());
        Self { brokers: Brokers::at(url), admin, producer, looker: config.create().unwrap() }
    }

    /// Creates a topic.
    pub(crate) async fn create(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.create_on(name, partitions, -1, settings).await;
    }

    pub(crate) async fn create_on(
        &self,
        name: &str,
        partitions: i32,
        replication: i32,
        settings: &[(&str, &str)],
    ) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replication));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        topic::make(self.brokers.bootstrap(), &topic).await;
    }

    pub(crate) async fn settings(&self, topic: &str) -> BTreeMap<String, String> {
        let of = [ResourceSpecifier::Topic(topic)];
        let mut all = self.admin.describe_configs(&of, &AdminOptions::new()).await.unwrap();
        let entries = all.remove(0).unwrap().entries.into_iter();
        entries.filter_map(|entry| Some((entry.name, entry.value?))).collect()
    }

    pub(crate) fn partitions(&self, topic: &str) -> usize {
        let metadata = self.looker.fetch_metadata(Some(topic), PATIENCE).unwrap();
        metadata.topics()[0].partitions().len()
    }

    /// Removes the records of a partition before this offset.
    pub(crate) async fn remove(&self, topic: &str, partition: i32, before: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(before)).unwrap();
        self.admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    }

    /// Writes a record; answers with its offset.
    pub(crate) async fn write(&self, topic: &str, partition: i32, timestamp: Option<i64>) -> i64 {
        let mut record = FutureRecord::<(), _>::to(topic).partition(partition).payload("x");
        record.timestamp = timestamp;
        self.producer.send(record, PATIENCE).await.unwrap().offset
    }

    pub(crate) async fn check(&self, deployment: &Deployment) -> Vec<Finding> {
        deployment.check(&self.brokers).await.unwrap()
    }

    /// The finding about this; fails when there is none.
    pub(crate) async fn found(
        &self,
        deployment: &Deployment,
        subject: &str,
        setting: &str,
    ) -> Finding {
        let findings = self.check(deployment).await;
        one(&findings, subject, setting).clone()
    }
}

pub(crate) fn one<'a>(findings: &'a [Finding], subject: &str, setting: &str) -> &'a Finding {
    let found = findings.iter().find(|found| found.subject == subject && found.setting == setting);
    found.unwrap_or_else(|| panic!("no `{setting}` of {subject} in {findings:#?}"))
}

/// Findings about topics: the broker that all share has its own.
pub(crate) fn of_topics(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|found| found.subject.starts_with("topic")).collect()
}

pub(crate) fn is(found: &Finding, severity: Severity, was: &str, want: &str) {
    assert_eq!(
        (found.severity, found.found.as_str(), found.want.as_str()),
        (severity, was, want),
        "{found}"
    );
}
