//! Opening of assigned partitions: the commits are read, and the new owner is announced in them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::{ASKING, Poller};
use crate::consumer::commits::{Committed, commit};
use crate::consumer::new_partitions;
use crate::consumer::partition::{Opening, Partition};
use crate::consumer::transport::Start;

/// Pause until partitions are taken over again.
const AGAIN: Duration = Duration::from_millis(200);

impl Poller {
    /// Says of partitions that are new that they are ours, before the first of their records is handed out: whoever
    /// finds that word without an end knows that we died.
    pub(super) fn take_over(&mut self) {
        // What came early of a partition that went is for its new owner.
        self.early.retain(|piece| !piece.partition.is_leaving());
        let mut closed = self.shared.all();
        closed.retain(|partition| partition.opening() != Opening::Open);
        if closed.is_empty() || self.refused.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        if let Err(error) = self.find(&closed) {
            return self.not_opened("ask what was committed", error);
        }
        // This thread does not wait for a commit that is on its way: it has to poll, and comes by again in a moment.
        let Some(turn) = self.shared.commits.turn(Duration::ZERO) else { return };
        // The points are taken within the turn: a commit of marks that is on its way could arrive after them otherwise.
        let points = closed.into_iter().filter_map(|partition| {
            let point = partition.point(false)?;
            Some((partition, point))
        });
        let points: Vec<_> = points.collect();
        if points.is_empty() {
            return;
        }
        let Committed { done, mut refused } = commit(&self.consumer, points);
        drop(turn);
        // Only what the brokers confirmed is open. A process that dies before this has handed out nothing of it.
        for partition in &done {
            partition.opened();
        }
        match refused.pop() {
            Some((_, error)) => self.not_opened("take over partitions", error),
            None => self.refused = None,
        }
        // The queue is walked in its order, so that the records of each partition keep theirs.
        for piece in std::mem::take(&mut self.early) {
            if piece.partition.opening() == Opening::Open {
                self.take(piece);
            } else {
                self.early.push_back(piece);
            }
        }
    }

    /// Nothing of new partitions is handed out. It is tried again, and told when that does not help: once it happens
    /// whenever the next rebalance comes early.
    fn not_opened(&mut self, operation: &'static str, error: KafkaError) {
        let was_refused = self.refused.replace(Instant::now()).is_some();
        tracing::warn!(%error, operation, "new partitions have to wait; it is tried again");
        if was_refused {
            let failed = TransportError::new(TransportErrorKind::Unavailable, operation);
            self.shared.fail(failed.with_detail(error.to_string()).with_source(error));
        }
    }

    /// Returns true if a partition was not there when the source was opened: all of it came from then on.
    fn is_added(&self, partition: &Partition) -> bool {
        let before = self.topics.iter().find(|topic| *topic.name == *partition.topic);
        before.is_some_and(|topic| partition.number >= topic.partitions)
    }

    /// Asks what was committed of partitions of which that is not known.
    fn find(&mut self, partitions: &[Arc<Partition>]) -> Result<(), KafkaError> {
        if self.left.is_some_and(|at| at.elapsed() < AGAIN) {
            return Ok(());
        }
        let is_unknown = |partition: &&Arc<Partition>| {
            partition.opening() == Opening::Unknown && partition.point(false).is_none()
        };
        let mut list = TopicPartitionList::new();
        for partition in partitions.iter().filter(is_unknown) {
            list.add_partition(&partition.topic, partition.number);
        }
        if list.count() == 0 {
            self.left = None;
            return Ok(());
        }
        let mut at_end = Vec::new();
        // The commits are asked for and not taken from the assignment, which carries no metadata: that is where owners
        // before speak.
        let found = self.consumer.committed_offsets(list, ASKING)?;
        for element in found.elements() {
            let Some(partition) = self.shared.find(element.topic(), element.partition()) else {
                continue;
            };
            // It is asked again.
            if element.error().is_err() {
                continue;
            }
            let committed = match element.offset() {
                Offset::Offset(offset) => u64::try_from(offset).ok(),
                _ => None,
            };
            // The client panics at metadata that is not UTF-8, which any other client can write.
            let metadata = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
            let metadata = metadata.unwrap_or_default();
            // Records of a retry topic were acknowledged elsewhere, and those of an added partition came while the group ran:
            // both are read from their beginning (G1).
            if committed.is_none()
                && self.start == Start::Latest
                && partition.stage.is_none()
                && !self.is_added(&partition)
            {
                at_end.push(partition);
                continue;
            }
            partition.found(committed.map(|offset| (offset, &*metadata)));
        }
        // One thread asks at a time. What it leaves without an answer is found here again.
        if !at_end.is_empty() && self.latest.as_ref().is_none_or(JoinHandle::is_finished) {
            self.latest = new_partitions::begin(&self.consumer, at_end, self.left.is_none());
        }
        // A partition without an answer is asked about again after `AGAIN`, and not in each turn of the loop.
        self.left = partitions.iter().any(|one| is_unknown(&one)).then(Instant::now);
        Ok(())
    }
}
