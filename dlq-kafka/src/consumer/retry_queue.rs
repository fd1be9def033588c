use std::sync::Arc;

use dlq_core::protocol::of_delayed_retry;
use dlq_core::{
    DelayedRetry, History, RetryQueue, SharedClock, StoreError, StoreErrorKind, Timestamp,
};
use rdkafka::message::OwnedHeaders;

use crate::client::ladder::Stage;
use crate::client::produce::{Outgoing, Producer, Unwritten};
use crate::client::topics::{FoundTopic, partition_for};
use crate::client::wire::{LATEST, Rest, pack_ours};
use crate::consumer::gauges::retried;

const OPERATION: &str = "write a retry record";

/// A stage, and how many partitions it has.
type Topic = (Stage, i32);

/// Retry queue of a consumer: its retry topics. [`KafkaTransport::retry_queue`](crate::KafkaTransport::retry_queue) makes
/// it.
///
/// A record goes to the first stage that is long enough, is due when that stage's delay is over, and keeps message, origin
/// and identity of the delivery that failed; attempts and history travel in its headers. Its partition is that of its key,
/// or of its identity where there is none: a hop that is written twice stands in one partition, where the copy is passed
/// over.
///
/// A record that its topic does not take, because it is too large even without its history, is refused; its message dies
/// then.
#[derive(Clone, Debug)]
pub struct KafkaRetryQueue {
    producer: Producer,
    /// The stages of each topic, with how many partitions they have.
    stages: Arc<[(String, Vec<Topic>)]>,
    /// Group of the records, if groups share the topics.
    group: Option<Arc<str>>,
    clock: SharedClock,
}

impl KafkaRetryQueue {
    pub(crate) fn new(
        producer: Producer,
        stages: Vec<(String, Vec<Stage>)>,
        found: &[FoundTopic],
        group: Option<Arc<str>>,
        clock: SharedClock,
    ) -> Self {
        let sized = |stage: Stage| {
            let topic = found.iter().find(|topic| topic.name == stage.topic);
            (stage, topic.map_or(1, |topic| topic.partitions))
        };
        let stages = stages
            .into_iter()
            .map(|(topic, stages)| (topic, stages.into_iter().map(sized).collect()))
            .collect();
        Self { producer, stages, group, clock }
    }

    /// The stage of a message that was born in `topic` and waits until `due`, and when it is due there.
    fn stage(&self, delayed_retry: &DelayedRetry) -> Option<(&Topic, Timestamp)> {
        let topic = delayed_retry.delivery.origin().stream();
        let own = self.stages.iter().find(|(name, _)| name == topic);
        // A message that others sent to our retry topics was born anywhere.
        let (_, stages) = own.or_else(|| self.stages.first())?;
        let now = self.clock.now();
        let wait = delayed_retry.due.since(now);
        match stages.iter().find(|(stage, _)| stage.delay >= wait) {
            // The time is rounded up to that of the stage, so records are due in the order in which they stand there.
            Some(stage) => Some((stage, now.after(stage.0.delay))),
            None => {
                let last = stages.last()?;
                // Whoever reads the record cuts a later time to this one (`wire::due`), so no other time is promised here.
                let latest = now.after(last.0.delay.saturating_add(LATEST));
                Some((last, delayed_retry.due.min(latest)))
            }
        }
    }

    async fn send(&self, delayed_retry: &DelayedRetry, topic: &Topic) -> Result<(), Unwritten> {
        let (stage, partitions) = topic;
        let message = delayed_retry.delivery.message();
        let death = delayed_retry.delivery.death(&delayed_retry.consumer);
        let key = message.key();
        let by = death.letter.as_bytes();
        let outgoing = Outgoing {
            operation: OPERATION,
            topic: &stage.topic,
            partition: Some(partition_for(key.map(|key| &key[..]), by, *partitions)),
            key,
            value: message.payload(),
            headers: &|| self.headers(delayed_retry),
        };
        self.producer.send(&outgoing).await
    }

    fn headers(&self, delayed_retry: &DelayedRetry) -> Result<OwnedHeaders, StoreError> {
        let delivery = &delayed_retry.delivery;
        let mut rest = Rest::of(delivery.message(), delivery.origin());
        rest.group = self.group.clone();
        pack_ours(delivery.message().headers(), &of_delayed_retry(delayed_retry), &rest)
            .map_err(|error| unwritable(OPERATION, error))
    }
}

impl RetryQueue for KafkaRetryQueue {
    /// Many of these wait at the same time, and so what they keep is small.
    async fn enqueue(&self, mut delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let Some((stage, due)) = self.stage(&delayed_retry) else {
            let text = "the ladder of retry topics has no stages; add one, or go `without_retries`";
            let failed = StoreError::new(StoreErrorKind::InvalidConfig, OPERATION);
            return Err(failed.with_detail(text));
        };
        delayed_retry.due = due;
        let mut sent = self.send(&delayed_retry, stage).await;
        // A retry with a shortened history is better than a death for the size of the history alone.
        if matches!(sent, Err(Unwritten::TooLarge)) {
            // The history is all that can go without changing the message or its counts.
            delayed_retry.history = shortest(&delayed_retry.history);
            // Boxed: this path is cold, and boxing keeps the hot future small.
            sent = Box::pin(self.send(&delayed_retry, stage)).await;
        }
        match sent {
            Ok(()) => {
                retried(&stage.0.topic);
                Ok(())
            }
            Err(Unwritten::Failed(error)) => Err(error),
            Err(Unwritten::TooLarge) => {
                Err(too_large(OPERATION, &stage.0.topic, StoreErrorKind::Refused))
            }
        }
    }
}

/// The last attempt, shortened: what is left where there is no room.
pub(crate) fn shortest(history: &History) -> History {
    let mut short = History::new();
    if let Some(attempt) = history.attempts().last() {
        short.push(attempt.clone());
    }
    short.shorten(64);
    short
}

pub(crate) fn unwritable(operation: &'static str, error: serde_json::Error) -> StoreError {
    let text = format!("its headers cannot be written: {error}");
    StoreError::new(StoreErrorKind::Unexpected, operation).with_detail(text).with_source(error)
}

pub(crate) fn too_large(operation: &'static str, topic: &str, kind: StoreErrorKind) -> StoreError {
    let text = format!(
        "topic `{topic}` takes no record that large; raise its `max.message.bytes` to that of the source and 64 KiB more, \
         and `segment.bytes` where that is less"
    );
    StoreError::new(kind, operation).with_detail(text)
}
