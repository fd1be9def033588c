//! Lag of a consumer, topic by topic: its own, its retry topics, and the dead letters.
//!
//! Asked are the brokers (`ListOffsets`, and the offsets that the group has committed), not the client's statistics, which
//! know nothing of partitions that are paused or belong to another process. Whoever asks joins no group and reads no
//! record, so that it can be done in the consumer's process or in another.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use dlq_kafka::{Brokers, KafkaLag};
//!
//! # async fn watch(stop: impl Future<Output = ()>) {
//! let topics = ["orders", "orders.billing.retry.30s", "orders.dlq"];
//! let lag = KafkaLag::new(Brokers::at("localhost:9092"), "billing", topics);
//! lag.run(Duration::from_secs(15), stop).await;
//! # }
//! ```
//!
//! # Metrics
//!
//! | gauge | of | meaning |
//! |---|---|---|
//! | `dlq_kafka_end_offset` | `topic` | the end offsets of all partitions, summed |
//! | `dlq_kafka_lag` | `topic`, `group` | the records that are there and before which the group has not committed, summed |
//!
//! A partition without a commit is behind by all that is there; so is a topic of dead letters from which nobody in the
//! group reads, whose lag is the number of letters. In compacted topics it counts offsets that
//! have no record; behind the last record of a transaction too, until its consumer has passed them a few seconds later. There are as many labels as topics are named.
//!
//! # If the process dies here
//!
//! Nothing is written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::TransportError;
use metrics::gauge;
use rdkafka::Offset;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::topics::{Cluster, Look, blocking};

/// The end offsets of a topic, by `topic`.
pub const DLQ_KAFKA_END_OFFSET: &str = "dlq_kafka_end_offset";
/// Lag of a group in a topic, by `topic` and `group`.
pub const DLQ_KAFKA_LAG: &str = "dlq_kafka_lag";

/// The shortest pause between two readings.
const SHORTEST: Duration = Duration::from_millis(100);

/// Reads how far a consumer is behind. See the [module docs](self).
#[derive(Clone)]
pub struct KafkaLag(Arc<Inner>);

struct Inner {
    brokers: Brokers,
    group: String,
    topics: Vec<String>,
    /// Made when first needed, and used by one reading at a time.
    cluster: Mutex<Option<Cluster>>,
}

/// Lag of a group in a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicLag {
    /// The topic.
    pub topic: String,
    /// The end offsets of its partitions, summed.
    pub end_offset: u64,
    /// Number of records that the group has not committed.
    pub lag: u64,
    /// Number of partitions that are left out because they have no leader now.
    pub leaderless: usize,
}

impl KafkaLag {
    /// The lag of `group` in these topics. Nothing is asked yet.
    pub fn new<T: Into<String>>(
        brokers: Brokers,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> Self {
        let mut topics: Vec<String> = topics.into_iter().map(Into::into).collect();
        topics.sort_unstable();
        // The partitions of a topic that is named twice would be summed twice.
        topics.dedup();
        Self(Arc::new(Inner { brokers, group: group.into(), topics, cluster: Mutex::default() }))
    }

    /// Asks the brokers: for each topic, and then for all of them by three requests to each broker. Topics that are not
    /// there are left out; the others come sorted by name.
    ///
    /// # Errors
    ///
    /// `Unavailable` when no broker answers within ten seconds, `InvalidConfig` when the user may not see a topic or the
    /// group.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn read(&self) -> Result<Vec<TopicLag>, TransportError> {
        let shared = Arc::clone(&self.0);
        let read = blocking(move || shared.read());
        read.await.map_err(|error| error.for_transport("read the lag"))
    }

    /// Reads at once and then at this interval, and sets the gauges, until `stop` is ready. What cannot be read is logged,
    /// and the gauges stay as they are, as do those of a topic of which a partition has no leader.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn run(self, every: Duration, stop: impl Future<Output = ()>) {
        let mut ticks = interval(every.max(SHORTEST));
        // A reading may take longer than the interval. The missed ones are not made up for by a burst of requests.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let reading = async {
            loop {
                ticks.tick().await;
                match self.read().await {
                    Ok(topics) => self.publish(&topics),
                    Err(error) => tracing::warn!(%error, "the gauges of lag stay as they are"),
                }
            }
        };
        tokio::select! {
            () = stop => {}
            () = reading => {}
        }
    }

    fn publish(&self, topics: &[TopicLag]) {
        // A sum that leaves out a partition would look like a lag that has gone.
        let is_led = |lag: &&TopicLag| lag.leaderless == 0;
        for TopicLag { topic, end_offset, lag, .. } in topics.iter().filter(is_led) {
            gauge!(DLQ_KAFKA_END_OFFSET, "topic" => topic.clone()).set(*end_offset as f64);
            let group = self.0.group.clone();
            gauge!(DLQ_KAFKA_LAG, "topic" => topic.clone(), "group" => group).set(*lag as f64);
        }
    }
}

impl Inner {
    fn read(&self) -> Result<Vec<TopicLag>, SetupError> {
        let mut cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = match &mut *cluster {
            Some(cluster) => cluster,
            none => none.insert(Cluster::new(&self.brokers, Some(&self.group))?),
        };
        let mut topics = BTreeMap::new();
        let mut of = Vec::new();
        for name in &self.topics {
            match cluster.look(name)? {
                Look::There(seen) => {
                    of.extend(seen.readable().map(|partition| (name.as_str(), partition)));
                    let leaderless = seen.leaderless.len();
                    let lag = TopicLag { topic: name.clone(), leaderless, ..TopicLag::default() };
                    topics.insert(name.as_str(), lag);
                }
                Look::Missing => {
                    tracing::debug!(topic = name, "it has no lag, since it is not there")
                }
                Look::Refused(text) => return Err(SetupError::Config(text)),
            }
        }
        // Commits first: what is written and done meanwhile then counts as lag, and no end is behind a commit.
        let committed = cluster.committed(&self.group, &of)?;
        let first = cluster.offsets(&of, Offset::Beginning)?;
        let end = cluster.offsets(&of, Offset::End)?;
        for (((name, _), committed), (first, end)) in
            of.iter().zip(committed).zip(first.into_iter().zip(end))
        {
            let (first, end) = (first.unwrap_or(0), end.unwrap_or(0));
            // What a commit says may have been removed since.
            let done = committed.unwrap_or(first).max(first);
            if let Some(topic) = topics.get_mut(name) {
                topic.end_offset += u64::try_from(end).unwrap_or(0);
                topic.lag += u64::try_from(end - done).unwrap_or(0);
            }
        }
        Ok(topics.into_values().collect())
    }
}

impl fmt::Debug for KafkaLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { brokers, group, topics, .. } = &*self.0;
        let mut debug = f.debug_struct("KafkaLag");
        debug.field("brokers", brokers).field("group", group).field("topics", topics);
        debug.finish_non_exhaustive()
    }
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<KafkaLag>();
};

#[cfg(test)]
mod tests {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    #[test]
    fn a_topic_of_which_a_part_is_not_known_keeps_its_figures() {
        let shown = |lag: u64, leaderless: usize| {
            let recorder = DebuggingRecorder::new();
            let of = KafkaLag::new(Brokers::at("nowhere"), "billing", ["orders"]);
            let topic = TopicLag { topic: "orders".into(), end_offset: 9, lag, leaderless };
            metrics::with_local_recorder(&recorder, || of.publish(&[topic]));
            let shown = recorder.snapshotter().snapshot().into_vec().into_iter();
            shown.map(|(.., value)| value).collect::<Vec<_>>()
        };
        let figures = |lag: f64| [9.0, lag].map(|value| DebugValue::Gauge(value.into()));
        assert_eq!(shown(4, 0), figures(4.0));
        assert_eq!(shown(0, 1), []);
        assert_eq!(shown(1, 0), figures(1.0));
    }
}
