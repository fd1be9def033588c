use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlq_core::{StoreError, Timestamp};
use rdkafka::admin::ResourceSpecifier;

use super::KafkaLetters;
use super::lookup::Partitions;
use super::range::Span;
use super::reading::unread;
use crate::client::topics::{Cluster, blocking};

/// Size of a topic of dead letters. Offsets are counted, so copies, earlier deaths, and gaps of compaction and
/// transactions count too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDepth {
    /// Letters by partition: the offsets between its beginning and its end.
    pub by_partition: BTreeMap<u32, u64>,
    /// The end offsets of all partitions, summed.
    pub end_offset: u64,
    /// The timestamp of the earliest record that a partition begins with.
    pub oldest: Option<Timestamp>,
    /// The topic's `retention.ms`; `None` for ever, or when the user may not read it.
    pub retention: Option<Duration>,
}

/// Measures a topic of dead letters again and again. See [`KafkaLetters::queue_depth`].
pub struct QueueDepthReader {
    letters: KafkaLetters,
    /// Start of each partition at the last look, and the timestamp of the record there.
    first: BTreeMap<u32, (u64, Option<Timestamp>)>,
    cluster: Arc<Mutex<Option<Cluster>>>,
}

impl KafkaLetters {
    /// Returns a reader that measures the topic, by requests for its offsets and settings. It reads one record of a
    /// partition, the first, and again only when the partition begins elsewhere.
    #[must_use]
    pub fn queue_depth(&self) -> QueueDepthReader {
        QueueDepthReader { letters: self.clone(), first: BTreeMap::new(), cluster: Arc::default() }
    }
}

impl QueueDepthReader {
    /// Returns the current size of the topic.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such topic, `Unavailable` when the cluster does not answer.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped at any time.
    pub async fn read(&mut self) -> Result<QueueDepth, StoreError> {
        let there = self.letters.lookup.partitions(&self.letters.topic).await.map_err(unread)?;
        self.look_at_first(&there).await?;
        // Of each partition the first record is the oldest, as far as producers tell the time in order.
        let first = self.first.values().filter_map(|(_, time)| *time);
        Ok(QueueDepth {
            by_partition: there.iter().map(|(id, at)| (*id, at.end - at.begin)).collect(),
            end_offset: there.values().map(|bounds| bounds.end).sum(),
            oldest: first.min(),
            retention: self.retention().await?,
        })
    }

    async fn look_at_first(&mut self, there: &Partitions) -> Result<(), StoreError> {
        // A partition that begins elsewhere has lost its first record to retention, and one without records has none.
        self.first.retain(|partition, (begin, _)| {
            there.get(partition).is_some_and(|at| at.begin == *begin && at.end > at.begin)
        });
        let begins =
            there.iter().filter(|(id, at)| at.end > at.begin && !self.first.contains_key(id));
        let spans: Vec<_> = begins
            .map(|(id, at)| Span { partition: *id, from: at.begin, to: at.begin + 1 })
            .collect();
        if spans.is_empty() {
            return Ok(());
        }
        // Where no record stands there, that is kept as well, or it would be looked for each time.
        let mut found: BTreeMap<_, _> =
            spans.iter().map(|span| (span.partition, (span.from, None))).collect();
        let KafkaLetters { lookup, topic, .. } = &self.letters;
        let mut records = lookup.scan(topic, vec![spans]).map_err(unread)?;
        while let Some(record) = records.next().await.map_err(unread)? {
            found.insert(record.partition, (record.offset, record.timestamp));
        }
        self.first.extend(found);
        Ok(())
    }

    async fn retention(&self) -> Result<Option<Duration>, StoreError> {
        let (cluster, letters) = (Arc::clone(&self.cluster), self.letters.clone());
        let read = blocking(move || {
            let mut cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
            let cluster = match &mut *cluster {
                Some(cluster) => cluster,
                none => none.insert(Cluster::new(&letters.lookup.brokers, None)?),
            };
            let topic = [ResourceSpecifier::Topic(&letters.topic)];
            // Asked once: a user who may not read the settings would wait at each measurement otherwise.
            let settings = cluster.settings(Instant::now(), &topic)?;
            let millis = settings.into_iter().flatten().next();
            Ok(millis.and_then(|settings| settings.get("retention.ms")?.parse().ok()))
        });
        let millis: Option<i64> = read.await.map_err(unread)?;
        Ok(millis.and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis))
    }
}

impl std::fmt::Debug for QueueDepthReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueDepthReader").field("letters", &self.letters).finish_non_exhaustive()
    }
}
