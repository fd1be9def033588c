use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dlq_core::StoreError;
use futures_util::{Stream, TryStreamExt, stream};

use super::lookup::{Bounds, Lookup, Partitions};
use super::picture::Row;
use super::range::{Span, rounds};
use super::reading::unread;
use super::records::Records;
use super::scan::{Scan, Sequence};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;
use crate::client::record::Record;

/// Records of partitions whose end is not known yet to readers of committed records, and the reason why they are not
/// visible.
pub(super) type Later = BTreeMap<(u32, u64), String>;

/// Reads the last records of each partition of a topic, at most so many offsets of each.
pub(crate) async fn newest(
    brokers: &Brokers,
    topic: &str,
    offsets: u64,
) -> Result<Records, SetupError> {
    let (lookup, topic) = (Lookup::new(brokers), Arc::from(topic));
    let there = lookup.partitions(&topic).await?;
    let span = |(partition, Bounds { begin, end }): (u32, Bounds)| Span {
        partition,
        from: begin.max(end.saturating_sub(offsets)),
        to: end,
    };
    lookup.scan(&topic, vec![there.into_iter().map(span).collect()])
}

impl Lookup {
    /// Reads these spans.
    pub(super) fn scan(
        &self,
        topic: &Arc<str>,
        rounds: Vec<Vec<Span>>,
    ) -> Result<Records, SetupError> {
        self.scan_in(topic, rounds, Sequence::AsItComes, false)
    }

    /// The same in a sequence; one that follows goes on with what is written later.
    pub(super) fn scan_in(
        &self,
        topic: &Arc<str>,
        rounds: Vec<Vec<Span>>,
        sequence: Sequence,
        follow: bool,
    ) -> Result<Records, SetupError> {
        let (brokers, topic) = (self.brokers.clone(), Arc::clone(topic));
        Scan { brokers, topic, rounds, sequence, follow }.run()
    }

    /// The records at these places, and others between them, as far as they are there; and which of them may not be to be
    /// seen yet.
    pub(super) async fn records(
        &self,
        topic: Arc<str>,
        mut places: Vec<(u32, u64)>,
    ) -> Result<(Records, Later), SetupError> {
        let asked = places.iter().map(|(partition, _)| *partition).collect();
        let there = match self.some_partitions(&topic, asked).await {
            // A topic that is gone has none of its records, which is an answer and no failure.
            Err(SetupError::NotFound(_)) => Partitions::new(),
            there => there?,
        };
        let end_of = |there: &Partitions, partition| {
            there.get(&partition).map_or(0, |bounds: &Bounds| bounds.end)
        };
        let beyond =
            places.iter().filter(|(partition, offset)| *offset >= end_of(&there, *partition));
        let beyond: BTreeSet<u32> =
            beyond.map(|(partition, _)| *partition).filter(|of| there.contains_key(of)).collect();
        // What is beyond the last record is not there; what transactions hold back may come.
        let written = match beyond.is_empty() {
            true => Partitions::new(),
            false => self.uncommitted().some_partitions(&topic, beyond).await?,
        };
        let mut later = Later::new();
        places.retain(|(partition, offset)| {
            let Some(bounds) = there.get(partition) else { return false };
            if (bounds.end..end_of(&written, *partition)).contains(offset) {
                let why = format!(
                    "offset {offset} of partition {partition} of `{topic}` is not to be seen, which ends at {} for who reads \
                     what was committed: a transaction may not have ended",
                    bounds.end
                );
                // Between the two ends a record may come once its transaction has ended, unlike one before the beginning,
                // which has gone.
                later.insert((*partition, *offset), why);
            }
            (bounds.begin..bounds.end).contains(offset)
        });
        Ok((self.scan(&topic, rounds(places))?, later))
    }

    /// These rows with the records at their places in the topic, as far as they are there.
    pub(super) fn located<'a>(
        &self,
        topic: &Arc<str>,
        rows: HashMap<(u32, u64), Vec<&'a Row>>,
    ) -> impl Stream<Item = Result<(&'a Row, Record), StoreError>> + Send + use<'a> {
        let (lookup, topic) = (self.clone(), Arc::clone(topic));
        let opened = async move {
            if rows.is_empty() {
                return Ok(None);
            }
            let places = rows.keys().copied().collect();
            let (records, mut later) = lookup.records(topic, places).await.map_err(unread)?;
            match later.pop_first() {
                // It was there before.
                Some((_, why)) => Err(unread(SetupError::Unavailable(why, None))),
                None => Ok(Some((rows, records))),
            }
        };
        let found = |(mut rows, mut records): (HashMap<_, Vec<&'a Row>>, Records)| async move {
            while let Some(record) = records.next().await.map_err(unread)? {
                if let Some(found) = rows.remove(&(record.partition, record.offset)) {
                    return Ok(Some(((found, record), (rows, records))));
                }
            }
            Ok(None)
        };
        stream::once(opened)
            .try_filter_map(|opened| std::future::ready(Ok(opened)))
            .map_ok(move |opened| stream::try_unfold(opened, found))
            .try_flatten()
            .map_ok(|(rows, record): (Vec<&'a Row>, Record)| {
                stream::iter(rows.into_iter().map(move |row| Ok((row, record.clone()))))
            })
            .try_flatten()
    }
}
