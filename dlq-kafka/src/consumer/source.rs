use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{
    Capabilities, Delivery, Ordering, Recipients, SharedClock, Source, Timestamp, TransportError,
};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::client::produce::{Outgoing, Producer, Unwritten};
use crate::client::wire;
use crate::consumer::gauges::{Gauges, late, unclaimed};
use crate::consumer::lines::Lines;
use crate::consumer::marks::KafkaCrashMarks;
use crate::consumer::piece::{Piece, Records};
use crate::consumer::reading::{Again, Read, Reading};
use crate::consumer::settle::KafkaSettle;
use crate::consumer::shared::{DeliveryPosition, Line, Phase, Returned, SourceState, Taken};
use crate::consumer::waiting::Waiting;

/// Time limit for closing when nothing is in flight.
const LEAVING: Duration = Duration::from_secs(5);
/// Time limit for dropping, in which finished records are committed.
const DROPPING: Duration = Duration::from_secs(3);

/// Number of records that are written into their stages again at the same time.
const WRITING: usize = 256;
/// After how long that is tried again.
const LATER: Duration = Duration::from_secs(30);

/// The records of a topic for one consumer, and those of its retry topics when they are due. Made by
/// [`KafkaTransport::source`](crate::KafkaTransport::source).
///
/// # Metrics
///
/// The gauges `dlq_kafka_waiting`, `dlq_kafka_paused` and `dlq_kafka_next_due_seconds` (by `group`) say how many retry
/// records wait in memory, how many partitions are paused and when the next record is due; the histogram
/// `dlq_kafka_lateness_seconds` (by `topic`) says how long after their time records were handed out. How far the group is
/// behind is told by [`KafkaLag`](crate::KafkaLag). The counter `dlq_kafka_lost_total` (by `topic`) says how many records
/// were deleted at the brokers before they were handled, at most; an error of the source names them. The counter
/// `dlq_kafka_unclaimed_total` (by `group` and `topic`) says how many records of retry topics that groups share name no group
/// and a handler that this group does not have.
///
/// # A topic that is deleted and made again
///
/// Stop its consumers first. Brokers forget what a group has committed in a topic that is deleted, so that consumers which
/// start later read the new one from its beginning. A consumer that runs meanwhile may go on at the offset where it was, and
/// what stands before that in the new topic is not read. A commit beyond the end of its partition is logged, and counted by
/// `dlq_kafka_anew_total` (by `topic`); the partition is read from its beginning.
///
/// # Closing
///
/// [`close`](Source::close) stops fetching at once. The group is left when the last delivery in flight is settled, and what
/// is done is committed before. It never hangs: a client that does not close is left to its thread. Deliveries that are
/// dropped unsettled come again in the next process, and count as no death. A source that is dropped without being closed
/// leaves as a process that died, except that what is done is committed.
#[derive(Debug)]
pub struct KafkaSource {
    shared: Arc<SourceState>,
    reading: Reading,
    lines: Lines,
    ready: VecDeque<Piece>,
    /// The first of these.
    records: Option<Records>,
    /// Records that were released from their line.
    next: VecDeque<(Taken, Option<Line>)>,
    /// Records that may be handed out once it is committed that they are: an owner before has died.
    held_back: VecDeque<HeldBack>,
    waiting: Waiting<Sleeper>,
    /// Records that are to be written into their stages again, and those that are being written.
    unwritten: VecDeque<Sleeping>,
    writing: JoinSet<Written>,
    /// When it was told that one could not be written.
    told: Option<Instant>,
    /// When it was told that a record may be of nobody.
    told_unclaimed: Option<Instant>,
    producer: Producer,
    bounds: usize,
    has_ended: bool,
    gauges: Gauges,
}

/// Records that wait for their time.
#[derive(Debug)]
enum Sleeper {
    /// A delivery that was given back.
    Returned(Returned),
    /// A retry record.
    Record(Sleeping),
}

/// A retry record that waits for its time.
#[derive(Debug)]
struct Sleeping {
    delivery: Delivery,
    place: DeliveryPosition,
    due: Timestamp,
    bytes: usize,
    /// The action for a record that waits longer than its stage.
    again: Option<Box<Again>>,
}

/// A record that may not be handed out yet.
#[derive(Debug)]
enum HeldBack {
    Taken(Taken, Option<Line>),
    Due(Sleeping),
}

impl HeldBack {
    fn place(&self) -> &DeliveryPosition {
        match self {
            Self::Taken(Taken { place, .. }, _) | Self::Due(Sleeping { place, .. }) => place,
        }
    }
}

/// The outcome of writing a record again: `None` if it was written, else the record and why it was not.
type Written = Option<(Sleeping, Unwritten)>;

impl KafkaSource {
    pub(crate) fn new(
        shared: Arc<SourceState>,
        reading: Reading,
        lines: Lines,
        producer: Producer,
        prefetch: usize,
        gauges: Gauges,
    ) -> Self {
        Self {
            shared,
            reading,
            lines,
            ready: VecDeque::new(),
            records: None,
            next: VecDeque::new(),
            held_back: VecDeque::new(),
            waiting: Waiting::new(),
            unwritten: VecDeque::new(),
            writing: JoinSet::new(),
            told: None,
            told_unclaimed: None,
            producer,
            bounds: prefetch,
            has_ended: false,
            gauges,
        }
    }

    /// The marks by which a record is found that kills its process, in the partition's own commits. For consumers that
    /// have no store.
    #[must_use]
    pub fn crash_marks(&self) -> KafkaCrashMarks {
        KafkaCrashMarks::new(Arc::clone(&self.shared))
    }

    fn clock(&self) -> &SharedClock {
        &self.reading.clock
    }

    /// Hands a delivery out, unless its partition was given up.
    fn hand_out(
        &self,
        delivery: Delivery,
        place: DeliveryPosition,
        line: Option<Line>,
    ) -> Option<(Delivery, KafkaSettle)> {
        if !self.shared.yielded(&place) {
            return None;
        }
        // This is noted before the handler can run, so each later commit tells the next owner of the record (G3).
        place.partition.handed_out(place.offset);
        let suspect = self.reading.suspect(&delivery);
        // `KafkaCrashMarks` finds the partition and the offset of a suspect by this.
        self.shared.suspect(&suspect, &place);
        let settle = KafkaSettle::new(&self.shared, place, line, delivery.clone(), suspect);
        Some((delivery, settle))
    }

    /// Returns a record that is due.
    fn awake(&mut self) -> Option<(Delivery, KafkaSettle)> {
        while self.waiting.next_due().is_some() {
            match self.waiting.pop_due(Instant::now())? {
                Sleeper::Returned(Returned { delivery, place, line, .. }) => {
                    // `hand_out` consumes the line. If it refuses, nothing settles this delivery, so the line is
                    // released here.
                    let behind = line.clone();
                    if let Some(next) = self.hand_out(delivery, place, line) {
                        return Some(next);
                    }
                    self.next.extend(behind.and_then(|line| self.lines.release(line)));
                }
                Sleeper::Record(sleeping) => {
                    let now = self.clock().now();
                    // Timers run on the monotonic clock and `due` is wall time. If that clock was set back, the
                    // record sleeps on rather than run early.
                    if !sleeping.due.since(now).is_zero() {
                        self.sleep(sleeping, now);
                        continue;
                    }
                    // An owner before has died: the record goes out only after the commit that says so (see
                    // `handover`).
                    if !sleeping.place.partition.admits(sleeping.place.offset) {
                        self.hold_back(HeldBack::Due(sleeping));
                        continue;
                    }
                    if let Some(next) = self.wake(sleeping) {
                        return Some(next);
                    }
                }
            }
        }
        None
    }

    /// Has a record wait until it is due, or until it is written again. The clock of the machine is the one that counts, and
    /// it may have been set back since it was asked last.
    fn sleep(&mut self, sleeping: Sleeping, now: Timestamp) {
        let early = sleeping.due.since(now);
        // The earlier of the two times counts: a record that comes due before its stage is over is not written again.
        let until = sleeping.again.as_ref().map_or(early, |again| again.at.since(now).min(early));
        // The delay of its stage is over and it is not due. Written again behind the others, it holds up no commit.
        if until.is_zero() && !early.is_zero() {
            return self.unwritten.push_back(sleeping);
        }
        self.waiting.push(Instant::now() + until, Sleeper::Record(sleeping));
    }

    /// Hands out a record whose time has come.
    fn wake(&self, sleeping: Sleeping) -> Option<(Delivery, KafkaSettle)> {
        let Sleeping { delivery, place, due, bytes, .. } = sleeping;
        // The bound on waiting bytes is for records that sleep. What runs is bounded by the span of its partition.
        place.partition.release(bytes);
        late(&place.partition.topic, due, self.clock().now());
        self.hand_out(delivery, place, None)
    }

    /// Keeps what may not be handed out, and asks for the commit that says it is.
    fn hold_back(&mut self, held_back: HeldBack) {
        self.held_back.push_back(held_back);
        self.shared.awaits_commit();
    }

    /// Records of it that may be handed out now.
    fn admitted(&mut self) -> Option<(Delivery, KafkaSettle)> {
        loop {
            // A commit may grant records of several partitions, and the first in the queue need not be among them.
            let is_free = |held_back: &HeldBack| {
                let place = held_back.place();
                place.partition.is_free(place.offset)
            };
            let at = self.held_back.iter().position(is_free)?;
            let next = match self.held_back.remove(at)? {
                HeldBack::Due(sleeping) => self.wake(sleeping),
                HeldBack::Taken(taken, line) => {
                    let behind = line.clone();
                    let next = self.look_at(taken, line);
                    if next.is_none() {
                        self.next.extend(behind.and_then(|line| self.lines.release(line)));
                    }
                    next
                }
            };
            if !self.held_back.is_empty() {
                // There is room for more of them.
                self.shared.awaits_commit();
            }
            if next.is_some() {
                return next;
            }
        }
    }

    /// Writes records into their stages again that wait longer than those. It is no attempt, and the record that is written
    /// is known by the same letter.
    fn write_again(&mut self) {
        while let Some(written) = self.writing.try_join_next() {
            // One that was cut off waits for the next process.
            self.written(written.ok().flatten());
        }
        while self.writing.len() < WRITING
            && let Some(sleeping) = self.unwritten.pop_front()
        {
            // A record whose partition goes is dropped unwritten. It is not done, so its next owner reads it where it stands.
            let place = sleeping.place.clone();
            // The write counts as in flight: a revocation waits for it, so that its `done` is still in the last
            // commit.
            if !self.shared.yielded(&place) {
                continue;
            }
            let guard = Yielded(Arc::clone(&self.shared), place);
            self.writing.spawn(write_again(self.producer.clone(), sleeping, guard));
        }
    }

    /// Has what could not be written wait on, and what was about to be too: it may be due meanwhile.
    fn written(&mut self, written: Written) {
        let Some((sleeping, error)) = written else { return };
        if self.told.is_none_or(|at| at.elapsed() >= LATER) {
            // Every record of a topic that cannot be written to would tell the same, so it is told once in a while.
            self.told = Some(Instant::now());
            tracing::warn!(
                ?error,
                topic = &*sleeping.place.partition.topic,
                "a record waits longer than its stage and could not be written into it again; it waits in memory"
            );
        }
        let now = self.clock().now();
        let all = std::mem::take(&mut self.unwritten).into_iter().chain([sleeping]);
        // The brokers, not this record, are the likely cause. The others wait as well instead of failing one by one.
        for mut sleeping in all {
            if let Some(again) = &mut sleeping.again {
                again.at = now.after(LATER);
            }
            self.sleep(sleeping, now);
        }
    }

    /// Forgets what waits of partitions that were given up: it takes room, and holds up its line.
    fn forget(&mut self) {
        let mut lines = Vec::new();
        self.waiting.retain(|sleeper| {
            let (Sleeper::Returned(Returned { place, .. })
            | Sleeper::Record(Sleeping { place, .. })) = sleeper;
            let is_past = place.partition.is_leaving();
            if let (true, Sleeper::Returned(Returned { line, delivery, place, .. })) =
                (is_past, sleeper)
            {
                lines.extend(line.clone());
                // Nobody settles this delivery any more, so its registration as a suspect ends here.
                self.shared.cleared(&self.reading.suspect(delivery), place);
            }
            !is_past
        });
        self.unwritten.retain(|sleeping| !sleeping.place.partition.is_leaving());
        self.held_back.retain(|held_back| {
            let is_past = held_back.place().partition.is_leaving();
            if let (true, HeldBack::Taken(_, line)) = (is_past, held_back) {
                lines.extend(line.clone());
            }
            !is_past
        });
        self.next.extend(lines.into_iter().filter_map(|line| self.lines.release(line)));
    }

    /// The next record of those that were taken.
    fn fetched(&mut self) -> Option<Taken> {
        loop {
            match self.records.as_mut().and_then(Records::next) {
                Some(taken) => return Some(taken),
                None => {
                    let piece = self.ready.pop_front()?;
                    self.records = Some(piece.records(&self.reading.cluster));
                }
            }
        }
    }

    /// Tells of a record for a handler that this group does not have, and perhaps no group that reads it.
    fn tell_unclaimed(&mut self, handler: &str, place: &DeliveryPosition) {
        let topic = &*place.partition.topic;
        unclaimed(&self.reading.group, topic);
        if self.told_unclaimed.is_none_or(|at| at.elapsed() >= LATER) {
            self.told_unclaimed = Some(Instant::now());
            tracing::warn!(
                topic,
                partition = place.partition.number,
                offset = place.offset,
                handler,
                group = &*self.reading.group,
                "a retry record names no group, and this group has no handler of its name; if no other group that reads \
                 the topic has it, send its letter back once more"
            );
        }
    }

    /// Decides about a fetched record.
    fn look_at(&mut self, taken: Taken, line: Option<Line>) -> Option<(Delivery, KafkaSettle)> {
        let Taken { record, origin, place, deaths } = taken;
        // The new owner reads this record as well. Run here too, it would be handled twice.
        if place.partition.is_leaving() {
            return None;
        }
        let bytes = record.size();
        if record.unreadable_headers > 0 && place.partition.is_first_unreadable() {
            tracing::warn!(
                topic = &*record.topic,
                partition = record.partition,
                offset = record.offset,
                headers = record.unreadable_headers,
                "a record has headers with names that are not UTF-8, which the client does not give out; it is handled \
                 without them, and so are others of this partition"
            );
        }
        // Kafka counts no deliveries. The deaths of owners before stand for them, so that the run loop finds suspects
        // (G3).
        let counted = |delivery: Delivery| match deaths {
            0 => delivery,
            deaths => delivery.with_deliveries(deaths.saturating_add(1)),
        };
        match self.reading.read(record, origin, place.partition.stage) {
            Read::Message(delivery) => self.hand_out(counted(delivery), place, line),
            Read::Record { delivery, due, again } => {
                let delivery = counted(delivery);
                let death = delivery.death(delivery.consumer());
                // A process that dies after writing a retry record and before settling its message writes it again.
                // Only the first one runs.
                if !place.partition.is_first(&delivery) {
                    tracing::debug!(%death, "a retry record was written twice; the copy is passed over");
                    // An error says that the partition was given up. Its next owner decides about the copy itself.
                    let _ = place.partition.done(place.sequence);
                    return None;
                }
                // Counted as waiting also where it is due at once: `wake` takes off again what is put on here.
                place.partition.hold(bytes);
                let sleeping = Sleeping { delivery, place, due, bytes, again };
                let now = self.clock().now();
                if sleeping.due.since(now).is_zero() {
                    if sleeping.place.partition.admits(sleeping.place.offset) {
                        return self.wake(sleeping);
                    }
                    self.hold_back(HeldBack::Due(sleeping));
                } else {
                    self.sleep(sleeping, now);
                }
                None
            }
            Read::NotOurs { unclaimed } => {
                if let Some(handler) = unclaimed {
                    self.tell_unclaimed(&handler, &place);
                }
                // It is another consumer's record. It is done here, or the commit would never pass it.
                let _ = place.partition.done(place.sequence);
                None
            }
        }
    }

    /// Takes what has come. Whether there was something.
    fn take(&mut self) -> Result<bool, TransportError> {
        let mut queue = self.shared.queue();
        // An error is returned before records are taken. Those stay in the queue for the next call.
        let failed = queue.error.take();
        if let Some(error) = failed.or_else(|| queue.blocked.take()) {
            return Err(error);
        }
        if queue.phase == Phase::Left {
            self.has_ended = true;
            // `true` makes `next` look again, and end.
            return Ok(true);
        }
        for returned in std::mem::take(&mut queue.returned) {
            if returned.place.partition.is_leaving() {
                // The new owner of the partition has the record. Here it only frees its line.
                queue.released.extend(returned.line);
            } else {
                self.waiting.push(returned.due, Sleeper::Returned(returned));
            }
        }
        for line in queue.released.drain(..) {
            self.next.extend(self.lines.release(line));
        }
        let has_lost = std::mem::take(&mut queue.has_lost);
        // The polling thread waits only where the queue was full, so it need not be woken otherwise.
        let was_full = std::mem::take(&mut queue.records) >= self.bounds;
        std::mem::swap(&mut self.ready, &mut queue.fetched);
        drop(queue);
        if was_full {
            self.shared.moved.notify_all();
        }
        // `forget` walks all that waits. It runs without the lock of the queue, for which the polling thread may wait.
        if has_lost {
            self.forget();
        }
        self.gauges.next_due(self.waiting.next_due());
        Ok(!self.ready.is_empty() || !self.next.is_empty())
    }
}

/// Writes a record into its stage again and ends the one that stands there, which is given back if that fails.
async fn write_again(producer: Producer, sleeping: Sleeping, yielded: Yielded) -> Written {
    let Sleeping { delivery, place, due, bytes, again: Some(again) } = &sleeping else {
        return None;
    };
    let record = &again.record;
    let partition = &place.partition;
    // The hop is forgotten before the send: the new record may be read before its confirmation arrives, and is no copy then.
    partition.comes_again(delivery);
    let outgoing = Outgoing {
        operation: "write a retry record again",
        topic: &record.topic,
        partition: Some(partition.number),
        key: record.key.as_ref(),
        value: record.value.as_ref(),
        headers: &|| Ok(wire::pack_again(record, *due)),
    };
    let written = match producer.send(&outgoing).await {
        // The new record is confirmed before the old one is done (G1).
        // After a death in between both are read, and one is passed over.
        Ok(()) => {
            partition.release(*bytes);
            let _ = partition.done(place.sequence);
            None
        }
        Err(error) => {
            // A send that failed may have been written all the same, and read already: then the new record is the one
            // that waits.
            if partition.is_first(delivery) {
                Some((sleeping, error))
            } else {
                partition.release(*bytes);
                let _ = partition.done(place.sequence);
                None
            }
        }
    };
    // It stays in flight until `done` is noted, since the drain of a revocation waits for what is in flight.
    drop(yielded);
    written
}

/// A record that is in flight, of this process itself.
struct Yielded(Arc<SourceState>, DeliveryPosition);

impl Drop for Yielded {
    fn drop(&mut self) {
        self.0.came_back(&self.1);
    }
}

impl Source for KafkaSource {
    type Settle = KafkaSettle;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::Partition)
            // Kafka counts none itself. The deaths of owners that the commits name stand for deliveries, see `look_at`.
            .with_counts_deliveries(true)
            // A partition that goes in good order says so itself.
            .with_counts_stops(false)
            .with_delayed_release(true)
    }

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        let addressee = &mut self.reading.incoming.addressee;
        *addressee = addressee.clone().with_recipients(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, KafkaSettle)>, TransportError> {
        loop {
            if self.has_ended {
                return Ok(None);
            }
            // What is due goes before what is new, so a busy topic does not make it late.
            if let Some(next) = self.awake() {
                return Ok(Some(next));
            }
            if let Some(next) = self.admitted() {
                return Ok(Some(next));
            }
            // Only where nothing is due: writing again is for those that wait, and may wait a moment longer.
            self.write_again();
            // What was released from its line goes before what is new, since it was received earlier.
            let next = match self.next.pop_front() {
                Some(next) => Some(next),
                None => match self.fetched() {
                    Some(taken) => match self.lines.admit(taken) {
                        Some(next) => Some(next),
                        None => continue,
                    },
                    None => None,
                },
            };
            if let Some((taken, line)) = next {
                let (partition, offset) = (&taken.place.partition, taken.place.offset);
                // Of a stage it is asked when they are due.
                if partition.stage.is_none() && !partition.is_leaving() && !partition.admits(offset)
                {
                    self.hold_back(HeldBack::Taken(taken, line));
                    continue;
                }
                let behind = line.clone();
                match self.look_at(taken, line) {
                    Some(next) => return Ok(Some(next)),
                    // It went no further, so those behind it may.
                    None => self.next.extend(behind.and_then(|line| self.lines.release(line))),
                }
                continue;
            }
            if self.take()? {
                continue;
            }
            // `Notify` keeps one word that comes before the wait, so nothing is missed that came since `take`.
            let due = self.waiting.next_due();
            tokio::select! {
                () = self.shared.arrived.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
                Some(written) = self.writing.join_next(), if !self.writing.is_empty() => {
                    self.written(written.ok().flatten());
                }
            }
        }
    }

    async fn close(&mut self) {
        self.has_ended = true;
        // What is dropped here is not done, so the last commit stays before it and it comes again (G1).
        self.ready.clear();
        self.records = None;
        self.next.clear();
        self.held_back.clear();
        self.unwritten.clear();
        // What is on its way may be written all the same; whoever reads both passes over one of them.
        self.writing.shutdown().await;
        self.lines.clear();
        self.waiting.clear();
        self.gauges.next_due(None);
        self.shared.advance(Phase::Closing);
        // If deliveries are in flight, the settlement of the last one waits for the group instead (`KafkaSettle`).
        if self.shared.in_flight() == 0 && timeout(LEAVING, self.shared.until_left()).await.is_err()
        {
            tracing::error!("the client did not leave its group in time; it is left to its thread");
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        match self.shared.phase() {
            Phase::Abandoned | Phase::Left => return,
            // What is still in flight may end, and leaves the group then.
            Phase::Closing if self.shared.in_flight() > 0 => return,
            // The thread is about to leave in good order: what was cut off has not killed anybody.
            Phase::Closing => {}
            Phase::Running => self.shared.advance(Phase::Abandoned),
        }
        // This blocks the thread, since a destructor cannot await. The polling thread needs no runtime to go on.
        let until = Instant::now() + DROPPING;
        let mut queue = self.shared.queue();
        while queue.phase != Phase::Left {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.shared.wait(queue, left);
        }
    }
}
