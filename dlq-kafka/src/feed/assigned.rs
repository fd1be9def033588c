//! Which partitions are ours, and how far each was read.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;

use crate::identity::TopicIds;
use crate::reach::Heard;
use crate::rebalance::end_pauses;

/// How long joining a group takes of which all are there, and more.
const JOINING: Duration = Duration::from_secs(8);

/// The context of the consumer of a feed: hears of assignments, on the thread that polls.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) heard: Heard,
    pub(super) ids: TopicIds,
    inner: Mutex<Partitions>,
}

#[derive(Debug, Default)]
pub(super) struct Partitions {
    pub(super) ours: BTreeMap<i32, Partition>,
    epochs: u64,
    /// Since when the group gives us nothing, until that was told.
    joining: Option<Instant>,
    /// How often the client had turned to a topic that is gone, or back.
    turns: u64,
}

/// A partition while it is ours.
#[derive(Debug)]
pub(super) struct Partition {
    /// Of this assignment: what was read in an earlier one is not committed any more.
    pub(super) epoch: u64,
    /// Once its commit was read.
    pub(super) place: Option<Place>,
    /// The id of the topic that its offsets are of, once it is known.
    pub(super) topic: Option<String>,
    /// The topic was made anew, and the client is not at its beginning yet.
    pub(super) is_anew: bool,
    /// Whether the client fetches it, since a record of it has come.
    pub(super) is_fetched: bool,
    /// Whether the client fetches none of it for now, since nobody asks.
    is_paused: bool,
}

/// How far a partition was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Before this offset others may have read what was not confirmed.
    pub(super) again_until: i64,
    /// After what was yielded.
    pub(super) yielded: i64,
    /// What is committed.
    pub(super) committed: i64,
    /// How many letters were confirmed, ever.
    pub(super) confirmed: u64,
}

impl Partition {
    fn new(epoch: u64) -> Self {
        let (is_fetched, is_paused) = (false, false);
        Self { epoch, place: None, topic: None, is_anew: false, is_fetched, is_paused }
    }
}

impl Assigned {
    pub(super) fn new(ids: TopicIds) -> Self {
        let partitions = Partitions { joining: Some(Instant::now()), ..Partitions::default() };
        Self { heard: Heard::default(), ids, inner: Mutex::new(partitions) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Partitions> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partitions {
    /// Has partitions begin anew that are read of another topic than the one that has its name now, which has this id; or
    /// were, when the client has turned to one that is gone, or back.
    pub(super) fn renew(&mut self, id: &str, turns: u64) {
        let has_turned = std::mem::replace(&mut self.turns, turns) != turns;
        for partition in self.ours.values_mut().filter(|ours| has_turned || ours.place.is_some()) {
            let is_other = partition.topic.get_or_insert_with(|| id.to_owned()) != id;
            if has_turned || is_other {
                self.epochs += 1;
                // The client fetches and pauses a partition, whatever topic it is of.
                let (is_fetched, is_paused) = (partition.is_fetched, partition.is_paused);
                let new = Partition::new(self.epochs);
                *partition = Partition { is_anew: true, is_fetched, is_paused, ..new };
            }
        }
    }

    /// Whether somebody keeps the group from being shared; said once.
    pub(super) fn is_kept_waiting(&mut self) -> bool {
        self.joining.take_if(|since| since.elapsed() >= JOINING).is_some()
    }

    /// Those of which the commit was not read yet.
    pub(super) fn fresh(&self) -> Vec<i32> {
        let fresh = self.ours.iter().filter(|(_, partition)| partition.place.is_none());
        fresh.map(|(partition, _)| *partition).collect()
    }

    /// Those that the client is to be told to pause, or not to pause any more; as if it was told. Where it is told to pause
    /// one while it begins to fetch it, either may be lost, and so what has not come yet is not paused.
    pub(super) fn turned(&mut self, is_paused: bool) -> Vec<i32> {
        let all = self.ours.iter_mut().filter(|(_, ours)| ours.is_fetched);
        let turned = all.filter(|(_, ours)| ours.is_paused != is_paused);
        let turn = |(number, ours): (&i32, &mut Partition)| {
            ours.is_paused = is_paused;
            *number
        };
        turned.map(turn).collect()
    }

    /// The place in a partition, while it is ours since then.
    pub(super) fn place(&mut self, partition: i32, epoch: u64) -> Option<&mut Place> {
        let ours = self.ours.get_mut(&partition).filter(|ours| ours.epoch == epoch)?;
        ours.place.as_mut()
    }
}

impl ClientContext for Assigned {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.ids.heard(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.hear(&error, reason);
    }
}

impl ConsumerContext for Assigned {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            end_pauses(consumer, list);
        }
        let mut inner = self.lock();
        match rebalance {
            Rebalance::Assign(list) => {
                inner.joining = None;
                for element in list.elements() {
                    inner.epochs += 1;
                    let partition = Partition::new(inner.epochs);
                    inner.ours.insert(element.partition(), partition);
                }
            }
            Rebalance::Revoke(list) => {
                inner.joining = Some(Instant::now());
                for element in list.elements() {
                    inner.ours.remove(&element.partition());
                }
            }
            Rebalance::Error(error) => tracing::warn!(%error, "a rebalance failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_is_not_paused() {
        let mut all = Partitions::default();
        for number in 0..2 {
            all.ours.insert(number, Partition::new(0));
        }
        all.ours.get_mut(&0).unwrap().is_fetched = true;
        assert_eq!(all.turned(true), [0]);
        all.ours.get_mut(&1).unwrap().is_fetched = true;
        assert_eq!(all.turned(true), [1], "told once");
        // The client knows of no other topic.
        all.renew("one", 1);
        assert_eq!(all.turned(false), [0, 1]);
        assert!(all.turned(false).is_empty());
    }

    #[test]
    fn g1_what_was_read_of_a_topic_that_is_gone_is_of_another_assignment() {
        let mut all = Partitions::default();
        all.ours.insert(0, Partition::new(0));
        let place = Place { again_until: 0, yielded: 5, committed: 5, confirmed: 5 };
        let read = |all: &mut Partitions| {
            let partition = all.ours.get_mut(&0).unwrap();
            (partition.place, partition.topic) = (Some(place), Some("two".to_owned()));
        };
        read(&mut all);
        all.renew("two", 0);
        assert!(all.place(0, 0).is_some());
        // To the one that is gone, and back.
        for turns in [1, 2] {
            all.renew("two", turns);
            assert!(all.place(0, turns - 1).is_none() && all.fresh() == [0]);
            assert!(all.ours[&0].is_anew);
        }
        read(&mut all);
        assert!(all.place(0, 2).is_some());
        all.renew("three", 2);
        assert!(all.place(0, 2).is_none() && all.ours[&0].is_anew);
    }
}
