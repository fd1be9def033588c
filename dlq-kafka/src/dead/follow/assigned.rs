//! Assigned partitions, and the position up to which each was read.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;

use crate::client::log;
use crate::client::reach::Heard;
use crate::consumer::rebalance::end_pauses;

/// Time for joining a group whose members are all there, and a little more.
const JOINING: Duration = Duration::from_secs(8);

/// The context of the consumer that follows: hears of assignments, on the thread that polls.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) heard: Heard,
    inner: Mutex<Partitions>,
}

#[derive(Debug, Default)]
pub(super) struct Partitions {
    pub(super) ours: BTreeMap<i32, Partition>,
    epochs: u64,
    /// Time since the group has assigned nothing, until it was reported.
    joining: Option<Instant>,
}

/// A partition while it is ours.
#[derive(Debug)]
pub(super) struct Partition {
    /// Number of this assignment. Letters that were read in an earlier one are not committed any more.
    pub(super) epoch: u64,
    /// Once its commit was read.
    pub(super) place: Option<ReadPosition>,
    /// True if the client fetches the partition, because a record of it has come.
    pub(super) is_fetched: bool,
    /// True if the client has paused the partition, because nobody asks for records.
    is_paused: bool,
}

/// Read position of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPosition {
    /// Before this offset others may have read what was not confirmed.
    pub(super) again_until: i64,
    /// After what was yielded.
    pub(super) yielded: i64,
    /// Committed offset.
    pub(super) committed: i64,
    /// Number of letters that were ever confirmed.
    pub(super) confirmed: u64,
}

impl Partition {
    fn new(epoch: u64) -> Self {
        let (is_fetched, is_paused) = (false, false);
        Self { epoch, place: None, is_fetched, is_paused }
    }
}

impl Assigned {
    pub(super) fn new() -> Self {
        let partitions = Partitions { joining: Some(Instant::now()), ..Partitions::default() };
        Self { heard: Heard::default(), inner: Mutex::new(partitions) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Partitions> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partitions {
    /// Returns true, once, if another member keeps the group from being shared.
    pub(super) fn is_kept_waiting(&mut self) -> bool {
        // Taken, so that it is told once and not in every look.
        self.joining.take_if(|since| since.elapsed() >= JOINING).is_some()
    }

    /// Returns the partitions whose commit was not read yet.
    pub(super) fn fresh(&self) -> Vec<i32> {
        let fresh = self.ours.iter().filter(|(_, partition)| partition.place.is_none());
        fresh.map(|(partition, _)| *partition).collect()
    }

    /// Returns the partitions to pause or to resume, and marks them so. A pause may be lost while the client begins to
    /// fetch a partition, so a partition is not paused before its first record.
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
    pub(super) fn place(&mut self, partition: i32, epoch: u64) -> Option<&mut ReadPosition> {
        let ours = self.ours.get_mut(&partition).filter(|ours| ours.epoch == epoch)?;
        ours.place.as_mut()
    }
}

impl ClientContext for Assigned {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
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
                    // Each assignment has a number of its own. What an earlier one has yielded is confirmed to nobody (see
                    // `place`).
                    let partition = Partition::new(inner.epochs);
                    inner.ours.insert(element.partition(), partition);
                }
            }
            Rebalance::Revoke(list) => {
                inner.joining = Some(Instant::now());
                for element in list.elements() {
                    // Nothing is committed here: what is in flight comes again to the next owner, which finds no clean mark.
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
        assert_eq!(all.turned(false), [0, 1]);
        assert!(all.turned(false).is_empty());
    }
}
