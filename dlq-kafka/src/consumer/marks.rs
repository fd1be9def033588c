use std::sync::Arc;
use std::time::Duration;

use dlq_core::{BoxError, CrashMarks, LetterId, StoreError, StoreErrorKind};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use crate::client::aside::aside;
use crate::client::lock;
use crate::consumer::commits::{Committed, commit, is_of_topic};
use crate::consumer::partition::{Over, Partition};
use crate::consumer::rebalance::{Hooks, add};
use crate::consumer::shared::{DeliveryPosition, SourceState};

/// Time limit for writing a mark.
const ANSWER: Duration = Duration::from_secs(10);
const MARKING: &str = "mark the run of a suspect";

/// Marks by which a record is found that kills its process. Made by
/// [`KafkaSource::crash_marks`](crate::KafkaSource::crash_marks).
///
/// A mark stands in the metadata of the partition's commit, which is written before the suspect runs. That the run has
/// ended is committed before another begins, with what else is done of the partition: no run is blamed for the death of
/// another. A record that is done has no marks, unless it is dead of them: those stay until the group's position has
/// passed it. One that is given back keeps them until they are [ended](CrashMarks::end).
#[derive(Clone, Debug)]
pub struct KafkaCrashMarks {
    shared: Arc<SourceState>,
}

impl KafkaCrashMarks {
    pub(crate) fn new(shared: Arc<SourceState>) -> Self {
        Self { shared }
    }

    /// Tells the group of all runs that have ended, and then of that which begins in this partition.
    async fn tell(
        &self,
        consumer: Arc<BaseConsumer<Hooks>>,
        begins: Option<Arc<Partition>>,
    ) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let error: BoxError = match aside(ANSWER, move || tell(&shared, &consumer, begins)).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error.into(),
            None => "no answer within 10 s".into(),
        };
        let failed = StoreError::new(StoreErrorKind::Unavailable, MARKING);
        Err(failed.with_detail(error.to_string()).with_source(error))
    }
}

/// In two steps, since of one that tells of several partitions it would not be heard which of them failed.
fn tell(
    shared: &SourceState,
    consumer: &BaseConsumer<Hooks>,
    begins: Option<Arc<Partition>>,
) -> KafkaResult<()> {
    let nobody_heard = KafkaError::ConsumerCommit(RDKafkaErrorCode::RequestTimedOut);
    // The turn is held for both commits, so no older state is committed between them or after them.
    let _turn = shared.commits.turn(ANSWER).ok_or(nobody_heard)?;
    let mut ended = Vec::new();
    for partition in shared.all() {
        let begins = begins.as_ref().is_some_and(|begins| Arc::ptr_eq(begins, &partition));
        if !begins && let Some(point) = partition.ended() {
            ended.push((partition, point));
        }
    }
    // What has ended goes first. If the process died with the new mark alone, runs that are over would count as crashes.
    let Committed { refused, .. } = commit(consumer, ended);
    refused.iter().for_each(|(partition, _)| partition.not_told());
    // A topic that is refused is not run, and keeps no other from running.
    if let Some((_, error)) = refused.into_iter().find(|(_, error)| !is_of_topic(error)) {
        return Err(error);
    }
    let Some(begins) = begins else { return Ok(()) };
    // Looked at now: the position may have moved, or the partition gone to another.
    let point = begins.ended().or_else(|| begins.point(false));
    let point = point.ok_or(KafkaError::ConsumerCommit(RDKafkaErrorCode::AssignmentLost))?;
    let mut list = TopicPartitionList::new();
    add(&mut list, &begins, point);
    consumer.commit(&list, CommitMode::Sync).inspect_err(|_| begins.not_told())
}

impl CrashMarks for KafkaCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let Some(DeliveryPosition { partition, offset, .. }) = self.shared.suspected(letter) else {
            let text = format!("{letter} is no suspect of this source");
            return Err(StoreError::new(StoreErrorKind::NotFound, MARKING).with_detail(text));
        };
        let lost = |Over| {
            let text = "its partition was given to another process";
            StoreError::new(StoreErrorKind::Conflict, MARKING).with_detail(text)
        };
        // The mark is set in memory, since the commit is made of that. It is taken back where the brokers do not confirm it.
        let crashes = partition.begin(offset).map_err(lost)?;
        let consumer = lock(&self.shared.consumer).upgrade().ok_or_else(|| lost(Over))?;
        // The suspect runs only once the brokers have the mark. A kill before that would leave no trace of its run (G3).
        let told = self.tell(consumer, Some(Arc::clone(&partition))).await;
        told.inspect_err(|_| partition.retract(offset))?;
        Ok(crashes)
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        if let Some(DeliveryPosition { partition, offset, .. }) = self.shared.suspected(letter) {
            // The mark goes in memory first, so that the next commit of any kind tells it even if this one fails.
            partition.end(offset, left);
        }
        // A source that is closed has told all there was to tell.
        let consumer = lock(&self.shared.consumer).upgrade();
        match consumer {
            Some(consumer) => self.tell(consumer, None).await,
            None => Ok(()),
        }
    }
}
