use std::time::Duration;

use dlq_core::policy::duration;
use serde::{Deserialize, Serialize};

use super::wanted::{Role, WantedTopic};
use crate::client::ladder::Stage;
use crate::client::wire::LATEST;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Minimum retention of a retry topic that we create.
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The topic that keeps dead letters: `<topic>.dlq` unless told otherwise, with retention by time and no compaction.
///
/// A letter is kept for 30 days and then removed by the brokers, resolved or not: where that is too short, say so here or
/// have a store beside it.
///
/// The topic is created when that is asked for and it is not there. One that exists with other settings is reported,
/// never changed.
///
/// ```
/// use std::time::Duration;
///
/// use dlq_kafka::DlqTopic;
///
/// let topic = DlqTopic::of("orders").retention(Duration::from_secs(90 * 24 * 60 * 60)).replication(3);
/// # let _ = topic;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct DlqTopic {
    pub(crate) name: String,
    #[serde(with = "duration")]
    pub(crate) retention: Duration,
    pub(crate) partitions: Option<u16>,
    pub(crate) replication: Option<u16>,
}

impl DlqTopic {
    /// The topic `<topic>.dlq` of each topic, 30 days, with as many partitions as that topic.
    pub fn new() -> Self {
        let (partitions, replication) = (None, None);
        Self { name: "{topic}.dlq".to_owned(), retention: 30 * DAY, partitions, replication }
    }

    /// The topic `<topic>.dlq` of this topic.
    pub fn of(topic: &str) -> Self {
        Self::new().name(format!("{topic}.dlq"))
    }

    /// Sets its name, in which `{topic}` stands for that of the consumer. Defaults to `{topic}.dlq`. Several topics can
    /// have one topic of dead letters.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets for how long letters are kept, as `retention.ms`. Defaults to 30 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets how many partitions it is created with. Defaults to as many as the topic whose letters it keeps.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Sets on how many brokers it is kept when it is created. Defaults to what the brokers say
    /// (`default.replication.factor`); production wants 3.
    pub fn replication(mut self, brokers: u16) -> Self {
        self.replication = Some(brokers);
        self
    }

    /// Its name, for the letters of this topic.
    #[must_use]
    pub fn name_for(&self, topic: &str) -> String {
        self.name.replace("{topic}", topic)
    }

    /// Returns the requirements for the topic that takes the letters of this topic.
    pub(crate) fn wanted(&self, topic: &str) -> WantedTopic {
        WantedTopic {
            name: self.name_for(topic),
            role: Role::Letters,
            sources: vec![topic.to_owned()],
            retention: self.retention,
            at_least: self.retention,
            partitions: self.partitions,
            replication: self.replication,
        }
    }
}

impl Default for DlqTopic {
    fn default() -> Self {
        Self::new()
    }
}

/// Settings with which the retry topics of a [`Ladder`](crate::Ladder) are created: with retention by time and no
/// compaction.
///
/// A record is kept for the delay of its stage and a day, in the last stage, where it may wait for a day longer, and two days,
/// at least for 7 days: for so long may all consumers be away. It is removed by the brokers after that, whether it had its
/// attempt or not.
///
/// Topics are created when that is asked for and they are not there. Those that exist with other settings are reported,
/// never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct RetryTopics {
    #[serde(with = "duration")]
    pub(crate) margin: Duration,
    pub(crate) partitions: Option<u16>,
    pub(crate) replication: Option<u16>,
}

impl RetryTopics {
    /// A margin of a day, with as many partitions as the consumer's topic.
    pub fn new() -> Self {
        Self { margin: DAY, partitions: None, replication: None }
    }

    /// Sets for how much longer than it may wait a record has to be kept. Defaults to 1 day.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Sets how many partitions they are created with. Defaults to as many as the consumer's topic.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Sets on how many brokers they are kept when they are created. Defaults to what the brokers say
    /// (`default.replication.factor`); production wants 3.
    pub fn replication(mut self, brokers: u16) -> Self {
        self.replication = Some(brokers);
        self
    }

    /// Returns the requirements for the topics of stages, from short to long, that take the records of this topic.
    pub(crate) fn wanted(&self, stages: &[Stage], topic: &str) -> Vec<WantedTopic> {
        let of = |(index, stage): (usize, &Stage)| {
            // In the last one a record may wait for longer.
            let more = if index + 1 == stages.len() { LATEST } else { Duration::ZERO };
            let at_least = stage.delay.saturating_add(more).saturating_add(self.margin);
            WantedTopic {
                name: stage.topic.clone(),
                role: Role::Stage { delay: stage.delay },
                sources: vec![topic.to_owned()],
                // Short stages get a week as well: it is the time for which all consumers may be away, whatever the delay is.
                retention: at_least.max(WEEK),
                at_least,
                partitions: self.partitions,
                replication: self.replication,
            }
        };
        stages.iter().enumerate().map(of).collect()
    }
}

impl Default for RetryTopics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_from_a_file() {
        let letters: DlqTopic =
            serde_json::from_str(r#"{"retention": "7d", "replication": 3}"#).unwrap();
        assert_eq!(letters, DlqTopic::new().retention(7 * DAY).replication(3));
        assert_eq!(letters.name_for("orders"), "orders.dlq");
        let named: DlqTopic = serde_json::from_str(r#"{"name": "dead", "partitions": 1}"#).unwrap();
        assert_eq!(named.wanted("orders").name, "dead");
        let retries: RetryTopics = serde_json::from_str(r#"{"margin": "2d"}"#).unwrap();
        assert_eq!(retries, RetryTopics::new().margin(2 * DAY));
        for wrong in [r#"{"retention": 7}"#, r#"{"retries": 7}"#, r#"{"partitions": -1}"#] {
            assert!(serde_json::from_str::<DlqTopic>(wrong).is_err(), "{wrong}");
            assert!(serde_json::from_str::<RetryTopics>(wrong).is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&letters).unwrap();
        assert_eq!(serde_json::from_str::<DlqTopic>(&text).unwrap(), letters);
    }

    #[test]
    fn a_stage_outlives_its_delay() {
        let stages = [0, 6, 9, 30]
            .map(|days: u32| Stage { topic: format!("orders.retry.{days}d"), delay: days * DAY });
        let wanted = RetryTopics::new().wanted(&stages, "orders");
        let kept: Vec<_> = wanted.iter().map(|topic| (topic.at_least, topic.retention)).collect();
        // What waits in the last one may be due a day later than its delay says.
        let last = 30 * DAY + LATEST + DAY;
        assert_eq!(kept, [(DAY, WEEK), (WEEK, WEEK), (10 * DAY, 10 * DAY), (last, last)]);
    }
}
