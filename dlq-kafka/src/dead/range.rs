use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use dlq_core::DeadLetter;

use super::lookup::Partitions;
use crate::client::error::SetupError;

/// Selection of letters of a topic, by where their records stand and by their messages. All conditions have to hold.
///
/// ```
/// use dlq_kafka::ScanRange;
///
/// let range = ScanRange::new().partition(3).offsets(1_000..2_000);
/// assert!(range.contains(3, 1_000) && !range.contains(3, 2_000));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ScanRange {
    partitions: BTreeSet<u32>,
    from: u64,
    to: Option<u64>,
    keys: BTreeSet<Bytes>,
    headers: Vec<(Bytes, Bytes)>,
}

impl ScanRange {
    /// All of them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a partition. Without any, all partitions are meant.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partitions.insert(partition);
        self
    }

    /// Sets the offsets, the same in every partition.
    pub fn offsets(mut self, offsets: impl RangeBounds<u64>) -> Self {
        self.from = match offsets.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        self.to = match offsets.end_bound() {
            Bound::Included(last) => Some(last.saturating_add(1)),
            Bound::Excluded(to) => Some(*to),
            Bound::Unbounded => None,
        };
        self
    }

    /// Adds a key. Without any, messages with any key or none are meant.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.keys.insert(key.into());
        self
    }

    /// Only messages with a header of this name and value, as their producer wrote them.
    pub fn header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Returns true if the message of a letter is selected, wherever its record is.
    #[must_use]
    pub fn selects(&self, letter: &DeadLetter) -> bool {
        let message = &letter.message;
        let has = |name: &Bytes, value: &Bytes| {
            let mut headers = message.headers().iter();
            headers.any(|header| header.name == name && header.value.as_ref() == Some(value))
        };
        (self.keys.is_empty() || message.key().is_some_and(|key| self.keys.contains(key)))
            && self.headers.iter().all(|(name, value)| has(name, value))
    }

    /// Returns true if a record with this position is selected.
    #[must_use]
    pub fn contains(&self, partition: u32, offset: u64) -> bool {
        (self.partitions.is_empty() || self.partitions.contains(&partition))
            && (self.from..self.to.unwrap_or(u64::MAX)).contains(&offset)
    }

    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Fails if a topic has none of the partitions that are asked for.
    pub(super) fn check(&self, topic: &str, there: &Partitions) -> Result<(), SetupError> {
        let Some(unknown) = self.partitions.iter().find(|wanted| !there.contains_key(wanted))
        else {
            return Ok(());
        };
        let count = there.len();
        let text = format!("`{topic}` has no partition {unknown}; it has {count}, from 0");
        Err(SetupError::NotFound(text))
    }
}

/// Offsets of a partition, from the first to before the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) partition: u32,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Span {
    pub(super) fn len(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// Largest distance of records that are read in one go.
const NEAR: u64 = 1_000;

/// Rounds in which these records are read, which are given by partition and offset: in each at most one span of a
/// partition.
pub(super) fn rounds(mut places: Vec<(u32, u64)>) -> Vec<Vec<Span>> {
    places.sort_unstable();
    let mut rounds: Vec<Vec<Span>> = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    for (partition, offset) in places {
        match spans.last_mut() {
            // Records in between are read and passed over, which costs less than to begin anew for each.
            Some(last) if last.partition == partition && offset < last.to + NEAR => {
                last.to = offset + 1;
            }
            _ => spans.push(Span { partition, from: offset, to: offset + 1 }),
        }
    }
    let (mut before, mut round) = (None, 0);
    for span in spans {
        // A client reads a partition from one place at a time, so the second span of a partition is for the next round.
        round = if before == Some(span.partition) { round + 1 } else { 0 };
        before = Some(span.partition);
        if rounds.len() == round {
            rounds.push(Vec::new());
        }
        rounds[round].push(span);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::super::lookup::Bounds;
    use super::*;

    #[test]
    fn what_stands_close_is_read_in_one_go() {
        let span = |partition, from, to| Span { partition, from, to };
        let places = vec![(1, 7), (0, 5_000), (0, 9), (0, 3), (0, 5_001), (0, 90_000), (1, 8)];
        let wanted = [
            vec![span(0, 3, 10), span(1, 7, 9)],
            vec![span(0, 5_000, 5_002)],
            vec![span(0, 90_000, 90_001)],
        ];
        assert_eq!(rounds(places), wanted);
        assert_eq!(rounds(Vec::new()), Vec::<Vec<Span>>::new());
    }

    #[test]
    fn a_partition_that_is_not_there_is_named() {
        let there = Partitions::from([(0, Bounds { begin: 10, end: 20 })]);
        assert!(ScanRange::new().partition(0).check("orders.dlq", &there).is_ok());
        let unknown = ScanRange::new().partition(2);
        let error = unknown.check("orders.dlq", &there).unwrap_err().to_string();
        assert!(error.contains("orders.dlq") && error.contains("partition 2"), "{error}");
    }

    #[test]
    fn offsets_are_from_and_to_before() {
        let found =
            |range: &ScanRange| (0..9).filter(|n| range.contains(0, *n)).collect::<Vec<_>>();
        assert_eq!(found(&ScanRange::new().offsets(3..=4)), [3, 4]);
        assert_eq!(found(&ScanRange::new().offsets(..2)), [0, 1]);
        assert_eq!(found(&ScanRange::new().offsets(7..)), [7, 8]);
        assert!(found(&ScanRange::new().partition(1)).is_empty());
    }

    #[test]
    fn messages_are_told_by_key_and_headers() {
        let message = dlq_core::Message::new("orders", "x")
            .with_key("k-1")
            .with_header("tenant", "acme")
            .with_header("tenant", "other");
        let letter = dlq_testkit::fixtures::letter_of(message, 1);
        for (range, is_meant) in [
            (ScanRange::new(), true),
            (ScanRange::new().key("k-1").key("k-2"), true),
            (ScanRange::new().key("k-2"), false),
            (ScanRange::new().header("tenant", "other").key("k-1"), true),
            (ScanRange::new().header("tenant", "acme").header("tenant", "none"), false),
            (ScanRange::new().header("Tenant", "acme"), false),
        ] {
            assert_eq!(range.selects(&letter), is_meant, "{range:?}");
        }
    }
}
