//! Records that were deleted before they were read: retention is shorter than the consumer is behind.
//!
//! The client goes on at the first record that is left, without a word. All that shows is a gap, and there are gaps of other
//! causes: transactions and compaction. So where one was passed over it is asked where the partition begins now, and so it is
//! of each partition that was found with a commit: all that came after that may be gone.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::consumer::gauges::{anew, lost};
use crate::consumer::partition::{Gap, Partition};
use crate::consumer::shared::SourceState;

/// Time limit for brokers to say where partitions begin.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
/// The time between two looks: a topic of transactions has many gaps.
const EVERY: Duration = Duration::from_secs(5);

/// A partition that is asked about, with its gap if it has one.
type Asked = (Arc<Partition>, Option<Gap>);
/// Partitions that were asked about, and the offsets at which each begins and ends now.
type DeletedRanges = Vec<(Asked, [u64; 2])>;
type Look = JoinHandle<Result<DeletedRanges, KafkaError>>;

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
        shared: &SourceState,
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
        let asked = |partition: Arc<Partition>| {
            let gap = partition.gap();
            (gap.is_some() || partition.unasked().is_some()).then_some((partition, gap))
        };
        let asked: Vec<_> = shared.all().into_iter().filter_map(asked).collect();
        if asked.is_empty() {
            return;
        }
        self.due = Instant::now() + EVERY;
        let consumer = Arc::clone(consumer);
        // A thread of its own waits for the brokers: one may be silent.
        let thread = std::thread::Builder::new().name("dlq-kafka-lost".to_owned());
        match thread.spawn(move || find(&consumer, asked)) {
            Ok(look) => self.look = Some(look),
            Err(error) => tracing::warn!(%error, "a thread that looks could not be started"),
        }
    }
}

fn find<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    asked: Vec<Asked>,
) -> Result<DeletedRanges, KafkaError> {
    let offsets = |at: Offset| {
        let mut list = TopicPartitionList::new();
        for (partition, _) in &asked {
            list.add_partition_offset(&partition.topic, partition.number, at)?;
        }
        // One request to each broker answers for all partitions. Watermarks would take one for each of them.
        consumer.offsets_for_times(list, ANSWER)
    };
    let [begins, ends] = [offsets(Offset::Beginning)?, offsets(Offset::End)?];
    let found = |asked: Asked| {
        let offset = |all: &TopicPartitionList| {
            let one = all.find_partition(&asked.0.topic, asked.0.number)?;
            match (one.error(), one.offset()) {
                (Ok(()), Offset::Offset(offset)) => u64::try_from(offset).ok(),
                // It is asked again.
                _ => None,
            }
        };
        let bounds = [offset(&begins)?, offset(&ends)?];
        Some((asked, bounds))
    };
    Ok(asked.iter().cloned().filter_map(found).collect())
}

fn tell(found: DeletedRanges, shared: &SourceState) {
    let mut texts = Vec::new();
    for ((partition, gap), [low, end]) in found {
        if let Some(committed) = partition.unasked().filter(|committed| end < *committed) {
            anew(&partition.topic);
            tracing::warn!(
                topic = &*partition.topic,
                partition = partition.number,
                committed,
                end,
                "the partition ends before what the group has committed: its topic was deleted and made again, or it has lost \
                 its end; it is read from its beginning"
            );
        }
        // One that was found with a commit begins with what was deleted after it, so that this is not told twice.
        let at_start = partition.deleted(low);
        let gap = gap.filter(|gap| at_start.is_none_or(|start| gap.from > start.to));
        if let Some(gap) = gap {
            partition.looked_at(gap, low);
        }
        for gap in at_start.into_iter().chain(gap) {
            let count = gap.lost(low);
            if count == 0 {
                continue;
            }
            lost(&partition.topic, count);
            let to = gap.to.min(low);
            texts.push(format!(
                "topic `{}`, partition {}: up to {count} records from offset {} to {to} were deleted before they were \
                 handled; raise `retention.ms` and `retention.bytes`, or have the consumer catch up sooner",
                partition.topic, partition.number, gap.from
            ));
        }
    }
    if texts.is_empty() {
        return;
    }
    let text = texts.join("; ");
    tracing::error!("{text}");
    // The error is one that passes: the records are gone, and the consumer goes on with what is left (G9).
    let error = TransportError::new(TransportErrorKind::Unavailable, "fetch records");
    shared.queue().blocked = Some(error.with_detail(text));
    shared.arrived.notify_one();
}
