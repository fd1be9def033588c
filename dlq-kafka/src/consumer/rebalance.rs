use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::client::lock;
use crate::client::log;
use crate::consumer::blocked::Reason;
use crate::consumer::partition::Partition;
use crate::consumer::shared::{Phase, SourceState};

/// Time for which the last commit of revoked partitions waits for the previous one; closing the source takes longer
/// than this. The client sends it after that in any case, unless the previous one is sent again.
const LAST: Duration = Duration::from_secs(2);

/// Callbacks for assigned and revoked partitions. The client calls them on the polling thread.
pub(crate) struct Hooks {
    pub(crate) shared: Arc<SourceState>,
    pub(crate) group: String,
    /// The delay of a topic that is a stage.
    pub(crate) stages: Vec<(Arc<str>, Duration)>,
    /// For how long what is in flight of a partition may end before it is given up.
    pub(crate) drain: Duration,
    /// Last text of the client about an error.
    pub(crate) reason: Reason,
    /// The group is being left: everything that was to be said was said.
    pub(crate) is_leaving: AtomicBool,
}

impl ClientContext for Hooks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The client says some of them twice a second.
        if self.reason.heard(reason) {
            tracing::warn!(%error, reason, "the client of Kafka reports an error");
        }
    }
}

impl ConsumerContext for Hooks {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // `Poller::leave` makes the last commit itself. A commit in this hook can hang while the client closes.
        if self.is_leaving.load(Ordering::Acquire) {
            return;
        }
        match rebalance {
            Rebalance::Assign(partitions) => self.assigned(partitions),
            Rebalance::Revoke(partitions) => self.revoked(consumer, partitions),
            Rebalance::Error(error) => tracing::warn!(%error, "a rebalance failed"),
        }
    }
}

impl Hooks {
    fn assigned(&self, partitions: &TopicPartitionList) {
        // The hook runs on the thread that polls and holds it up, so it only notes the partition. Its commit is read later.
        let mut all = lock(&self.shared.partitions);
        for element in partitions.elements() {
            let (name, number) = (element.topic(), element.partition());
            let topic = match all.get_key_value(name) {
                Some((topic, _)) => Arc::clone(topic),
                None => Arc::from(name),
            };
            let stage = self.stages.iter().find(|(stage, _)| **stage == *name);
            let stage = stage.map(|(_, delay)| *delay);
            let partition = Partition::new(self.shared.owner, Arc::clone(&topic), number, stage);
            all.entry(topic).or_default().insert(number, Arc::new(partition));
        }
        tracing::info!(count = partitions.count(), "partitions were assigned");
    }

    fn revoked(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        let going: Vec<_> = partitions
            .elements()
            .iter()
            .filter_map(|element| self.shared.find(element.topic(), element.partition()))
            .collect();
        // Nothing more goes out from here on. Only then is it known for how much the drain has to wait.
        for partition in &going {
            partition.leave();
        }
        let is_lost = consumer.assignment_lost();
        // A lost assignment may have other owners already, who run its records in any case. A wait would gain nothing.
        if !is_lost {
            self.drain(&going);
        }
        // A dropped source counts as a crash, because its in-flight records did not finish.
        let is_clean = self.shared.phase() != Phase::Abandoned;
        give_up(consumer, &going, is_clean, is_lost);
        end_pauses(consumer, partitions);
        let mut all = lock(&self.shared.partitions);
        for partition in &going {
            if let Some(topic) = all.get_mut(&partition.topic) {
                topic.remove(&partition.number);
            }
        }
        drop(all);
        // The source drops what waits of these partitions: it takes room and holds up its lines.
        self.shared.lost();
        tracing::info!(count = going.len(), is_lost, "partitions were revoked");
    }

    /// Waits until nothing of these is in flight, or the deadline has passed.
    fn drain(&self, going: &[Arc<Partition>]) {
        let deadline = Instant::now() + self.drain;
        let mut queue = self.shared.queue();
        // A source that was dropped leaves at once, as one that died.
        while queue.phase != Phase::Abandoned && going.iter().any(|going| going.in_flight() > 0) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let in_flight: usize = going.iter().map(|partition| partition.in_flight()).sum();
                tracing::warn!(
                    in_flight,
                    "messages of revoked partitions are still in flight; they run again elsewhere"
                );
                return;
            }
            queue = self.shared.wait(queue, left);
        }
    }
}

/// The last commit of these partitions, after the one that may be on its way. What of them ends later counts no more.
pub(crate) fn give_up(
    consumer: &BaseConsumer<Hooks>,
    going: &[Arc<Partition>],
    is_clean: bool,
    is_lost: bool,
) {
    // Of a lost assignment there is nothing to say: others have it already.
    let turn = if is_lost { None } else { consumer.context().shared.commits.turn(LAST) };
    let mut last = TopicPartitionList::new();
    for partition in going {
        // One lock decides: what was done before `close` is in this commit, what ends later is refused and runs elsewhere.
        if let Some(point) = partition.close(is_clean) {
            add(&mut last, partition, point);
        }
    }
    if is_lost || last.count() == 0 {
        return;
    }
    // Without this commit the group keeps `open` and an older position, so nothing is lost and another owner counts a death.
    if let Err(error) = consumer.commit(&last, CommitMode::Sync) {
        tracing::warn!(%error, "the last offsets were not committed; records run again");
    }
    drop(turn);
}

/// The client keeps the pause of a partition that it gives up. It is ended here, and not when the partition comes again: where
/// one is resumed while the client begins to fetch it, either may be lost, and nothing ever comes.
pub(crate) fn end_pauses<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    going: &TopicPartitionList,
) {
    if let Err(error) = consumer.resume(going) {
        tracing::debug!(%error, "partitions cannot be resumed");
    }
}

pub(crate) fn add(list: &mut TopicPartitionList, partition: &Partition, point: (u64, String)) {
    let (position, metadata) = point;
    let offset = Offset::Offset(i64::try_from(position).unwrap_or(i64::MAX));
    let mut element = list.add_partition(&partition.topic, partition.number);
    if element.set_offset(offset).is_ok() {
        element.set_metadata(metadata);
    }
}
