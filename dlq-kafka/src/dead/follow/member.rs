//! The consumer that follows, on a thread of its own: it polls, commits and leaves, and every one of these may block.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use dlq_core::{StoreError, StoreErrorKind};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use tokio::sync::oneshot;

use super::READING;
use super::assigned::Assigned;
use super::blocked::Blocked;
use super::mark;
use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_refusal};
use crate::client::reach::{self, Heard, Yields};
use crate::client::record::Record;
use crate::consumer::blocked::is_of_records;

/// For how long one poll waits.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// After so long without a request partitions are paused, and polled only so that the group goes on.
const IDLE: Duration = Duration::from_secs(1);
/// Shortest and longest interval at which a log that ends is checked for more.
const LOOK: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// For how long a topic may be missing that is being made anew, or of which a broker has not heard yet.
const MISSING: Duration = Duration::from_secs(60);
/// Maximum number of bytes of payload that are yielded at once, except for the last one.
const BYTES: usize = 16 * 1024 * 1024;

/// Request to the thread.
pub(super) enum Command {
    Next { limit: usize, ends: bool, reply: Reply<Vec<Taken>> },
    Confirm { done: Vec<Done>, reply: Reply<()> },
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

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

/// Position up to which a partition has been processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) partition: i32,
    pub(super) epoch: u64,
    pub(super) next: i64,
    pub(super) letters: u64,
}

pub(super) struct Member {
    pub(super) consumer: BaseConsumer<Assigned>,
    /// Another by which the group is asked how far it is. What this one asks waits for as long as it is joining.
    pub(super) aside: OnceCell<BaseConsumer<Heard>>,
    pub(super) group: String,
    pub(super) brokers: Brokers,
    pub(super) topic: Arc<str>,
    pub(super) store: String,
    /// Polled while nobody asked.
    pub(super) held: VecDeque<(Record, u64)>,
    pub(super) look: (Instant, Duration),
    /// Time since when the topic has been missing, and time of the last check.
    pub(super) missing: Option<(Instant, Instant)>,
    pub(super) blocked: Blocked,
    /// For how long a process serves the group while it asks for nothing.
    pub(super) lease: Duration,
}

impl Member {
    /// Does what is asked until nobody asks any more, or there is no more; then leaves the group.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        let (mut wanted, mut asked) = (None, Instant::now());
        loop {
            // The thread waits in `poll` while it has a request, and for a request otherwise.
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
                    let confirmed = self.confirm(&done).map_err(|error| self.waits_for(error));
                    let _ = reply.send(confirmed);
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
            let next = self.next(limit, ends);
            match next.map(|answer| answer.map_err(|error| self.waits_for(error))) {
                Some(answer) => {
                    let is_end = answer.as_ref().is_ok_and(Vec::is_empty);
                    // The group is left before the answer: whoever hears of the end may end the process.
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

    /// Returns the available letters; `None` if there is nothing yet.
    fn next(&mut self, limit: usize, ends: bool) -> Option<Result<Vec<Taken>, StoreError>> {
        if let Err(error) = self.look_for_topic().and_then(|()| self.prepare()) {
            return Some(Err(error));
        }
        // Resumed with each request, since the thread pauses the partitions whenever nobody has asked for a while.
        self.pause(false);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < limit && bytes < BYTES {
            let (record, epoch) = match self.held.pop_front() {
                Some(held) => held,
                None => {
                    let patience = if taken.is_empty() { POLL } else { Duration::ZERO };
                    match self.poll(patience) {
                        Ok(Some(polled)) => polled,
                        // A poll that served a rebalance gives no record.
                        // `prepare` then runs before the first record of a new partition.
                        Ok(None) => break,
                        Err(error) if taken.is_empty() => return Some(Err(error)),
                        Err(error) => {
                            // What was taken goes out first, and the error would be forgotten otherwise.
                            self.note(&error);
                            break;
                        }
                    }
                }
            };
            let partition = i32::try_from(record.partition).unwrap_or(-1);
            let mut ours = self.consumer.context().lock();
            // What came with an earlier assignment comes again.
            let Some(place) = ours.place(partition, epoch) else { continue };
            let offset = i64::try_from(record.offset).unwrap_or(i64::MAX);
            // This is noted before anybody takes it.
            // An answer that is lost keeps `yielded` ahead of `committed`, and `leave` then says nothing.
            place.yielded = offset.saturating_add(1);
            let again = offset < place.again_until;
            bytes += record.value.as_ref().map_or(0, |value| value.len());
            taken.push(Taken { record, epoch, again });
        }
        if !taken.is_empty() {
            return Some(Ok(taken));
        }
        if let Some(fatal) = self.fatal(READING) {
            return Some(Err(fatal));
        }
        if self.consumer.context().lock().is_kept_waiting() {
            tracing::warn!(
                group = self.group,
                "the group waits for a process that does not answer; what that has in flight comes when its lease has ended"
            );
        }
        if !ends {
            return self.tell_blocked().err().map(|error| Err(error.for_store(READING)));
        }
        if self.look.0.elapsed() < self.look.1 {
            return None;
        }
        // A look asks the brokers about every partition, so it comes less often while nothing changes.
        self.look = (Instant::now(), (self.look.1 * 2).min(LOOK[1]));
        match self.is_at_end() {
            Ok(true) => Some(Ok(Vec::new())),
            Ok(false) => None,
            Err(error) => Some(Err(error.for_store(READING))),
        }
    }

    /// Returns the reason if the client will never read again. The client reports that only once.
    fn fatal(&self, operation: &'static str) -> Option<StoreError> {
        let (code, why) = self.consumer.client().fatal_error()?;
        let (kind, text) = if code == RDKafkaErrorCode::FencedInstanceId {
            let text = "another process has joined the group with the same `group.instance.id`; give each one of its own";
            (StoreErrorKind::InvalidConfig, text)
        } else {
            (StoreErrorKind::Unexpected, "the client cannot go on; follow the log again")
        };
        Some(StoreError::new(kind, operation).with_detail(format!("{text} ({why})")))
    }

    /// Makes the error of a missing topic transient, unless it has been missing for long.
    fn waits_for(&mut self, error: StoreError) -> StoreError {
        if let Some(fatal) = self.fatal(error.operation()) {
            return fatal;
        }
        if error.kind() != StoreErrorKind::NotFound {
            return error;
        }
        let (since, _) = *self.missing.get_or_insert_with(|| (Instant::now(), Instant::now()));
        if since.elapsed() >= MISSING {
            return error;
        }
        let text = format!("topic `{}` is missing, and waited for", self.topic);
        let waits = StoreError::new(StoreErrorKind::Unavailable, error.operation());
        waits.with_detail(text).with_source(error)
    }

    /// Checks whether a missing topic is back. The client reports its return only once.
    fn look_for_topic(&mut self) -> Result<(), StoreError> {
        let Some((_, looked)) = &mut self.missing else { return Ok(()) };
        if looked.elapsed() < LOOK[1] {
            return Ok(());
        }
        *looked = Instant::now();
        let heard = &self.consumer.context().heard;
        let (brokers, topic) = (&self.brokers, &self.topic);
        let found = reach::partitions(&self.consumer, heard, brokers, topic, Yields::Records);
        let Err(error) = found else {
            self.missing = None;
            return Ok(());
        };
        let error = error.for_store(READING);
        if error.kind() != StoreErrorKind::NotFound {
            // Nobody knows whether it has been missing meanwhile.
            self.missing = Some((Instant::now(), Instant::now()));
        }
        Err(error)
    }

    /// The client says only once that a topic is missing, whoever polls it then.
    fn note(&mut self, error: &StoreError) {
        if error.kind() == StoreErrorKind::NotFound {
            self.missing.get_or_insert_with(|| (Instant::now(), Instant::now()));
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
                // Nothing comes by itself after these, and an operator has to act. Everything else the client gets over.
                if is_gone || code.is_some_and(is_refusal) {
                    return Err(self.failed("read", error).for_store(READING));
                }
                if code.is_some_and(is_of_records) {
                    self.blocked.heard();
                } else {
                    tracing::warn!(%error, topic = &*self.topic, "the client goes on trying");
                }
                Ok(None)
            }
        }
    }

    fn of(&self, message: &BorrowedMessage<'_>) -> Option<(Record, u64)> {
        let mut inner = self.consumer.context().lock();
        let ours = inner.ours.get_mut(&message.partition())?;
        ours.is_fetched = true;
        Some((Record::of(message, Arc::clone(&self.topic)), ours.epoch))
    }

    /// Stays a member of the group while nobody asks for letters.
    fn idle(&mut self) {
        self.pause(true);
        self.hold();
    }

    /// Serves the group; what comes is kept.
    pub(super) fn hold(&mut self) {
        // It takes a few at a time, since the next request waits for this.
        for _ in 0..16 {
            match self.poll(Duration::ZERO) {
                Ok(Some(polled)) => self.held.push_back(polled),
                Ok(None) => break,
                Err(error) => {
                    self.note(&error);
                    break;
                }
            }
        }
    }

    fn pause(&self, is_paused: bool) {
        let turned = self.consumer.context().lock().turned(is_paused);
        if turned.is_empty() {
            return;
        }
        let list = mark::all(&self.topic, &turned);
        let told = if is_paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) };
        if let Err(error) = told {
            tracing::debug!(%error, "partitions cannot be paused or resumed");
        }
    }

    pub(super) fn failed(&self, what: &str, error: KafkaError) -> SetupError {
        let what = format!("{what} of topic `{}` at {}", self.topic, self.brokers.bootstrap());
        SetupError::answered(&what, error)
    }
}
