//! Entries of a topic of dead letters that is read without a trace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dlq_core::log::{Content, Entries, Entry, Range};
use dlq_core::{Origin, Position, StoreError, Timestamp};
use futures_util::FutureExt as _;

use super::KafkaLetters;
use super::lookup::{Bounds, Partitions};
use super::range::Span;
use super::reading::unread;
use super::records::Records;
use super::scan::Sequence;
use super::sent::SentBack;
use crate::client::record::Record;
use crate::dialect;

/// Knowledge of the letters of a reading about what was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// The content of the ledger.
    Sent,
    /// Nothing: whoever reads them asks the ledger.
    Nothing,
}

pub(super) struct ReadEntries {
    letters: KafkaLetters,
    records: Records,
    since: Option<Timestamp>,
    for_ever: bool,
    /// Taken from the topic and not yielded yet.
    taken: Vec<Record>,
    has_ended: bool,
    /// Content of the ledger; `None` where nobody asks for it.
    sent: Option<SentBack>,
    /// True if the ledger has been read since the reading began.
    has_looked: bool,
}

impl ReadEntries {
    pub(super) async fn open(
        letters: KafkaLetters,
        range: Range,
        says: Says,
    ) -> Result<Self, StoreError> {
        let KafkaLetters { lookup, topic, .. } = &letters;
        let there = lookup.partitions(topic).await.map_err(unread)?;
        let since = match range.since {
            Some(since) => lookup.since(topic, &there, since).await.map_err(unread)?,
            None => BTreeMap::new(),
        };
        let mut spans = spans(&there, &range, &since);
        if range.for_ever {
            spans.iter_mut().for_each(|span| span.to = u64::MAX);
        }
        // What is still to be written has no order in time yet.
        let sequence = if range.for_ever { Sequence::AsItComes } else { Sequence::BY_TIME };
        let records = lookup.scan_in(topic, vec![spans], sequence, range.for_ever);
        Ok(Self {
            records: records.map_err(unread)?,
            since: range.since,
            for_ever: range.for_ever,
            taken: Vec::new(),
            has_ended: false,
            sent: (says == Says::Sent).then(SentBack::default),
            has_looked: false,
            letters,
        })
    }

    /// Takes records until there are `limit`, or none that has come already. The first is waited for.
    async fn take(&mut self, limit: usize) -> Result<(), StoreError> {
        while !self.has_ended && self.taken.len() < limit {
            // A reading without an end waits for its first record only: those that it has are not held back for more.
            let next = if self.for_ever && !self.taken.is_empty() {
                match self.records.next().now_or_never() {
                    Some(next) => next,
                    None => break,
                }
            } else {
                self.records.next().await
            };
            match next.map_err(unread)? {
                // Behind the first record of that time there may be older ones, since whoever writes a record sets
                // its timestamp.
                Some(record) if is_since(&record, self.since) => self.taken.push(record),
                Some(_) => {}
                None => self.has_ended = true,
            }
        }
        Ok(())
    }

    /// Looks into the ledger: at the beginning, and again where the reading does not end.
    async fn look(&mut self) -> Result<(), StoreError> {
        let Some(sent) = &mut self.sent else { return Ok(()) };
        if self.taken.is_empty() || (self.has_looked && !self.for_ever) {
            return Ok(());
        }
        let KafkaLetters { lookup, ledger, .. } = &self.letters;
        if let Some(news) = sent.news(lookup, ledger).await.map_err(unread)? {
            *sent = news;
        }
        self.has_looked = true;
        Ok(())
    }
}

impl Entries for ReadEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.take(limit.max(1)).await?;
        // The ledger is read after the first records, so what was sent back before them is known.
        self.look().await?;
        let cluster = self.letters.brokers().cluster_shared();
        let entry = |record: Record| {
            let mut letter = dialect::letter(&record, cluster);
            if let Some(sent) = &self.sent {
                sent.say(&mut letter);
            }
            let content = Content::Letter(Box::new(letter));
            Entry { place: record.origin(cluster), again: false, content }
        };
        Ok(std::mem::take(&mut self.taken).into_iter().map(entry).collect())
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn is_since(record: &Record, since: Option<Timestamp>) -> bool {
    since.is_none_or(|since| record.timestamp.is_some_and(|at| at >= since))
}

/// Returns the offsets of a range, if records of its time begin at `since`.
fn spans(there: &Partitions, range: &Range, since: &BTreeMap<u32, u64>) -> Vec<Span> {
    let mut from: BTreeMap<u32, u64> = BTreeMap::new();
    for (partition, offset) in range.from.iter().filter_map(place_of) {
        from.insert(partition, offset);
    }
    // All conditions have to hold, so the latest beginning counts.
    let span = |(partition, bounds): (&u32, &Bounds)| {
        let last = range.last.map_or(0, |last| bounds.end.saturating_sub(last));
        let from = from.get(partition).copied().unwrap_or(0).max(last);
        let from = from.max(since.get(partition).copied().unwrap_or(0)).max(bounds.begin);
        Span { partition: *partition, from, to: bounds.end }
    };
    there.iter().map(span).collect()
}

/// Returns the partition and the offset of a place; `None` for a place of another kind of broker.
pub(super) fn place_of(place: &Origin) -> Option<(u32, u64)> {
    match (place.partition(), place.position()) {
        (Some(partition), Position::Offset(offset)) => Some((partition, *offset)),
        _ => None,
    }
}

/// Returns true if a place is of this topic of this cluster.
pub(super) fn is_of(place: &Origin, topic: &Arc<str>) -> bool {
    place.stream() == &**topic
}

impl fmt::Debug for ReadEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadEntries").field("letters", &self.letters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_what_is_there() {
        let there = Partitions::from([
            (0, Bounds { begin: 10, end: 20 }),
            (1, Bounds { begin: 0, end: 5 }),
        ]);
        let place = |partition, offset| {
            let at = Origin::new("kafka", "orders.dlq", Position::Offset(offset));
            at.with_partition(partition)
        };
        let spans = |range: &Range, since: &[(u32, u64)]| {
            let spans = spans(&there, range, &since.iter().copied().collect());
            spans.iter().map(|span| (span.from, span.len())).collect::<Vec<_>>()
        };
        assert_eq!(spans(&Range::all(), &[]), [(10, 10), (0, 5)]);
        assert_eq!(spans(&Range::all().from(place(1, 3)), &[]), [(10, 10), (3, 2)]);
        assert_eq!(spans(&Range::all().from(place(0, 3)), &[(0, 12)]), [(12, 8), (0, 5)]);
        assert_eq!(spans(&Range::all().last(2), &[]), [(18, 2), (3, 2)]);
        assert_eq!(spans(&Range::all().last(99), &[]), [(10, 10), (0, 5)]);
        assert_eq!(spans(&Range::all().last(0), &[]), [(20, 0), (5, 0)]);
        assert_eq!(spans(&Range::all().from(place(1, 99)), &[]), [(10, 10), (99, 0)]);
        let elsewhere = Origin::new("redis", "orders.dlq", Position::Pair(1, 2));
        assert_eq!(spans(&Range::all().from(elsewhere), &[]), [(10, 10), (0, 5)]);
    }
}
