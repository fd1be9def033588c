//! The headers of a record as one dialect reads them.

use std::fmt;
use std::ops::Range;

use dlq_core::{Headers, Timestamp};

use super::values::{millis, text, topic};
use crate::client::record::Record;

/// Order of several headers of one name: which one was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newest {
    First,
    Last,
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPosition<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: u32,
    pub(super) offset: u64,
}

impl fmt::Display for RecordPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)
    }
}

/// The names under which a dialect says where a record stood, and how it writes numbers there.
pub(super) struct Coordinates {
    pub(super) topic: &'static str,
    pub(super) partition: &'static str,
    pub(super) offset: &'static str,
    pub(super) partition_as: fn(&[u8]) -> Option<i64>,
    pub(super) offset_as: fn(&[u8]) -> Option<i64>,
}

/// Positions of a record at each death, oldest first. The latest one is known.
pub(super) struct Hops<'a> {
    all: Vec<Option<RecordPosition<'a>>>,
    newest: RecordPosition<'a>,
}

impl<'a> Hops<'a> {
    /// The oldest that can be read.
    pub(super) fn birth(&self) -> RecordPosition<'a> {
        self.all.iter().flatten().next().copied().unwrap_or(self.newest)
    }

    pub(super) fn newest(&self) -> RecordPosition<'a> {
        self.newest
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of earlier deaths.
    pub(super) fn before(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX).saturating_sub(1)
    }
}

/// The headers of a record as one dialect reads them. What it reads is noted, so that what it could not read is kept.
pub(super) struct Fields<'a> {
    pub(super) record: &'a Record,
    pub(super) newest: Newest,
    owns: fn(&[u8]) -> bool,
    is_read: Vec<bool>,
    /// Headers with a name of the dialect that its writer did not write.
    is_producers: Vec<bool>,
    /// The names that earlier dialects wrote of the same record.
    earlier: Vec<fn(&[u8]) -> bool>,
}

impl<'a> Fields<'a> {
    /// `owns` tells the names that the dialect writes.
    pub(super) fn new(record: &'a Record, newest: Newest, owns: fn(&[u8]) -> bool) -> Self {
        let count = record.headers.len();
        let (is_read, is_producers) = (vec![false; count], vec![false; count]);
        Self { record, newest, owns, is_read, is_producers, earlier: Vec::new() }
    }

    /// Takes the headers that `earlier` wrote onto the record for those of a death, too, of which none is read here.
    pub(super) fn absorb(&mut self, earlier: &Self) {
        self.earlier.push(earlier.owns);
        self.earlier.extend(&earlier.earlier);
        for (is_producers, was) in self.is_producers.iter_mut().zip(&earlier.is_producers) {
            *is_producers |= was;
        }
    }

    fn is_owned(&self, name: &[u8]) -> bool {
        (self.owns)(name) || self.earlier.iter().any(|owns| owns(name))
    }

    /// Returns the index of the header that the dialect wrote last; `None` if it wrote nothing.
    pub(super) fn written(&self) -> Option<usize> {
        let headers = self.record.headers.iter();
        let own: Vec<_> = headers.enumerate().filter(|(_, it)| (self.owns)(&it.name)).collect();
        let latest = if self.newest == Newest::First { own.first() } else { own.last() };
        latest.map(|(index, _)| *index)
    }

    /// Returns true if a header of this name exists, whatever its value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.record.headers.iter().any(|header| header.name == name)
    }

    /// The latest value under a name as text, without noting that it was read.
    pub(super) fn peek(&self, name: &str) -> Option<&'a str> {
        let index = self.indices(name).pop()?;
        text(self.value(index)?)
    }

    /// The latest value under a name; `None` too where it cannot be read.
    pub(super) fn get<T>(&mut self, name: &str, read: fn(&'a [u8]) -> Option<T>) -> Option<T> {
        self.series(name, read).pop().flatten()
    }

    /// Every value under a name, oldest first; `None` for one that is absent or cannot be read.
    pub(super) fn series<T>(
        &mut self,
        name: &str,
        read: fn(&'a [u8]) -> Option<T>,
    ) -> Vec<Option<T>> {
        self.indices(name).into_iter().map(|index| self.read(index, read)).collect()
    }

    /// The latest text under a name in this part of the headers. Looks at that part only.
    pub(super) fn within(&mut self, name: &str, part: &Range<usize>) -> Option<&'a str> {
        let index = self.latest_within(name, part)?;
        self.read(index, text)
    }

    /// The same without noting that it was read.
    pub(super) fn peek_within(&self, name: &str, part: &Range<usize>) -> Option<&'a str> {
        text(self.value(self.latest_within(name, part)?)?)
    }

    fn latest_within(&self, name: &str, part: &Range<usize>) -> Option<usize> {
        let headers = self.record.headers.iter().enumerate().skip(part.start).take(part.len());
        let mut named = headers.filter(|(_, header)| header.name == name);
        let latest = if self.newest == Newest::First { named.next() } else { named.last() };
        latest.map(|(index, _)| index)
    }

    /// Returns the indices of headers of this name, oldest first.
    pub(super) fn indices(&self, name: &str) -> Vec<usize> {
        let named = self.record.headers.iter().enumerate();
        let mut indices: Vec<_> =
            named.filter(|(_, header)| header.name == name).map(|(index, _)| index).collect();
        if self.newest == Newest::First {
            // Turned, so that the oldest is the first, whichever way the dialect writes.
            indices.reverse();
        }
        indices
    }

    /// Returns the positions of the record; `None` unless the latest coordinates are complete and of the right form.
    ///
    /// Occurrences belong together by their rank. Where one name stands there more often than the others, its oldest
    /// values are the producer's, who used that name for something else.
    pub(super) fn hops(&mut self, names: &Coordinates) -> Option<Hops<'a>> {
        if !self.has(names.offset) || !self.has(names.partition) {
            return None;
        }
        let mut topics = self.series(names.topic, topic);
        let mut partitions = self.series(names.partition, names.partition_as);
        let mut offsets = self.series(names.offset, names.offset_as);
        let count = topics.len().min(partitions.len()).min(offsets.len());
        // Counted from the newest: what a producer wrote under one of the names is older than what the dialect wrote.
        topics.drain(..topics.len() - count);
        partitions.drain(..partitions.len() - count);
        offsets.drain(..offsets.len() - count);
        for name in [names.topic, names.partition, names.offset] {
            let named = self.indices(name);
            for index in named.iter().take(named.len() - count) {
                if let Some(is_producers) = self.is_producers.get_mut(*index) {
                    *is_producers = true;
                }
            }
        }
        let numbers = partitions.into_iter().zip(offsets);
        let all: Vec<_> = topics
            .into_iter()
            .zip(numbers)
            .map(|(topic, (partition, offset))| place(topic, partition, offset))
            .collect();
        // Without the latest place nothing tells where it died, so that older ones are of no use.
        let newest = (*all.last()?)?;
        Some(Hops { all, newest })
    }

    /// The timestamp of the birth, where there is one for each hop.
    pub(super) fn birth_time(
        &mut self,
        name: &str,
        hops: &Hops<'a>,
        read: fn(&'a [u8]) -> Option<i64>,
    ) -> Option<Timestamp> {
        let times = self.series(name, read);
        let oldest = times.first().copied().flatten().and_then(millis);
        // With fewer times than hops it is not known which hop the oldest time is of.
        oldest.filter(|_| times.len() == hops.len())
    }

    /// The producer's headers: all but those that `owns` or `is_state` tells.
    pub(super) fn producers(&self, is_state: fn(&[u8]) -> bool) -> Headers {
        let headers = self.record.headers.iter().zip(&self.is_producers);
        headers
            .filter(|(header, is_producers)| {
                !is_state(&header.name) && (**is_producers || !self.is_owned(&header.name))
            })
            .map(|(header, _)| header.clone())
            .collect()
    }

    /// Names and values that are not the producer's and were not read, oldest first; absent values left out.
    pub(super) fn unread(
        &self,
        is_state: fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let headers = self.record.headers.iter().zip(self.is_read.iter().zip(&self.is_producers));
        headers.filter_map(move |(header, (is_read, is_producers))| {
            let is_dialects = self.is_owned(&header.name) || is_state(&header.name);
            let is_given_back = *is_producers && !is_state(&header.name);
            let is_kept = is_dialects && !is_read && !is_given_back;
            is_kept.then_some((&header.name[..], header.value.as_deref()?))
        })
    }

    fn value(&self, index: usize) -> Option<&'a [u8]> {
        self.record.headers.iter().nth(index)?.value.as_deref()
    }

    fn read<T>(&mut self, index: usize, read: fn(&'a [u8]) -> Option<T>) -> Option<T> {
        let value = read(self.value(index)?)?;
        // Only a value that could be read is noted, so that one that could not be is kept as an attribute.
        if let Some(is_read) = self.is_read.get_mut(index) {
            *is_read = true;
        }
        Some(value)
    }
}

/// A place, if its parts are there and none of them is negative.
pub(super) fn place(
    topic: Option<&str>,
    partition: Option<i64>,
    offset: Option<i64>,
) -> Option<RecordPosition<'_>> {
    // Partitions are 32 bits with a sign.
    let partition = i32::try_from(partition?).ok().and_then(|it| u32::try_from(it).ok())?;
    Some(RecordPosition { topic: topic?, partition, offset: u64::try_from(offset?).ok()? })
}
