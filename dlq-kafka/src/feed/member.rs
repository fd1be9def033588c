//! The consumer of a feed, on a thread of its own: it polls, commits and leaves, and every one of these may block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::oneshot;

use super::READING;
use super::assigned::{Assigned, Place};
use super::mark::{self, Mark};
use super::reach::{self, PATIENCE};
use crate::brokers::Brokers;
use crate::error::{SetupError, is_refusal};
use crate::record::Record;

/// For how long one poll waits.
const POLL: Duration = Duration::from_millis(100);
/// After so long without a request partitions are paused, and polled only so that the group goes on.
const IDLE: Duration = Duration::from_secs(1);
/// How soon, and at last how seldom, a feed that ends looks whether there is more.
const LOOK: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// How many bytes of payload are yielded at once, at most, but for the last of them.
const BYTES: usize = 16 * 1024 * 1024;

/// What is asked of the thread.
pub(super) enum Command {
    Next { limit: usize, ends: bool, reply: Answer<Vec<Taken>> },
    Confirm { done: Vec<Done>, reply: Answer<()> },
}

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A record that was yielded.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) record: Record,
    pub(super) epoch: u64,
    pub(super) again: bool,
}

impl Taken {
    pub(super) fn partition(&self) -> i32 {
        i32::try_from(self.record.partition).unwrap_or(-1)
    }

    /// The offset after it.
    pub(super) fn next(&self) -> i64 {
        i64::try_from(self.record.offset).unwrap_or(i64::MAX).saturating_add(1)
    }
}

/// Up to where a partition is done with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) partition: i32,
    pub(super) epoch: u64,
    pub(super) next: i64,
    pub(super) letters: u64,
}

pub(super) struct Member {
    pub(super) consumer: BaseConsumer<Assigned>,
    pub(super) brokers: Brokers,
    pub(super) topic: Arc<str>,
    pub(super) store: String,
    /// Polled while nobody asked.
    pub(super) held: VecDeque<(Record, u64)>,
    pub(super) paused: bool,
    pub(super) look: (Instant, Duration),
    /// For how long a process serves the group while it asks for nothing.
    pub(super) lease: Duration,
}

impl Member {
    /// Does what is asked until nobody asks any more, or there is no more; then leaves the group.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        let (mut wanted, mut asked) = (None, Instant::now());
        loop {
            let command = if wanted.is_some() {
                commands.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                })
            } else {
                commands.recv_timeout(IDLE)
            };
            if command.is_ok() {
                asked = Instant::now();
            }
            match command {
                Ok(Command::Next { limit, ends, reply }) => {
                    self.look = (Instant::now(), LOOK[0]);
                    wanted = Some((limit, ends, reply));
                }
                Ok(Command::Confirm { done, reply }) => {
                    let _ = reply.send(self.confirm(&done));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                // A process that hangs for longer is put out of the group, by not polling any more.
                Err(RecvTimeoutError::Timeout)
                    if wanted.is_none() && asked.elapsed() < self.lease.max(IDLE * 2) =>
                {
                    self.idle();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let Some((limit, ends, reply)) = wanted.take() else { continue };
            match self.next(limit, ends) {
                Some(answer) => {
                    let is_end = answer.as_ref().is_ok_and(Vec::is_empty);
                    if is_end {
                        self.leave();
                    }
                    // Where nobody waits for it any more, nobody confirms it.
                    let _ = reply.send(answer);
                    if is_end {
                        return;
                    }
                }
                None => wanted = Some((limit, ends, reply)),
            }
        }
        self.leave();
    }

    /// What there is; `None` when there is nothing yet.
    fn next(&mut self, limit: usize, ends: bool) -> Option<Result<Vec<Taken>, StoreError>> {
        if let Err(error) = self.prepare() {
            return Some(Err(error));
        }
        if self.paused {
            self.paused = false;
            self.each_of_ours(|consumer, list| consumer.resume(list));
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < limit && bytes < BYTES {
            let (record, epoch) = match self.held.pop_front() {
                Some(held) => held,
                None => {
                    let patience = if taken.is_empty() { POLL } else { Duration::ZERO };
                    match self.poll(patience) {
                        Ok(Some(polled)) => polled,
                        Ok(None) => break,
                        Err(error) if taken.is_empty() => return Some(Err(error)),
                        // It is told again.
                        Err(_) => break,
                    }
                }
            };
            let partition = i32::try_from(record.partition).unwrap_or(-1);
            let mut ours = self.consumer.context().lock();
            // What came with an earlier assignment comes again.
            let Some(place) = ours.place(partition, epoch) else { continue };
            let offset = i64::try_from(record.offset).unwrap_or(i64::MAX);
            place.yielded = offset.saturating_add(1);
            let again = offset < place.again_until;
            bytes += record.value.as_ref().map_or(0, |value| value.len());
            taken.push(Taken { record, epoch, again });
        }
        if !taken.is_empty() {
            return Some(Ok(taken));
        }
        if !ends || self.look.0.elapsed() < self.look.1 {
            return None;
        }
        self.look = (Instant::now(), (self.look.1 * 2).min(LOOK[1]));
        match self.is_at_end() {
            Ok(true) => Some(Ok(Vec::new())),
            Ok(false) => None,
            Err(error) => Some(Err(error.for_store(READING))),
        }
    }

    /// A record of a partition of ours. Assignments change here.
    fn poll(&self, patience: Duration) -> Result<Option<(Record, u64)>, StoreError> {
        match self.consumer.poll(patience) {
            None => Ok(None),
            Some(Ok(message)) => Ok(self.of(&message)),
            Some(Err(error)) => {
                let code = error.rdkafka_error_code();
                let is_gone = matches!(
                    code,
                    Some(
                        RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic
                    )
                );
                let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
                if is_gone || is_fatal || code.is_some_and(is_refusal) {
                    return Err(self.failed("read", error).for_store(READING));
                }
                tracing::warn!(%error, topic = &*self.topic, "the client goes on trying");
                Ok(None)
            }
        }
    }

    fn of(&self, message: &BorrowedMessage<'_>) -> Option<(Record, u64)> {
        let epoch = self.consumer.context().lock().ours.get(&message.partition())?.epoch;
        Some((Record::of(message, Arc::clone(&self.topic)), epoch))
    }

    /// Reads the commits of partitions that came to us, and says there that they are being read.
    fn prepare(&self) -> Result<(), StoreError> {
        let fresh = self.consumer.context().lock().fresh();
        if fresh.is_empty() {
            return Ok(());
        }
        let asked = |error| self.failed("read the offsets", error).for_store(READING);
        let list = mark::all(&self.topic, &fresh);
        let committed = self.consumer.committed_offsets(list, PATIENCE).map_err(asked)?;
        let mut places = Vec::new();
        let mut begun = TopicPartitionList::new();
        for element in committed.elements() {
            element.error().map_err(asked)?;
            let (partition, committed) = (element.partition(), mark::offset(&element));
            let mark = Mark::read(&element);
            if let Some(mark) = mark.as_ref().filter(|mark| mark.store != self.store) {
                return Err(StoreError::new(StoreErrorKind::Conflict, READING).with_detail(
                    format!(
                        "the letters of `{}` go into {}, and {} was begun at the same time; use one store, or a group for \
                         each",
                        self.topic, mark.store, self.store
                    ),
                ));
            }
            let is_clean = committed.is_none() || mark.as_ref().is_some_and(|mark| mark.clean);
            let (low, high) = if is_clean && committed.is_some() {
                (0, 0)
            } else {
                self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE).map_err(asked)?
            };
            let place = Place {
                again_until: if is_clean { i64::MIN } else { high },
                yielded: committed.unwrap_or(low),
                committed: committed.unwrap_or(low),
                confirmed: mark.as_ref().map_or(0, |mark| mark.confirmed),
            };
            if is_clean || mark.is_none() {
                self.mark(&mut begun, partition, &place, place.committed, false).map_err(asked)?;
            }
            places.push((partition, place));
        }
        if begun.count() > 0 {
            self.consumer.commit(&begun, CommitMode::Sync).map_err(asked)?;
        }
        // One that was paused in an earlier assignment would stay so.
        let list = mark::all(&self.topic, &fresh);
        if let Err(error) = self.consumer.resume(&list) {
            tracing::debug!(%error, "partitions cannot be resumed");
        }
        let mut ours = self.consumer.context().lock();
        for (partition, place) in places {
            if let Some(partition) = ours.ours.get_mut(&partition) {
                partition.place = Some(place);
            }
        }
        Ok(())
    }

    fn mark(
        &self,
        list: &mut TopicPartitionList,
        partition: i32,
        place: &Place,
        offset: i64,
        clean: bool,
    ) -> Result<(), KafkaError> {
        let mark = Mark { store: self.store.clone(), confirmed: place.confirmed, clean };
        mark.write(list, &self.topic, partition, offset)
    }

    /// Commits what is done with, of partitions that are still ours.
    fn confirm(&mut self, done: &[Done]) -> Result<(), StoreError> {
        const CONFIRMING: &str = "confirm dead letters";
        let mut list = TopicPartitionList::new();
        let mut places = Vec::new();
        for one in done {
            let place = self.consumer.context().lock().place(one.partition, one.epoch).copied();
            let Some(mut place) = place else { continue };
            place.committed = one.next;
            place.confirmed += one.letters;
            self.mark(&mut list, one.partition, &place, one.next, false)
                .map_err(|error| self.failed("commit", error).for_store(CONFIRMING))?;
            places.push((one, place));
        }
        if places.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Sync) {
            // A group that is being shared anew goes on only when it is polled.
            self.hold();
            let failed = self.failed("commit", error).for_store(CONFIRMING);
            return Err(failed);
        }
        let mut ours = self.consumer.context().lock();
        for (one, place) in places {
            if let Some(there) = ours.place(one.partition, one.epoch) {
                (there.committed, there.confirmed) = (place.committed, place.confirmed);
            }
        }
        Ok(())
    }

    /// Stays a member of the group while nobody asks for letters.
    fn idle(&mut self) {
        self.paused = true;
        self.each_of_ours(|consumer, list| consumer.pause(list));
        self.hold();
    }

    /// Serves the group; what comes is kept.
    fn hold(&mut self) {
        for _ in 0..16 {
            match self.poll(Duration::ZERO) {
                Ok(Some(polled)) => self.held.push_back(polled),
                // What cannot be is told to who asks next.
                Ok(None) | Err(_) => break,
            }
        }
    }

    fn each_of_ours(
        &self,
        act: impl Fn(&BaseConsumer<Assigned>, &TopicPartitionList) -> Result<(), KafkaError>,
    ) {
        let ours: Vec<i32> = self.consumer.context().lock().ours.keys().copied().collect();
        if let Err(error) = act(&self.consumer, &mark::all(&self.topic, &ours)) {
            tracing::debug!(%error, "partitions cannot be paused or resumed");
        }
    }

    /// Whether the group has confirmed every letter of the topic.
    fn is_at_end(&self) -> Result<bool, SetupError> {
        let failed = |error| self.failed("look for the end", error);
        let heard = &self.consumer.context().heard;
        let bootstrap = self.brokers.bootstrap();
        let partitions = reach::partitions(&self.consumer, heard, bootstrap, &self.topic)?;
        let list = mark::all(&self.topic, &partitions);
        let committed = self.consumer.committed_offsets(list, PATIENCE).map_err(failed)?;
        for element in committed.elements() {
            element.error().map_err(failed)?;
            let partition = element.partition();
            let ends = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
            let (low, high) = ends.map_err(failed)?;
            let next = mark::offset(&element).unwrap_or(low).max(low);
            if next < high && self.has_record(partition, next, high).map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a record stands there: the marks of transactions, and what was aborted, are none.
    fn has_record(&self, partition: i32, from: i64, to: i64) -> Result<bool, KafkaError> {
        let fixed = [("enable.partition.eof", "true"), ("group.id", "dlq-look")];
        let config = self.brokers.client(&super::DEFAULTS, &[&super::FIXED[..], &fixed].concat());
        let config = config.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        let consumer: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        let from = rdkafka::Offset::Offset(from);
        list.add_partition_offset(&self.topic, partition, from)?;
        consumer.assign(&list)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match consumer.poll(POLL) {
                Some(Ok(message)) => return Ok(message.offset() < to),
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(false),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        Ok(true)
    }

    /// Says that what was confirmed is all that was read, and leaves the group by the drop that follows.
    fn leave(&self) {
        let mut list = TopicPartitionList::new();
        for (partition, ours) in &self.consumer.context().lock().ours {
            let Some(place) = ours.place.filter(|place| place.yielded == place.committed) else {
                continue;
            };
            if let Err(error) = self.mark(&mut list, *partition, &place, place.committed, true) {
                tracing::debug!(%error, "a partition is left without a word");
            }
        }
        if list.count() == 0 {
            return;
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Sync) {
            tracing::debug!(%error, "the group is left without a word");
        }
    }

    fn failed(&self, what: &str, error: KafkaError) -> SetupError {
        let what = format!("{what} of topic `{}` at {}", self.topic, self.brokers.bootstrap());
        SetupError::answered(&what, error)
    }
}
