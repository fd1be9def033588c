//! The way into the group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::{KafkaConsumer, POLLING};
use crate::error::SetupError;
use crate::ladder::{Ladder, Stage};
use crate::rebalance::Hooks;
use crate::topics::{Cluster, blocking};

/// How seldom the client has to be polled unless it is told.
const SELDOM: Duration = Duration::from_secs(5 * 60);

impl KafkaConsumer {
    /// What was a stage once and is there still: processes that had another ladder, and may have it yet, have acknowledged
    /// what waits in it.
    pub(super) async fn former(
        &self,
        stages: &[(String, Vec<Stage>)],
    ) -> Result<Vec<Stage>, SetupError> {
        let brokers = self.brokers.clone();
        let names = blocking(move || Cluster::new(&brokers, None)?.names()).await?;
        let ladder = self.ladder.clone().unwrap_or_else(|| Ladder::of([]));
        let is_read = |name: &String| {
            let mut stages = stages.iter().flat_map(|(_, stages)| stages);
            self.topics.contains(name) || stages.any(|stage| stage.topic == *name)
        };
        let of = |topic: &String| ladder.former(&names, topic, &self.group);
        let mut former: Vec<_> = self.topics.iter().flat_map(of).collect();
        former.retain(|stage| !is_read(&stage.topic));
        for Stage { topic, .. } in &former {
            tracing::info!(
                topic,
                group = self.group,
                "this is no stage of the ladder any more, and is read until it is deleted"
            );
        }
        Ok(former)
    }

    pub(super) fn client(&self) -> Result<ClientConfig, SetupError> {
        let seldom = self.drain.saturating_add(POLLING).max(SELDOM).as_millis().to_string();
        let defaults = [
            // After so long without a poll the group gives what we have to others, also while it ends.
            ("max.poll.interval.ms", &*seldom),
            ("session.timeout.ms", "10000"),
            ("heartbeat.interval.ms", "3000"),
            // How late a partition is heard of again after a pause.
            ("fetch.wait.max.ms", "100"),
            ("queued.min.messages", "20000"),
            // How long it does not ask for more when it has enough; a second unless told otherwise.
            ("fetch.queue.backoff.ms", "10"),
            ("queued.max.messages.kbytes", "16384"),
            // How late a topic is heard of that was created again; five minutes unless told otherwise.
            ("topic.metadata.refresh.interval.ms", "10000"),
        ];
        let fixed = [
            ("group.id", &*self.group),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            // Where what was committed is gone, what is left is read. `Start::Latest` is the poller's.
            ("auto.offset.reset", "earliest"),
            ("allow.auto.create.topics", "false"),
        ];
        let config = self.brokers.client(&defaults, &fixed)?;
        let seldom = config.get("max.poll.interval.ms").and_then(|millis| millis.parse().ok());
        let seldom = seldom.map(Duration::from_millis).filter(|seldom| *seldom < self.drain);
        let Some(seldom) = seldom else { return Ok(config) };
        Err(SetupError::Config(format!(
            "`max.poll.interval.ms` is {seldom:?}, after which the group gives partitions away, and what is in hand of them \
             may take {:?} to end; set it to more, or have the drain take less",
            self.drain
        )))
    }

    pub(super) fn join(
        &self,
        config: &ClientConfig,
        hooks: Hooks,
    ) -> Result<Arc<BaseConsumer<Hooks>>, SetupError> {
        let made: Result<BaseConsumer<Hooks>, _> = config.create_with_context(hooks);
        let consumer = made.map_err(|error| SetupError::answered("make a consumer", error))?;
        let stages = consumer.context().stages.clone();
        let stages = stages.iter().map(|(topic, _)| &**topic);
        // Each once: topics may share their stages.
        let topics: BTreeSet<_> = self.topics.iter().map(String::as_str).chain(stages).collect();
        let joined = consumer.subscribe(&topics.into_iter().collect::<Vec<_>>());
        joined.map_err(|error| SetupError::answered("subscribe to the topics", error))?;
        Ok(Arc::new(consumer))
    }
}
