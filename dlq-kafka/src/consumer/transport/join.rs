//! The way into the group.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::{Member, POLLING};
use crate::client::error::SetupError;
use crate::client::ladder::{Ladder, Stage};
use crate::client::topics::{Cluster, Look, blocking};
use crate::consumer::rebalance::Hooks;

/// Longest interval of polling the client unless it is told otherwise.
const SELDOM: Duration = Duration::from_secs(5 * 60);

impl Member {
    /// Returns topics that were stages once and still exist: processes that had another ladder, and may have it yet,
    /// have acknowledged the messages that wait there.
    pub(super) async fn former(
        &self,
        stages: &[(String, Vec<Stage>)],
    ) -> Result<Vec<Stage>, SetupError> {
        let (brokers, group, topics) =
            (self.brokers.clone(), self.group.clone(), self.of.topics.clone());
        let ladder = self.of.ladder.clone().unwrap_or_else(|| Ladder::of([]));
        let stages = stages.iter().flat_map(|(_, stages)| stages);
        let read: HashSet<_> = stages.map(|stage| stage.topic.clone()).collect();
        let former = blocking(move || {
            let mut cluster = Cluster::new(&brokers, Some(&group))?;
            let names = cluster.names()?;
            let of = |topic: &String| ladder.former(&names, topic, &group);
            let mut former: Vec<_> = topics.iter().flat_map(of).collect();
            // A name may be that of a topic or of a stage of this consumer, which is read as such already.
            former.retain(|stage| !topics.contains(&stage.topic) && !read.contains(&stage.topic));
            // A name without the group may be another group's stage, so only what this group has read is taken for its own.
            if ladder.is_shared() {
                let was_read = |stage| Ok(is_read(&mut cluster, &group, &stage)?.then_some(stage));
                let all = former.into_iter().map(was_read);
                former = all.filter_map(Result::transpose).collect::<Result<_, SetupError>>()?;
            }
            Ok(former)
        });
        let former = former.await?;
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
        let seldom = self.of.drain.saturating_add(POLLING).max(SELDOM).as_millis().to_string();
        let defaults = [
            // After so long without a poll the group gives what we have to others, also while it ends.
            ("max.poll.interval.ms", &*seldom),
            // A process that died keeps its partitions for so long.
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
        let seldom = seldom.map(Duration::from_millis).filter(|seldom| *seldom < self.of.drain);
        let Some(seldom) = seldom else { return Ok(config) };
        Err(SetupError::Config(format!(
            "`max.poll.interval.ms` is {seldom:?}, after which the group gives partitions away, and what is in flight of them \
             may take {:?} to end; set it to more, or have the drain take less",
            self.of.drain
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
        let topics: BTreeSet<_> = self.of.topics.iter().map(String::as_str).chain(stages).collect();
        let joined = consumer.subscribe(&topics.into_iter().collect::<Vec<_>>());
        joined.map_err(|error| SetupError::answered("subscribe to the topics", error))?;
        Ok(Arc::new(consumer))
    }
}

/// Returns true if the group has read this topic, which may belong to another group as well.
fn is_read(cluster: &mut Cluster, group: &str, stage: &Stage) -> Result<bool, SetupError> {
    let Look::There(seen) = cluster.look(&stage.topic)? else { return Ok(false) };
    let all: Vec<_> = (0..seen.partitions).map(|one| (&*stage.topic, one)).collect();
    Ok(cluster.committed(group, &all)?.iter().any(Option::is_some))
}
