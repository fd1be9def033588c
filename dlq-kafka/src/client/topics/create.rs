use std::collections::BTreeMap;

use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::runtime::Handle;

use super::cluster::{Cluster, options};
use super::rules::{max_message, millis, partitions, topic_name};
use super::seen::Seen;
use super::wanted::WantedTopic;
use crate::client::error::SetupError;

impl Cluster {
    /// Creates topics; those that others create meanwhile are theirs. Tells which are ours.
    pub(super) fn create(
        &mut self,
        missing: &[&WantedTopic],
        all: &BTreeMap<String, Seen>,
    ) -> Result<Vec<String>, SetupError> {
        let planned: Vec<_> = missing
            .iter()
            .map(|wanted| {
                // With -1 the brokers take their own default.
                let count = partitions(wanted, all).unwrap_or(-1);
                let largest = max_message(wanted, all).map(|bytes| bytes.to_string());
                (*wanted, count, millis(wanted.retention), largest)
            })
            .collect();
        let topics = planned.iter().map(|(wanted, count, retention, largest)| {
            let replication = wanted.replication.map_or(-1, i32::from);
            let topic = NewTopic::new(&wanted.name, *count, TopicReplication::Fixed(replication))
                // All of these are set: the brokers' defaults may compact, remove by size, or replace a record's time.
                .set("cleanup.policy", "delete")
                .set("retention.ms", retention)
                .set("retention.bytes", "-1")
                .set("message.timestamp.type", "CreateTime");
            match largest {
                Some(bytes) => topic.set("max.message.bytes", bytes),
                None => topic,
            }
        });
        let topics: Vec<_> = topics.collect();
        let asking = self.admin()?.create_topics(&topics, &options());
        let answers = Handle::current()
            .block_on(asking)
            .map_err(|error| self.failed("create topics", error))?;
        // Brokers create topic by topic, so some may be there although one failed. Running this again finds those and
        // creates the rest.
        let (mut created, mut failure) = (Vec::new(), None);
        for answer in answers {
            match answer {
                Ok(name) => created.push(name),
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => failure = failure.or(Some((name, code))),
            }
        }
        match failure {
            None => Ok(created),
            Some((name, code)) => {
                let asked = planned.iter().find(|(wanted, ..)| wanted.name == name);
                Err(not_created(&name, asked.map(|(wanted, count, ..)| (*wanted, *count)), code))
            }
        }
    }
}

fn not_created(
    name: &str,
    asked: Option<(&WantedTopic, i32)>,
    code: RDKafkaErrorCode,
) -> SetupError {
    use RDKafkaErrorCode::{
        ClusterAuthorizationFailed, InvalidReplicationFactor, TopicAuthorizationFailed,
    };
    let default = |count: i32| {
        if count < 0 { "the brokers' default".to_owned() } else { count.to_string() }
    };
    let (count, replication) =
        asked.map_or((-1, -1), |(wanted, count)| (count, wanted.replication.map_or(-1, i32::from)));
    let what = format!(
        "create {} (partitions: {}, replication: {})",
        topic_name(name),
        default(count),
        default(replication)
    );
    let advice = match code {
        TopicAuthorizationFailed | ClusterAuthorizationFailed => {
            "; allow `Create` on it or on the cluster, or have it created by somebody who may"
        }
        InvalidReplicationFactor => "; there are fewer brokers than that, ask for less",
        _ => "",
    };
    // Advice only where an operator has to act. What passes is tried again.
    match SetupError::answered(&what, KafkaError::AdminOp(code)) {
        SetupError::Config(text) => SetupError::Config(text + advice),
        other => other,
    }
}
