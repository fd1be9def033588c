use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::hash::RandomState;

use serde::{Deserialize, Serialize};

use crate::consumer::shared::{Line, Taken};

/// Number of records of a partition that are in flight at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Concurrency {
    /// All that there is room for. A handler with an order key has its order still: its consumer sees to it.
    #[default]
    Unordered,
    /// A single record of each key; all records without a key.
    Key,
    /// A single record.
    Partition,
}

/// The records that wait until the one before them in their line is done.
#[derive(Debug)]
pub(crate) struct Lines {
    concurrency: Concurrency,
    /// Lines of which a record is in flight, and those behind it.
    busy: HashMap<Line, VecDeque<Taken>>,
    hasher: RandomState,
}

impl Lines {
    pub(crate) fn new(concurrency: Concurrency) -> Self {
        Self { concurrency, busy: HashMap::new(), hasher: RandomState::new() }
    }

    /// The record, if it may go out now, and its line; else it is kept.
    #[inline]
    pub(crate) fn admit(&mut self, taken: Taken) -> Option<(Taken, Option<Line>)> {
        let key = match (self.concurrency, &taken.record.key) {
            // The order of a retry topic is that of its due times.
            _ if taken.place.partition.stage.is_some() => return Some((taken, None)),
            (Concurrency::Unordered, _) | (Concurrency::Key, None) => return Some((taken, None)),
            (Concurrency::Partition, _) => 0,
            // Two keys with one hash wait for each other, which costs time and breaks no order.
            (Concurrency::Key, Some(key)) => self.hasher.hash_one(key),
        };
        let partition = &taken.place.partition;
        let line = Line { topic: partition.topic.clone(), partition: partition.number, key };
        if let Some(behind) = self.busy.get_mut(&line) {
            // It takes room as one that waits for its time does, so a line that stands still pauses its own partition.
            taken.place.partition.hold(taken.record.size());
            behind.push_back(taken);
            return None;
        }
        self.busy.insert(line.clone(), VecDeque::new());
        Some((taken, Some(line)))
    }

    /// The first of this line is done; the next may go out.
    pub(crate) fn release(&mut self, line: Line) -> Option<(Taken, Option<Line>)> {
        let behind = self.busy.get_mut(&line)?;
        // What waits of a partition that went is for its new owner.
        while let Some(next) = behind.pop_front() {
            next.place.partition.release(next.record.size());
            if !next.place.partition.is_leaving() {
                return Some((next, Some(line)));
            }
        }
        // The entry goes with its last record. A topic of many keys would fill the memory with empty lines otherwise.
        self.busy.remove(&line);
        None
    }

    pub(crate) fn clear(&mut self) {
        self.busy.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlq_core::{Headers, Origin, Position};

    use super::*;
    use crate::client::record::Record;
    use crate::consumer::partition::Partition;
    use crate::consumer::shared::DeliveryPosition;

    #[test]
    fn what_waits_behind_another_takes_room() {
        let partition = Arc::new(Partition::new(1, "orders".into(), 0, None));
        let taken = |offset| Taken {
            record: Record {
                topic: "orders".into(),
                partition: 0,
                offset,
                timestamp: None,
                key: None,
                value: None,
                headers: Headers::new(),
                unreadable_headers: 0,
            },
            origin: Origin::new("kafka", "orders", Position::Offset(offset)),
            place: DeliveryPosition { partition: Arc::clone(&partition), sequence: offset, offset },
            deaths: 0,
        };
        let mut lines = Lines::new(Concurrency::Partition);
        let (_, line) = lines.admit(taken(0)).unwrap();
        assert!((1..=20).all(|offset| lines.admit(taken(offset)).is_none()));
        let fullness = || partition.fullness(100_000, 20, usize::MAX);
        assert!(fullness() >= 1.0, "{}", fullness());
        let next = (1..=20).try_fold(line, |line, _| lines.release(line?).map(|(_, line)| line));
        assert!(next.is_some() && fullness() < 0.1, "{}", fullness());
    }
}
