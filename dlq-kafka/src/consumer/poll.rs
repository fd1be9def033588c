//! The thread that polls: the one place where the client is asked for records, and where it is closed.
//!
//! It never stops polling, so that the group sees a process that lives however long its handlers take; when nobody takes
//! what it fetched, it pauses the partitions. Pausing is flow control only: what waits for its time waits in memory.

mod opening;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlq_core::{TransportError, TransportErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::client::error::is_moving;
use crate::client::topics::FoundTopic;
use crate::consumer::blocked::{Watch, is_of_a_topic};
use crate::consumer::commits::commit_news;
use crate::consumer::gauges::Gauges;
use crate::consumer::lost::{ANSWER, Lost};
use crate::consumer::partition::{Opening, Partition};
use crate::consumer::piece::Piece;
use crate::consumer::rebalance::{Hooks, give_up};
use crate::consumer::shared::{Phase, SourceState};
use crate::consumer::transport::Start;

/// Time for which the thread waits for the client when there is nothing.
const WAIT: Duration = Duration::from_millis(20);
/// Number of records that are handed over at once.
const BATCH: usize = 256;
/// Time without a call by the source after which partitions are paused. Meanwhile no rebalance is noticed.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time limit for asking the group for its offsets.
const ASKING: Duration = Duration::from_secs(5);

/// Interval of checks of partitions in which everything is done, for a new end.
const PASSING: Duration = Duration::from_secs(1);

/// Bounds of what is in memory and in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Records that were fetched and not taken by the source.
    pub(crate) prefetch: usize,
    /// Largest distance within a partition, from the lowest offset that is not done.
    pub(crate) span: u64,
    /// Records that wait for their time, of all partitions.
    pub(crate) waiting: usize,
    /// The same in bytes.
    pub(crate) waiting_bytes: usize,
    pub(crate) commit: Duration,
}

pub(crate) struct Poller {
    pub(crate) consumer: Arc<BaseConsumer<Hooks>>,
    pub(crate) shared: Arc<SourceState>,
    pub(crate) bounds: Bounds,
    start: Start,
    /// The topics as they were when the source was opened.
    topics: Vec<FoundTopic>,
    /// Pieces of partitions that are not open yet.
    early: VecDeque<Piece>,
    batch: Vec<Piece>,
    last: Option<Arc<Partition>>,
    /// Last piece of the partition.
    piece: Option<Piece>,
    /// Size of the piece before.
    like: (usize, usize),
    /// Time since when the queue has been full.
    full: Option<Instant>,
    committed: Instant,
    /// Partitions of which something was passed over, and where the client has to go.
    seeks: Vec<(Arc<Partition>, u64)>,
    /// When new partitions could not be taken over last.
    refused: Option<Instant>,
    /// When something was left that is to be asked again of partitions of which nothing is known.
    left: Option<Instant>,
    /// Asks where new partitions end.
    latest: Option<JoinHandle<()>>,
    watch: Watch,
    gauges: Gauges,
    lost: Lost,
    /// When it was looked at last how far the client has come where nothing is left to do.
    passed: Instant,
}

impl Poller {
    pub(crate) fn new(
        consumer: Arc<BaseConsumer<Hooks>>,
        shared: Arc<SourceState>,
        bounds: Bounds,
        start: Start,
        topics: Vec<FoundTopic>,
        watch: Watch,
        gauges: Gauges,
    ) -> Self {
        Self {
            consumer,
            shared,
            bounds,
            start,
            topics,
            early: VecDeque::new(),
            batch: Vec::new(),
            last: None,
            piece: None,
            like: (0, 0),
            full: None,
            committed: Instant::now(),
            seeks: Vec::new(),
            refused: None,
            left: None,
            latest: None,
            watch,
            gauges,
            lost: Lost::new(),
            passed: Instant::now(),
        }
    }

    /// Polls until the source is closed and nothing of it is in flight, or it is gone; then leaves the group.
    pub(crate) fn run(mut self) {
        loop {
            let phase = self.shared.phase();
            if phase >= Phase::Abandoned
                || (phase == Phase::Closing && self.shared.in_flight() == 0)
            {
                break;
            }
            // No step ends the loop by an error: the group throws out a member that stops polling, and its records
            // run elsewhere.
            self.fetch(phase);
            self.take_over();
            self.skip();
            self.hand_over();
            self.commit();
            self.flow(phase);
            self.watch.watch(&self.shared);
            self.pass(phase);
            self.lost.watch(&self.consumer, &self.shared);
        }
        self.leave();
    }

    /// Takes from the client what it has.
    fn fetch(&mut self, phase: Phase) {
        // A slow source is waited for without polling at first.
        // Later `flow` pauses everything, and polling goes on for the group.
        if self.full.is_some_and(|since| since.elapsed() < PATIENCE) {
            return;
        }
        let consumer = Arc::clone(&self.consumer);
        let (mut wait, mut fetched) = (WAIT, self.early());
        // At least once, whatever waits for its partition to open: that is how the group is heard.
        loop {
            match consumer.poll(wait) {
                None => break,
                Some(Ok(message)) => self.received(&message, phase),
                Some(Err(error)) => self.failed(error),
            }
            // Only the first poll waits. What has come is handed over at once and not held back for more.
            (wait, fetched) = (Duration::ZERO, fetched + 1);
            if fetched >= BATCH {
                break;
            }
        }
        self.cut();
    }

    /// Returns the number of records that wait for their partition to open.
    fn early(&self) -> usize {
        self.early.iter().map(Piece::len).sum()
    }

    fn received(&mut self, message: &BorrowedMessage<'_>, phase: Phase) {
        // Records mostly come in runs of one partition, and the look-up takes a lock.
        let is_last = |partition: &Arc<Partition>| {
            partition.number == message.partition() && *partition.topic == *message.topic()
        };
        if !self.last.as_ref().is_some_and(is_last)
            // A rebalance happens inside `poll`, and the same partition may have come back as another assignment.
            || self.last.as_ref().is_some_and(|p| p.is_leaving())
        {
            self.cut();
            self.last = self.shared.find(message.topic(), message.partition());
            self.last.iter().for_each(|partition| partition.fetched());
        }
        // What is dropped here is not tracked, so no commit passes it and it comes again.
        if phase != Phase::Running {
            return;
        }
        if self.piece.as_ref().is_some_and(Piece::is_full) {
            self.cut();
        }
        // What comes of a partition that was revoked meanwhile is for its new owner.
        let Some(partition) = &self.last else { return };
        let new = || Piece::new(Arc::clone(partition), self.like);
        self.piece.get_or_insert_with(new).push(message);
    }

    /// Starts another piece.
    fn cut(&mut self) {
        let Some(piece) = self.piece.take() else { return };
        self.like = piece.size();
        let partition = &piece.partition;
        match partition.opening() {
            Opening::Open => self.take(piece),
            // The records wait here and not in the queue: before the commit that announces this owner nothing is handed
            // out (G3).
            Opening::Unknown | Opening::First => {
                // Without a commit the first record that came is the position to open with.
                if let Some(first) = piece.first() {
                    partition.comes(first);
                }
                self.early.push_back(piece);
            }
        }
    }

    fn take(&mut self, mut piece: Piece) {
        if self.start == Start::Latest {
            let partition = Arc::clone(&piece.partition);
            piece.retain(|offset| match partition.passes_over(offset) {
                None => true,
                Some(end) => {
                    self.seeks.extend(end.map(|end| (Arc::clone(&partition), end)));
                    false
                }
            });
        }
        if piece.len() > 0 {
            piece.receive();
        }
        if piece.len() > 0 {
            self.batch.push(piece);
        }
    }

    /// Sends the client to where the group begins. What it has read until then is passed over wherever it goes, and so it
    /// stays where it is if it is there already. Nothing that was polled is left out of this when it is asked.
    fn skip(&mut self) {
        for (partition, end) in std::mem::take(&mut self.seeks) {
            if partition.is_leaving() || !partition.is_before_end() {
                continue;
            }
            let (topic, number) = (&*partition.topic, partition.number);
            let to = Offset::Offset(i64::try_from(end).unwrap_or(i64::MAX));
            // A seek that fails costs time only: `passes_over` drops the same records one by one.
            if let Err(error) = self.consumer.seek(topic, number, to, ASKING) {
                tracing::warn!(%error, topic, "all records before the end have to be read");
            }
        }
    }

    fn failed(&mut self, error: KafkaError) {
        let code = error.rdkafka_error_code();
        let mut said = self.consumer.context().reason.of(&error);
        let kind = match (&error, code) {
            // The client reads nothing after this, so the error is none that passes.
            (KafkaError::MessageConsumptionFatal(_), _) => {
                let fatal = self.consumer.client().fatal_error();
                if let Some((RDKafkaErrorCode::FencedInstanceId, _)) = fatal {
                    said = format!(
                        "another process has joined the group with the same `group.instance.id`; \
                         give each process one of its own ({said})"
                    );
                }
                TransportErrorKind::Unexpected
            }
            (_, Some(RDKafkaErrorCode::GroupAuthorizationFailed)) => {
                // The kind is one that passes, since an operator can allow it while the client goes on asking.
                let group = &self.consumer.context().group;
                said = format!(
                    "group `{group}` may not be joined by this user; allow `Read` on it ({said})"
                );
                TransportErrorKind::Unavailable
            }
            (_, Some(code)) if is_of_a_topic(code) => return self.watch.heard(said),
            // The group has given the partitions away. The next polls join it again.
            (_, Some(RDKafkaErrorCode::PollExceeded)) => TransportErrorKind::Unavailable,
            // Nothing can be read at all, so this one is told although it passes. The consumer waits longer before it
            // asks again.
            (_, Some(RDKafkaErrorCode::AllBrokersDown)) => TransportErrorKind::Unavailable,
            (_, Some(code)) if is_passing(&error, code) => {
                return tracing::warn!(%error, "fetching records met with an error");
            }
            // The client asks again by itself; that this helps is not known.
            (_, code) => {
                let group = &self.consumer.context().group;
                if let Some(why) = code.and_then(|code| why_not_joined(group, code)) {
                    said = format!("{why} ({said})");
                }
                TransportErrorKind::Unavailable
            }
        };
        let failed = TransportError::new(kind, "fetch records");
        self.shared.fail(failed.with_detail(said).with_source(error));
    }

    /// Gives the source what was fetched. Waits while it has enough.
    fn hand_over(&mut self) {
        let mut queue = self.shared.queue();
        if !self.batch.is_empty() {
            // What was polled cannot be put back, so a full queue takes it as well. `fetch` does not poll again until
            // there is room.
            queue.received(self.batch.drain(..));
            self.shared.arrived.notify_one();
        }
        // This thread also begins the commits, so it waits no longer than their interval.
        let until = Instant::now() + self.bounds.commit.min(PATIENCE);
        while queue.records >= self.bounds.prefetch && queue.phase == Phase::Running {
            self.full.get_or_insert_with(Instant::now);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.shared.wait(queue, left);
        }
        if queue.records < self.bounds.prefetch {
            self.full = None;
        }
    }

    /// Passes over the ends of partitions where no record stands: marks of transactions, and what was taken back. The client
    /// steps over those and hands out nothing, so that a group that has done everything would be behind for ever.
    fn pass(&mut self, phase: Phase) {
        // What the client hands out while the source closes is dropped, and comes again.
        if phase != Phase::Running || self.passed.elapsed() < PASSING {
            return;
        }
        self.passed = Instant::now();
        let resting = |partition: Arc<Partition>| Some((partition.rests_at()?, partition));
        // A partition with records in flight is left alone: its commit follows what is done, not where the client is.
        let resting: Vec<_> = self.shared.all().into_iter().filter_map(resting).collect();
        if resting.is_empty() {
            return;
        }
        // The client knows it without asking the brokers.
        let Ok(positions) = self.consumer.position() else { return };
        for (at, partition) in resting {
            // A position that the client does not know yet is no offset. The next look finds one.
            let position = positions.find_partition(&partition.topic, partition.number);
            if let Some(Offset::Offset(position)) = position.map(|position| position.offset())
                && let Ok(position) = u64::try_from(position)
            {
                partition.passes(at, position);
            }
        }
    }

    /// Commits what is news. A record that waits for that does not wait for the clock.
    fn commit(&mut self) {
        let is_awaited = self.shared.is_awaited.load(Ordering::Acquire);
        // A commit for each record would cost a round trip each. The interval bounds how much runs again after a crash.
        if self.committed.elapsed() < self.bounds.commit && !is_awaited {
            return;
        }
        // The interval counts from the attempt, so a broker that refuses is not asked again in every turn of the loop.
        self.committed = Instant::now();
        commit_news(&self.shared, &self.consumer);
    }

    /// Pauses what has enough in memory or in flight, and resumes what has room again.
    fn flow(&mut self, phase: Phase) {
        let all = self.shared.all();
        // Everything is paused where nobody takes records. Polling then serves the group and fetches nothing.
        let is_stuck =
            phase == Phase::Closing || self.full.is_some_and(|since| since.elapsed() >= PATIENCE);
        let stages = all.iter().filter(|partition| partition.stage.is_some()).count();
        let waiting: usize = all.iter().map(|partition| partition.held()).sum();
        // A partition that does not open, as without an answer of the group, must not fill the memory.
        let is_crowded = self.early() >= BATCH;
        let mut pause = TopicPartitionList::new();
        let mut resume = TopicPartitionList::new();
        let mut paused = 0;
        for partition in &all {
            // Shares are equal, so a full partition leaves room for the others (G4).
            // `alike` counts this partition, so it is not 0.
            let alike = if partition.stage.is_some() { stages } else { all.len() - stages };
            let (held, bytes) = (self.bounds.waiting / alike, self.bounds.waiting_bytes / alike);
            let fullness = partition.fullness(self.bounds.span, held, bytes);
            let was_paused = partition.is_paused.load(Ordering::Relaxed);
            let is_enough = is_stuck
                || (is_crowded && partition.opening() != Opening::Open)
                // A pause throws away what the client has fetched ahead, so a partition is not resumed for a little room.
                || fullness >= if was_paused { 0.75 } else { 1.0 };
            // A pause may be lost while the client begins to fetch a partition, so it has to have delivered a record
            // before.
            let is_paused = is_enough && partition.is_fetched();
            if is_paused != was_paused {
                let list = if is_paused { &mut pause } else { &mut resume };
                list.add_partition(&partition.topic, partition.number);
                // The client reports no errors of single partitions, so the flag follows the request.
                partition.is_paused.store(is_paused, Ordering::Relaxed);
            }
            paused += usize::from(is_paused);
        }
        self.gauges.show(waiting, paused);
        for (list, result) in
            [(&pause, self.consumer.pause(&pause)), (&resume, self.consumer.resume(&resume))]
        {
            if let Err(error) = result {
                tracing::warn!(%error, partitions = list.count(), "partitions could not be paused or resumed");
            }
        }
    }

    /// Commits what is done and leaves the group. It has to be the thread's last act: to leave can take for ever.
    fn leave(self) {
        let all = self.shared.all();
        for partition in &all {
            // From here on `yielded` refuses, so no record goes out after the last commit.
            partition.leave();
        }
        // A dropped source counts as a crash, because its in-flight records did not finish.
        let is_clean = self.shared.phase() == Phase::Closing;
        // From here on the revoke hook does nothing, and the commit of `give_up` is the last word about these partitions.
        self.consumer.context().is_leaving.store(true, Ordering::Release);
        give_up(&self.consumer, &all, is_clean, self.consumer.assignment_lost());
        self.gauges.end();
        // A commit's thread that dropped the last reference would close the client after `Left` is said. So others
        // are waited for, within limits.
        let until = Instant::now() + ANSWER * 2;
        while Arc::strong_count(&self.consumer) > 1 && Instant::now() < until {
            std::thread::sleep(WAIT);
        }
        // `Left` is said after the client is closed, since whoever waits for it may end the process.
        drop(self.consumer);
        self.shared.advance(Phase::Left);
    }
}

/// Returns whether the client gets over an error by itself: leaders and coordinators move, members come and go, connections
/// are lost and made again. That all brokers are down is an error of its own.
fn is_passing(error: &KafkaError, code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        AssignmentLost, BrokerNotAvailable, BrokerTransportFailure, FetchSessionIdNotFound,
        IllegalGeneration, InProgress, InvalidFetchSessionEpoch, MemberIdRequired,
        NetworkException, NodeUpdate, OffsetOutOfRange, OperationTimedOut, PartitionEOF,
        RebalanceInProgress, ReplicaNotAvailable, RequestTimedOut, Resolve, Retry,
        StaleMemberEpoch, ThrottlingQuotaExceeded, UnknownMemberId,
    };
    let passing = [
        AssignmentLost,
        BrokerNotAvailable,
        BrokerTransportFailure,
        FetchSessionIdNotFound,
        IllegalGeneration,
        InProgress,
        InvalidFetchSessionEpoch,
        MemberIdRequired,
        NetworkException,
        NodeUpdate,
        // What is left is read then, see `auto.offset.reset`.
        OffsetOutOfRange,
        OperationTimedOut,
        PartitionEOF,
        RebalanceInProgress,
        ReplicaNotAvailable,
        RequestTimedOut,
        Resolve,
        Retry,
        StaleMemberEpoch,
        ThrottlingQuotaExceeded,
        UnknownMemberId,
    ];
    is_moving(error) || passing.contains(&code)
}

/// Returns why a group cannot be joined, and what to do about it.
fn why_not_joined(group: &str, code: RDKafkaErrorCode) -> Option<String> {
    let what = match code {
        RDKafkaErrorCode::InvalidSessionTimeout => {
            "the brokers do not take this `session.timeout.ms`; set it within their `group.min.session.timeout.ms` and \
             `group.max.session.timeout.ms`"
        }
        RDKafkaErrorCode::InconsistentGroupProtocol => {
            "its other processes have another `partition.assignment.strategy`, or it is a group of something else; set the \
             same in all of them, or choose another group"
        }
        RDKafkaErrorCode::GroupMaxSizeReached => {
            "it has as many processes as the brokers allow; stop one, or raise their `group.max.size`"
        }
        RDKafkaErrorCode::InvalidGroupId => {
            "the brokers do not take its name; choose another group"
        }
        _ => return None,
    };
    Some(format!("cannot join group `{group}`: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g9_only_errors_that_are_known_to_pass_are_not_told() {
        let passes = |code| is_passing(&KafkaError::MessageConsumption(code), code);
        for code in [
            RDKafkaErrorCode::BrokerTransportFailure,
            RDKafkaErrorCode::NotCoordinator,
            RDKafkaErrorCode::RebalanceInProgress,
        ] {
            assert!(passes(code), "{code}");
        }
        for code in [
            RDKafkaErrorCode::InvalidSessionTimeout,
            RDKafkaErrorCode::InconsistentGroupProtocol,
            RDKafkaErrorCode::GroupMaxSizeReached,
            RDKafkaErrorCode::SSL,
            RDKafkaErrorCode::Unknown,
        ] {
            assert!(!passes(code), "{code}");
        }
        let why = why_not_joined("billing", RDKafkaErrorCode::InvalidSessionTimeout).unwrap();
        assert!(why.contains("`billing`") && why.contains("`session.timeout.ms`"), "{why}");
    }
}
