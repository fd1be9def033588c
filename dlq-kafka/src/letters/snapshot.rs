use std::collections::BTreeMap;

use dlq_core::store::reading::{self, Collapsed};
use dlq_core::store::rules::Arrival;
use dlq_core::{DeadLetter, LetterId, Timestamp};

use super::ScanRange;
use super::lookup::{Bounds, Partitions};
use super::range::Span;
use super::sent::SentBack;
use crate::record::Record;

/// Position of a letter. The order of positions is the order in which letters count as written: the same for everyone
/// who reads, however the partitions came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    at: Option<Timestamp>,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

impl Place {
    pub(super) fn of(record: &Record) -> Self {
        Self { at: record.timestamp, partition: record.partition, offset: record.offset }
    }

    pub(super) fn is_in(&self, range: &ScanRange) -> bool {
        range.contains(self.partition, self.offset, self.at)
    }
}

/// A letter and its place.
pub(super) type Row = reading::Row<Place>;

/// Data by which a record is recognised again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    place: Place,
    letter: LetterId,
}

/// Records that were read in one go.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    rows: Vec<Row>,
    /// The first and the last of each partition.
    ends: BTreeMap<u32, (Known, Known)>,
}

impl Fresh {
    pub(super) fn add(&mut self, letter: DeadLetter, place: Place) {
        let known = Known { place, letter: letter.id };
        self.ends.entry(place.partition).or_insert((known, known)).1 = known;
        self.rows.push(Row::new(letter, place));
    }
}

/// The letters of a topic as they stood when it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) seen: Partitions,
    pub(super) letters: Collapsed<Place>,
    pub(super) sent: SentBack,
    /// The last record of each partition.
    last: BTreeMap<u32, Known>,
}

impl Snapshot {
    /// Returns the spans that have come since, with the last known record of each partition, by which the topic is
    /// recognised. `None` if something has gone: then everything has to be read again.
    pub(super) fn news(&self, now: &Partitions) -> Option<Vec<Span>> {
        let is_there = |(partition, before): (&u32, &Bounds)| {
            now.get(partition).is_some_and(|now| now.begin == before.begin && now.end >= before.end)
        };
        if self.seen.is_empty() || !self.seen.iter().all(is_there) {
            return None;
        }
        let grown = now.iter().filter_map(|(partition, bounds)| {
            let before = self.seen.get(partition).map_or(bounds.begin, |before| before.end);
            let last = self.last.get(partition).map_or(before, |last| last.place.offset);
            let span = Span { partition: *partition, from: last, to: bounds.end };
            (bounds.end > before).then_some(span)
        });
        Some(grown.collect())
    }

    /// Makes the snapshot of a topic that was read from its beginning.
    pub(super) fn of(now: Partitions, fresh: Fresh) -> Self {
        let mut snapshot = Self::default();
        snapshot.add(now, fresh);
        snapshot
    }

    /// With what [`news`](Self::news) asked for. `None` when that does not go with what was read before: when it is
    /// another topic of the same name, or two messages claim one identity, of which the first has it.
    pub(super) fn with(mut self, now: &Partitions, mut fresh: Fresh) -> Option<Self> {
        for (partition, last) in &self.last {
            let seen = self.seen.get(partition);
            let has_grown = now.get(partition).map(|now| now.end) != seen.map(|seen| seen.end);
            let first = fresh.ends.get(partition).map(|ends| ends.0);
            if has_grown && first != Some(*last) {
                return None;
            }
        }
        let last = &self.last;
        fresh.rows.retain(|row| {
            last.get(&row.place.partition).is_none_or(|last| last.place != row.place)
        });
        (!self.add(now.clone(), fresh)).then_some(self)
    }

    /// Says of the letters what was sent back.
    pub(super) fn mark(&mut self) {
        let sent = &self.sent;
        self.letters.mark(|death| sent.sent(death));
    }

    /// Adds records. Returns true if there was another message of the same identity among them.
    fn add(&mut self, now: Partitions, mut fresh: Fresh) -> bool {
        fresh.rows.sort_by_key(|row| row.place);
        let mut has_conflict = false;
        for row in fresh.rows {
            has_conflict |= self.letters.add(row) == Arrival::Conflict;
        }
        self.last.extend(fresh.ends.into_iter().map(|(partition, ends)| (partition, ends.1)));
        self.seen = now;
        has_conflict
    }
}
