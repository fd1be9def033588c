//! State that the polling thread, the source and the settle handles share.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dlq_core::{Delivery, LetterId, Origin, TransportError};
use rdkafka::consumer::BaseConsumer;
use tokio::sync::Notify;

use crate::client::lock;
use crate::client::record::Record;
use crate::consumer::commits::Commits;
use crate::consumer::partition::Partition;
use crate::consumer::piece::Piece;
use crate::consumer::rebalance::Hooks;
use crate::consumer::tracker::Sequence;

/// Interval of reports about an outage.
const OUTAGE: Duration = Duration::from_secs(10);

/// A record that the source takes.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) record: Record,
    pub(crate) origin: Origin,
    pub(crate) place: DeliveryPosition,
    pub(crate) deaths: u32,
}

/// Position of a delivery in its partition.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryPosition {
    pub(crate) partition: Arc<Partition>,
    pub(crate) sequence: Sequence,
    pub(crate) offset: u64,
}

/// A delivery that was given back, and when it may come again.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) delivery: Delivery,
    pub(crate) place: DeliveryPosition,
    pub(crate) due: Instant,
    pub(crate) line: Option<Line>,
}

/// The records of a partition of which one at a time is in flight: all of it, or those of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) key: u64,
}

/// Phase of closing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    #[default]
    Running,
    /// Nothing is fetched; the group is left when nothing is in flight.
    Closing,
    /// The source is gone: the group is left at once.
    Abandoned,
    /// The group was left, or the thread has ended.
    Left,
}

/// Queue from which the source takes records.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) fetched: VecDeque<Piece>,
    /// Number of records in the queue.
    pub(crate) records: usize,
    pub(crate) returned: Vec<Returned>,
    /// Lines whose first record is done.
    pub(crate) released: Vec<Line>,
    /// Error about records that cannot be read while the rest can.
    pub(crate) blocked: Option<TransportError>,
    /// Last error, as long as it lasts.
    pub(crate) error: Option<TransportError>,
    /// When that was, while nothing has come since.
    failed: Option<Instant>,
    /// Partitions were given up, of which something may wait.
    pub(crate) has_lost: bool,
    pub(crate) phase: Phase,
}

impl Queue {
    /// The client tells of an outage again and again, and whoever hears of it waits longer each time before he asks again:
    /// it is told so rarely that he is there when records come.
    fn fail(&mut self, error: TransportError) {
        let is_told = self.failed.is_some_and(|at| at.elapsed() < OUTAGE);
        // An error that is final is not covered by one that passes.
        let is_over = self.error.as_ref().is_some_and(|error| !error.is_transient());
        if is_over || (is_told && error.is_transient()) {
            return;
        }
        (self.error, self.failed) = (Some(error), Some(Instant::now()));
    }

    /// Records were fetched.
    pub(crate) fn received(&mut self, pieces: impl Iterator<Item = Piece>) {
        self.fetched.extend(pieces.inspect(|piece| self.records += piece.len()));
        self.error.take_if(|error| error.is_transient());
        self.failed = None;
    }
}

/// Partitions by topic and number.
type Partitions = HashMap<Arc<str>, HashMap<i32, Arc<Partition>>>;

#[derive(Debug)]
pub(crate) struct SourceState {
    /// Number by which later owners of our partitions know us.
    pub(crate) owner: u64,
    queue: Mutex<Queue>,
    /// There is something in the queue.
    pub(crate) arrived: Notify,
    /// There is room in the queue, or nothing is in flight of a partition that goes, or the end has come closer.
    pub(crate) moved: Condvar,
    /// The thread has ended.
    left: Notify,
    pub(crate) partitions: Mutex<Partitions>,
    /// Suspects in flight, whose runs are marked.
    suspects: Mutex<HashMap<LetterId, DeliveryPosition>>,
    pub(crate) consumer: Mutex<Weak<BaseConsumer<Hooks>>>,
    pub(crate) commits: Arc<Commits>,
    in_flight: AtomicUsize,
    /// A record is not handed out before something is committed.
    pub(crate) is_awaited: AtomicBool,
}

impl SourceState {
    pub(crate) fn new() -> Self {
        Self {
            // The number is random: an owner that finds its own number takes the death of a process for its own return.
            owner: RandomState::new().hash_one(()),
            queue: Mutex::default(),
            arrived: Notify::new(),
            moved: Condvar::new(),
            left: Notify::new(),
            partitions: Mutex::default(),
            suspects: Mutex::default(),
            consumer: Mutex::new(Weak::new()),
            commits: Arc::default(),
            in_flight: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.queue().phase
    }

    /// The end comes closer; it never goes back.
    pub(crate) fn advance(&self, phase: Phase) {
        let mut queue = self.queue();
        if queue.phase < phase {
            queue.phase = phase;
        }
        drop(queue);
        self.moved.notify_all();
        self.arrived.notify_one();
        if phase == Phase::Left {
            self.left.notify_waiters();
        }
    }

    /// Waits until the group was left.
    pub(crate) async fn until_left(&self) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            // `notify_waiters` wakes only those that are registered, so this one is before it looks.
            left.as_mut().enable();
            if self.phase() == Phase::Left {
                return;
            }
            left.await;
        }
    }

    /// Waits until something moves, at most for so long.
    pub(crate) fn wait<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        most: Duration,
    ) -> MutexGuard<'a, Queue> {
        let waited = self.moved.wait_timeout(queue, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn fail(&self, error: TransportError) {
        self.queue().fail(error);
        self.arrived.notify_one();
    }

    pub(crate) fn all(&self) -> Vec<Arc<Partition>> {
        lock(&self.partitions).values().flat_map(HashMap::values).cloned().collect()
    }

    pub(crate) fn find(&self, topic: &str, number: i32) -> Option<Arc<Partition>> {
        lock(&self.partitions).get(topic)?.get(&number).cloned()
    }

    /// A delivery goes out, unless its partition goes: whoever gives that up waits for what has gone out before.
    #[must_use]
    pub(crate) fn yielded(&self, place: &DeliveryPosition) -> bool {
        // The delivery is counted before the look at `is_leaving`.
        // A partition goes in the other order, so one side sees the other.
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        place.partition.taken();
        let is_ours = !place.partition.is_leaving();
        if !is_ours {
            self.came_back(place);
        }
        is_ours
    }

    /// It has come back.
    pub(crate) fn came_back(&self, place: &DeliveryPosition) {
        let last_here = place.partition.given();
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if last_here && place.partition.is_leaving() {
            // Whoever waits holds this lock while it looks, and would miss the word otherwise.
            drop(self.queue());
            self.moved.notify_all();
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// A record waits for the next commit, which is made soon.
    pub(crate) fn awaits_commit(&self) {
        self.is_awaited.store(true, Ordering::Release);
    }

    pub(crate) fn give_back(&self, returned: Returned) {
        self.queue().returned.push(returned);
        self.arrived.notify_one();
    }

    pub(crate) fn release(&self, line: Line) {
        self.queue().released.push(line);
        self.arrived.notify_one();
    }

    /// Notes the ids under which the record at `place` may be looked up as a suspect.
    pub(crate) fn suspect(&self, letters: &[LetterId], place: &DeliveryPosition) {
        if !letters.is_empty() {
            lock(&self.suspects).extend(letters.iter().map(|letter| (*letter, place.clone())));
        }
    }

    pub(crate) fn suspected(&self, letter: LetterId) -> Option<DeliveryPosition> {
        lock(&self.suspects).get(&letter).cloned()
    }

    /// Another delivery of the same letter may be in flight, of a later assignment.
    pub(crate) fn cleared(&self, letters: &[LetterId], place: &DeliveryPosition) {
        if letters.is_empty() {
            return;
        }
        let mut suspects = lock(&self.suspects);
        for letter in letters {
            let now = suspects.get(letter);
            if now.is_some_and(|now| Arc::ptr_eq(&now.partition, &place.partition)) {
                suspects.remove(letter);
            }
        }
    }

    /// Partitions were given up.
    pub(crate) fn lost(&self) {
        self.queue().has_lost = true;
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::TransportErrorKind::{Unavailable, Unexpected};

    use super::*;

    #[test]
    fn an_outage_is_told_once_and_not_after_its_end() {
        let mut queue = Queue::default();
        let error = |kind| TransportError::new(kind, "fetch records");
        queue.fail(error(Unavailable));
        assert!(queue.error.take().is_some());
        queue.fail(error(Unavailable));
        assert!(queue.error.is_none(), "it was told");
        queue.received(std::iter::empty());
        queue.fail(error(Unavailable));
        queue.received(std::iter::empty());
        assert!(queue.error.is_none(), "records have come");
        queue.fail(error(Unexpected));
        queue.received(std::iter::empty());
        queue.fail(error(Unavailable));
        assert!(queue.error.is_some_and(|error| !error.is_transient()), "it is over");
    }
}
