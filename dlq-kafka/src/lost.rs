//! Records that were deleted before they were read: retention is shorter than the consumer is behind.
//!
//! The client goes on at the first record that is left, without a word. All that shows is a gap, and there are gaps of other
//! causes: transactions and compaction. So where one was passed over it is asked where the partition begins now.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::gauges::lost;
use crate::partition::{Gap, Partition};
use crate::shared::Shared;
use crate::tail::ANSWER;

/// The time between two looks: a topic of transactions has many gaps.
const EVERY: Duration = Duration::from_secs(5);

/// Partitions with a gap, and the offset at which each begins now.
type Found = Vec<(Arc<Partition>, Gap, u64)>;
type Look = JoinHandle<Result<Found, KafkaError>>;

/// Looks at gaps for records that were deleted.
pub(crate) struct Lost {
    due: Instant,
    look: Option<Look>,
}

impl Lost {
    pub(crate) fn new() -> Self {
        Self { due: Instant::now(), look: None }
    }

    /// Takes what a look has found, and begins the next when there is a gap.
    pub(crate) fn watch<C: ConsumerContext + 'static>(
        &mut self,
        consumer: &Arc<BaseConsumer<C>>,
        shared: &Shared,
    ) {
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            match look.join() {
                Ok(Ok(found)) => tell(found, shared),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "it could not be found out whether records were deleted");
                }
                Err(_) => tracing::error!("a look at gaps has panicked"),
            }
        }
        if self.look.is_some() || Instant::now() < self.due {
            return;
        }
        let with_gap = |partition: Arc<Partition>| partition.gap().map(|gap| (partition, gap));
        let gaps: Vec<_> = shared.all().into_iter().filter_map(with_gap).collect();
        if gaps.is_empty() {
            return;
        }
        self.due = Instant::now() + EVERY;
        let consumer = Arc::clone(consumer);
        // A thread of its own waits for the brokers: one may be silent.
        let thread = std::thread::Builder::new().name("dlq-kafka-lost".to_owned());
        match thread.spawn(move || find(&consumer, gaps)) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::warn!(%error, "a thread that looks could not be started"),
        }
    }
}

fn find<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    gaps: Vec<(Arc<Partition>, Gap)>,
) -> Result<Found, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (partition, _) in &gaps {
        list.add_partition_offset(&partition.topic, partition.number, Offset::Beginning)?;
    }
    let begins = consumer.offsets_for_times(list, ANSWER)?;
    let low = |(partition, gap): (Arc<Partition>, Gap)| {
        let begin = begins.find_partition(&partition.topic, partition.number)?;
        match (begin.error(), begin.offset()) {
            (Ok(()), Offset::Offset(low)) => Some((partition, gap, u64::try_from(low).ok()?)),
            // It is asked again.
            _ => None,
        }
    };
    Ok(gaps.into_iter().filter_map(low).collect())
}

fn tell(found: Found, shared: &Shared) {
    let mut texts = Vec::new();
    for (partition, gap, low) in found {
        partition.looked_at(gap);
        let count = gap.lost(low);
        if count == 0 {
            continue;
        }
        lost(&partition.topic, count);
        let to = gap.to.min(low);
        texts.push(format!(
            "topic `{}`, partition {}: up to {count} records from offset {} to {to} were deleted before they were handled; \
             raise `retention.ms` and `retention.bytes`, or have the consumer catch up sooner",
            partition.topic, partition.number, gap.from
        ));
    }
    if texts.is_empty() {
        return;
    }
    let text = texts.join("; ");
    tracing::error!("{text}");
    let error = TransportError::new(TransportErrorKind::Unavailable, "fetch records");
    shared.queue().blocked = Some(error.with_detail(text));
    shared.arrived.notify_one();
}
