use std::sync::Arc;
use std::time::Duration;

use dlq_core::{BoxError, CrashMarks, LetterId, StoreError, StoreErrorKind};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::letters::aside;
use crate::partition::Over;
use crate::rebalance::add;
use crate::shared::{Place, Shared, lock};

/// How long a mark may take.
const ANSWER: Duration = Duration::from_secs(10);
const MARKING: &str = "mark the run of a suspect";

/// Marks by which a record is found that kills its process. Made by
/// [`KafkaSource::crash_marks`](crate::KafkaSource::crash_marks).
///
/// A mark stands in the metadata of the partition's commit, which is written before the suspect runs. That the run has
/// ended is said by the next commit, the same that says what else is done: no run is blamed for the death of another. A
/// record that is done has no marks, unless it is dead of them: those stay until the group's position has passed it. One that
/// is given back keeps them until they are [ended](CrashMarks::end).
#[derive(Clone, Debug)]
pub struct KafkaCrashMarks {
    shared: Arc<Shared>,
}

impl KafkaCrashMarks {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl CrashMarks for KafkaCrashMarks {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let Some(Place { partition, offset, .. }) = self.shared.suspected(letter) else {
            let text = format!("{letter} is no suspect of this source");
            return Err(StoreError::new(StoreErrorKind::NotFound, MARKING).with_detail(text));
        };
        let lost = |Over| {
            let text = "its partition was given to another process";
            StoreError::new(StoreErrorKind::Conflict, MARKING).with_detail(text)
        };
        if partition.is_gone() {
            // There is nothing left to write a mark beside, and nothing of it comes again.
            return Ok(0);
        }
        let crashes = partition.begin(offset).map_err(lost)?;
        let consumer = lock(&self.shared.consumer).upgrade().ok_or_else(|| lost(Over))?;
        let marking = Arc::clone(&partition);
        let marked = aside(ANSWER, move || {
            // Looked at now: the position may have moved, or the partition gone to another.
            let mut list = TopicPartitionList::new();
            let point = marking
                .point(false)
                .ok_or(KafkaError::ConsumerCommit(RDKafkaErrorCode::AssignmentLost))?;
            add(&mut list, &marking, point);
            consumer.commit(&list, CommitMode::Sync)
        });
        let error: BoxError = match marked.await {
            Some(Ok(())) => return Ok(crashes),
            Some(Err(error)) => error.into(),
            None => "no answer within 10 s".into(),
        };
        partition.retract(offset);
        let failed = StoreError::new(StoreErrorKind::Unavailable, MARKING);
        Err(failed.with_detail(error.to_string()).with_source(error))
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        if let Some(Place { partition, offset, .. }) = self.shared.suspected(letter) {
            partition.end(offset, left);
        }
        Ok(())
    }
}
