use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::hash::RandomState;

use serde::{Deserialize, Serialize};

use crate::shared::{Line, Taken};

/// Which records of a partition are in hand at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Concurrency {
    /// All that there is room for. A handler with an order key has its order still: its consumer sees to it.
    #[default]
    Unordered,
    /// One of each key of the record; of those without a key, all.
    Key,
    /// One.
    Partition,
}

/// The records that wait until the one before them in their line is done.
#[derive(Debug)]
pub(crate) struct Lines {
    concurrency: Concurrency,
    /// Lines of which a record is in hand, and those behind it.
    busy: HashMap<Line, VecDeque<Taken>>,
    hasher: RandomState,
}

impl Lines {
    pub(crate) fn new(concurrency: Concurrency) -> Self {
        Self { concurrency, busy: HashMap::new(), hasher: RandomState::new() }
    }

    /// The record, if it may go out now, and its line; else it is kept.
    pub(crate) fn admit(&mut self, taken: Taken) -> Option<(Taken, Option<Line>)> {
        let key = match (self.concurrency, &taken.record.key) {
            // The order of a retry topic is that of its due times.
            _ if taken.place.partition.stage.is_some() => return Some((taken, None)),
            (Concurrency::Unordered, _) | (Concurrency::Key, None) => return Some((taken, None)),
            (Concurrency::Partition, _) => 0,
            (Concurrency::Key, Some(key)) => self.hasher.hash_one(key),
        };
        let partition = &taken.place.partition;
        let line = Line { topic: partition.topic.clone(), partition: partition.number, key };
        if let Some(behind) = self.busy.get_mut(&line) {
            behind.push_back(taken);
            return None;
        }
        self.busy.insert(line.clone(), VecDeque::new());
        Some((taken, Some(line)))
    }

    /// The first of this line is done; the next may go out.
    pub(crate) fn release(&mut self, line: Line) -> Option<(Taken, Option<Line>)> {
        let behind = self.busy.get_mut(&line)?;
        while let Some(next) = behind.pop_front() {
            if !next.place.partition.is_leaving() {
                return Some((next, Some(line)));
            }
        }
        self.busy.remove(&line);
        None
    }

    pub(crate) fn clear(&mut self) {
        self.busy.clear();
    }
}
