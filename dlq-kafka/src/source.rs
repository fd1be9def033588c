use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlq_core::{
    Capabilities, Delivery, Ordering, Recipients, SharedClock, Source, Timestamp, TransportError,
};
use tokio::time::{sleep_until, timeout};

use crate::gauges::{Gauges, late};
use crate::lines::Lines;
use crate::marks::KafkaCrashMarks;
use crate::piece::{Piece, Records};
use crate::reading::{Read, Reading};
use crate::settle::KafkaSettle;
use crate::shared::{Line, Phase, Place, Returned, Shared, Taken};
use crate::waiting::Waiting;

/// How long closing may take when nothing is in hand.
const LEAVING: Duration = Duration::from_secs(5);
/// How long dropping may take: what is done is committed then.
const DROPPING: Duration = Duration::from_secs(3);

/// The records of a topic for one consumer, and those of its retry topics when they are due. Made by
/// [`KafkaConsumer::source`](crate::KafkaConsumer::source).
///
/// # Metrics
///
/// The gauges `dlq_kafka_waiting`, `dlq_kafka_paused` and `dlq_kafka_next_due_seconds` (by `group`) say how many retry
/// records wait in memory, how many partitions are paused and when the next record is due; the histogram
/// `dlq_kafka_lateness_seconds` (by `topic`) says how long after their time records were handed out. How far the group is
/// behind is told by [`KafkaLag`](crate::KafkaLag).
///
/// # A topic that is made anew
///
/// A topic that was deleted and created again is another, also when it is longer than what was read of the one before: it
/// is read from its beginning, whatever the [`Start`](crate::Start). What was handed out of the old one is handled still. While
/// a topic is missing that is told; that it was made anew is logged, and counted by `dlq_kafka_anew_total` (by `topic`).
/// Brokers forget what a group has committed in a topic that is deleted: where that happens while no process of the
/// group is there, the group begins as a new one does. Topics are told apart by the ids that brokers give them since
/// Kafka 2.8; with older ones, stop the consumers before a topic is made anew.
///
/// # Closing
///
/// [`close`](Source::close) stops fetching at once. The group is left when the last delivery in hand is settled, and what
/// is done is committed before. It never hangs: a client that does not close is left to its thread. Deliveries that are
/// dropped unsettled come again in the next process, and count as no death. A source that is dropped without being closed
/// leaves as a process that died, except that what is done is committed.
#[derive(Debug)]
pub struct KafkaSource {
    shared: Arc<Shared>,
    reading: Reading,
    lines: Lines,
    ready: VecDeque<Piece>,
    /// The first of these.
    records: Option<Records>,
    /// Records that were released from their line.
    next: VecDeque<(Taken, Option<Line>)>,
    waiting: Waiting<Sleeper>,
    bounds: usize,
    has_ended: bool,
    gauges: Gauges,
}

/// What waits for its time.
#[derive(Debug)]
enum Sleeper {
    /// A delivery that was given back.
    Returned(Returned),
    /// A retry record.
    Record { delivery: Delivery, place: Place, due: Timestamp, bytes: usize },
}

impl KafkaSource {
    pub(crate) fn new(
        shared: Arc<Shared>,
        reading: Reading,
        lines: Lines,
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
            waiting: Waiting::new(),
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
        place: Place,
        line: Option<Line>,
    ) -> Option<(Delivery, KafkaSettle)> {
        if !self.shared.yielded(&place) {
            return None;
        }
        let suspect = self.reading.suspect(&delivery);
        self.shared.suspect(&suspect, &place);
        let settle = KafkaSettle::new(&self.shared, place, line, delivery.clone(), suspect);
        Some((delivery, settle))
    }

    /// What is due of what waits.
    fn awake(&mut self) -> Option<(Delivery, KafkaSettle)> {
        while self.waiting.next_due().is_some() {
            match self.waiting.pop_due(Instant::now())? {
                Sleeper::Returned(Returned { delivery, place, line, .. }) => {
                    let behind = line.clone();
                    if let Some(next) = self.hand_out(delivery, place, line) {
                        return Some(next);
                    }
                    self.next.extend(behind.and_then(|line| self.lines.release(line)));
                }
                Sleeper::Record { delivery, place, due, bytes } => {
                    let early = due.since(self.clock().now());
                    if !early.is_zero() {
                        // The clock of the machine is the one that counts, and it was set back.
                        let sleeper = Sleeper::Record { delivery, place, due, bytes };
                        self.waiting.push(Instant::now() + early, sleeper);
                        continue;
                    }
                    place.partition.release(bytes);
                    late(&place.partition.topic, due, self.clock().now());
                    if let Some(next) = self.hand_out(delivery, place, None) {
                        return Some(next);
                    }
                }
            }
        }
        None
    }

    /// Forgets what waits of partitions that were given up: it takes room, and holds up its line.
    fn forget(&mut self) {
        let mut lines = Vec::new();
        self.waiting.retain(|sleeper| {
            let (Sleeper::Returned(Returned { place, .. }) | Sleeper::Record { place, .. }) =
                sleeper;
            let is_past = place.partition.is_leaving();
            if let (true, Sleeper::Returned(Returned { line, delivery, place, .. })) =
                (is_past, sleeper)
            {
                lines.extend(line.clone());
                self.shared.cleared(&self.reading.suspect(delivery), place);
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

    /// What becomes of a record that was fetched.
    fn look_at(&mut self, taken: Taken, line: Option<Line>) -> Option<(Delivery, KafkaSettle)> {
        let Taken { record, origin, place, deaths } = taken;
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
        let counted = |delivery: Delivery| match deaths {
            0 => delivery,
            deaths => delivery.with_deliveries(deaths.saturating_add(1)),
        };
        match self.reading.read(record, origin, place.partition.stage) {
            Read::Message(delivery) => self.hand_out(counted(delivery), place, line),
            Read::Record { delivery, due } => {
                let delivery = counted(delivery);
                let death = delivery.death(delivery.consumer());
                let (replays, escalations) = (delivery.replays(), delivery.escalations());
                if !place.partition.is_first(death, replays, escalations) {
                    tracing::debug!(%death, "a retry record was written twice; the copy is passed over");
                    let _ = place.partition.done(place.sequence);
                    return None;
                }
                let wait = due.since(self.clock().now());
                if wait.is_zero() {
                    return self.hand_out(delivery, place, None);
                }
                place.partition.hold(bytes);
                let sleeper = Sleeper::Record { delivery, place, due, bytes };
                self.waiting.push(Instant::now() + wait, sleeper);
                None
            }
            Read::NotOurs => {
                let _ = place.partition.done(place.sequence);
                None
            }
        }
    }

    /// Takes what has come. Whether there was something.
    fn take(&mut self) -> Result<bool, TransportError> {
        let mut queue = self.shared.queue();
        let failed = queue.error.take();
        if let Some(error) = failed.or_else(|| queue.blocked.take()) {
            return Err(error);
        }
        if queue.phase == Phase::Left {
            self.has_ended = true;
            return Ok(true);
        }
        for returned in std::mem::take(&mut queue.returned) {
            if returned.place.partition.is_leaving() {
                queue.released.extend(returned.line);
            } else {
                self.waiting.push(returned.due, Sleeper::Returned(returned));
            }
        }
        for line in queue.released.drain(..) {
            self.next.extend(self.lines.release(line));
        }
        let has_lost = std::mem::take(&mut queue.has_lost);
        let was_full = std::mem::take(&mut queue.records) >= self.bounds;
        std::mem::swap(&mut self.ready, &mut queue.fetched);
        drop(queue);
        if was_full {
            self.shared.moved.notify_all();
        }
        if has_lost {
            self.forget();
        }
        self.gauges.next_due(self.waiting.next_due());
        Ok(!self.ready.is_empty() || !self.next.is_empty())
    }
}

impl Source for KafkaSource {
    type Settle = KafkaSettle;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::Partition)
            .with_counts_deliveries(true)
            // A partition that goes in good order says so itself.
            .with_counts_stops(false)
            .with_delayed_release(true)
    }

    fn yields_to(&mut self, recipients: Arc<dyn Recipients>) {
        let addressee = &mut self.reading.addressee;
        *addressee = addressee.clone().with_recipients(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, KafkaSettle)>, TransportError> {
        loop {
            if self.has_ended {
                return Ok(None);
            }
            if let Some(next) = self.awake() {
                return Ok(Some(next));
            }
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
            let due = self.waiting.next_due();
            tokio::select! {
                () = self.shared.arrived.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
            }
        }
    }

    async fn close(&mut self) {
        self.has_ended = true;
        self.ready.clear();
        self.records = None;
        self.next.clear();
        self.lines.clear();
        self.waiting.clear();
        self.gauges.next_due(None);
        self.shared.advance(Phase::Closing);
        if self.shared.in_hand() == 0 && timeout(LEAVING, self.shared.until_left()).await.is_err() {
            tracing::error!("the client did not leave its group in time; it is left to its thread");
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        match self.shared.phase() {
            Phase::Abandoned | Phase::Left => return,
            // What is still in hand may end, and leaves the group then.
            Phase::Closing if self.shared.in_hand() > 0 => return,
            // The thread is about to leave in good order: what was cut off has not killed anybody.
            Phase::Closing => {}
            Phase::Running => self.shared.advance(Phase::Abandoned),
        }
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
