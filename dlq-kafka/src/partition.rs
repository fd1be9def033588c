use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::Death;

use crate::handover::{Handover, REACH, ROOM};
use crate::tracker::{Sequence, Tracker};

/// How many hops of a retry topic are remembered, so that a copy is passed over.
const HOPS: usize = 10_000;

/// Number of records that may be handed out after one commit that says so. The next owner takes all of them for suspects.
const AT_ONCE: usize = 16;

/// A partition while it is assigned to this process. Another assignment of the same partition is another one of these, so
/// that what was taken from the past one cannot say anything about this.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) number: i32,
    /// The delay, of a partition of a retry topic.
    pub(crate) stage: Option<Duration>,
    state: Apart<Mutex<State>>,
    /// It is given up: what is not yielded is no longer ours to yield.
    is_leaving: AtomicBool,
    span: Apart<AtomicU64>,
    limit: AtomicU64,
    /// Deliveries that were yielded and are not settled.
    in_hand: Apart<AtomicUsize>,
    /// After the highest offset that was handed out.
    handed: AtomicU64,
    /// Records from this offset on may not be handed out before that is committed.
    free: AtomicU64,
    /// Records that wait for their time, or for one before them, and about how many bytes they are.
    held: AtomicUsize,
    held_bytes: AtomicUsize,
    has_unreadable: AtomicBool,
    /// Whether the client fetches it, since a record of it has come.
    is_fetched: AtomicBool,
    /// Whether the client fetches none of it for now, since enough is in memory or in flight.
    pub(crate) is_paused: AtomicBool,
}

/// Written for each record, and so apart in memory from what is only read, and from each other.
#[derive(Debug)]
#[repr(align(64))]
struct Apart<T>(T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[derive(Debug, Default)]
struct State {
    tracker: Tracker,
    handover: Handover,
    opening: Opening,
    /// The offset that was found committed, or the first that was received.
    start: Option<u64>,
    /// The first offset that was received; what was committed may be asked for later.
    first: Option<u64>,
    /// Whether there is something to commit.
    is_dirty: bool,
    /// The longest part that was passed over without a record since the last look.
    gap: Option<Gap>,
    /// The offset that was found committed, until it is known whether what stood there was deleted.
    unasked: Option<u64>,
    /// The offset up to which it was last said that records are handed out.
    told: u64,
    /// Records that wait for the commit that says they are handed out, up to where the one on its way says it, and those of
    /// which it is said that are not handed out yet.
    awaiting: BTreeSet<u64>,
    granting: Option<u64>,
    granted: BTreeSet<u64>,
    /// Number of bytes of metadata that the brokers do not take of those that are written otherwise.
    cut: usize,
    /// Whether marks were taken away and the group is not known to have heard of it.
    has_ended: bool,
    /// It was given up: nothing that ends now counts.
    is_over: bool,
    /// Where the group begins that has committed nothing, while what was before may come, and whether the client was told.
    end: Option<(u64, bool)>,
    hops: Hops,
    /// How far the client had come beyond everything that is done, when that was looked at last: from where and to where.
    ahead: Option<(u64, u64)>,
    /// The offset at which the partition began when that was asked last: what was deleted before it was told.
    low: u64,
}

/// Whether it was told that we have the partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opening {
    /// What the owner before left is not known yet.
    #[default]
    Unknown,
    /// There is no commit, and so no offset to say it with, until a record comes.
    First,
    /// It was, and the broker has confirmed.
    Open,
}

/// A record that was received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) sequence: Sequence,
    /// How often it was handed out to owners that died.
    pub(crate) deaths: u32,
    /// An owner before has done it.
    pub(crate) is_done: bool,
}

/// A part of a partition in which no record has come: it was taken back, compacted, or deleted before it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: u64,
    /// The offset after the last.
    pub(crate) to: u64,
    /// The number of these that an owner before has done.
    done: u64,
}

impl Gap {
    /// Returns the number of its offsets that were deleted and that nobody has done, if the partition begins at `low` now.
    pub(crate) fn lost(&self, low: u64) -> u64 {
        self.to.min(low).saturating_sub(self.from).saturating_sub(self.done)
    }
}

/// The records of this partition come from an assignment that is over.
#[derive(Debug)]
pub(crate) struct Over;

impl Partition {
    /// `owner` is the source that has it.
    pub(crate) fn new(owner: u64, topic: Arc<str>, number: i32, stage: Option<Duration>) -> Self {
        let state = State { handover: Handover::of(owner), ..State::default() };
        Self {
            topic,
            number,
            stage,
            state: Apart(Mutex::new(state)),
            is_leaving: AtomicBool::new(false),
            span: Apart(AtomicU64::new(0)),
            limit: AtomicU64::new(u64::MAX),
            in_hand: Apart(AtomicUsize::new(0)),
            handed: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
            held: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            has_unreadable: AtomicBool::new(false),
            is_fetched: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the bounds where others look without the lock.
    fn measure(&self, state: &State) {
        self.span.store(state.tracker.span(), Ordering::Relaxed);
        let limit = state.handover.limit().unwrap_or(u64::MAX);
        if self.limit.load(Ordering::Relaxed) != limit {
            self.limit.store(limit, Ordering::Relaxed);
        }
        if state.handover.limit().is_none() && self.free.load(Ordering::Relaxed) != u64::MAX {
            self.free.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(crate) fn opening(&self) -> Opening {
        self.state().opening
    }

    /// What the owner before has left: its commit and the metadata of it.
    pub(crate) fn found(&self, committed: Option<(u64, &str)>) {
        let mut state = self.state();
        match committed {
            None => (state.opening, state.start) = (Opening::First, state.first),
            Some((position, metadata)) => {
                state.handover = Handover::take_over(state.handover.owner(), metadata, position);
                (state.start, state.unasked) = (Some(position), Some(position));
                self.free.store(state.handover.handed().unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        }
        self.measure(&state);
    }

    /// There is no commit, and the group begins here, at the end. Returns false if it has begun before that was answered.
    pub(crate) fn begins_at(&self, end: u64) -> bool {
        let mut state = self.state();
        if state.opening != Opening::Unknown || state.start.is_some() {
            return false;
        }
        (state.start, state.end) = (Some(end), Some((end, false)));
        true
    }

    /// Whether a record that has come was there before the group began; if so, where the client has to go, which is said
    /// once.
    pub(crate) fn passes_over(&self, offset: u64) -> Option<Option<u64>> {
        let mut state = self.state();
        match &mut state.end {
            Some((end, is_told)) if offset < *end => {
                Some((!std::mem::replace(is_told, true)).then_some(*end))
            }
            end => {
                *end = None;
                None
            }
        }
    }

    /// Whether nothing has come yet from where the group begins: who goes there now gets nothing twice.
    pub(crate) fn is_before_end(&self) -> bool {
        self.state().end.is_some()
    }

    /// A record has come before the partition is open. Without a commit the group starts at the first of them.
    pub(crate) fn comes(&self, offset: u64) {
        let mut state = self.state();
        state.first.get_or_insert(offset);
        if state.opening == Opening::First {
            state.start = state.start.or(state.first);
        }
    }

    /// The offset that is to be received next; `None` while that is not known.
    pub(crate) fn next(&self) -> Option<u64> {
        let state = self.state();
        state.tracker.next().or(state.start)
    }

    /// The broker has confirmed that we have it.
    pub(crate) fn opened(&self) {
        self.state().opening = Opening::Open;
    }

    /// Returns true if a record may be handed out; if not, it may once [`Self::committed`] was heard.
    pub(crate) fn admits(&self, offset: u64) -> bool {
        if self.is_free(offset) {
            return true;
        }
        let mut state = self.state();
        if self.is_free(offset) {
            return true;
        }
        state.awaiting.insert(offset);
        false
    }

    /// Returns true if nothing is to be committed before a record is handed out.
    pub(crate) fn is_free(&self, offset: u64) -> bool {
        offset < self.free.load(Ordering::Acquire)
    }

    /// Returns true if a record waits for a commit.
    pub(crate) fn awaits(&self) -> bool {
        self.state().awaiting.first().is_some_and(|first| !self.is_free(*first))
    }

    /// Notes that what [`Self::news`] has said was committed.
    pub(crate) fn committed(&self) {
        let mut state = self.state();
        let Some(before) = state.granting.take() else { return };
        let rest = state.awaiting.split_off(&before);
        let granted = std::mem::replace(&mut state.awaiting, rest);
        state.granted.extend(granted);
        self.free.fetch_max(before, Ordering::Release);
    }

    /// The brokers take no metadata that is so long: the next is at most half as long, if it can be. Ranges that are done
    /// are left out, and run again.
    pub(crate) fn shortens(&self) {
        let mut state = self.state();
        state.cut = ROOM - (ROOM - state.cut) / 2;
    }

    /// Records were fetched, of which the offset is given and what is to be known is noted.
    pub(crate) fn receive<'a>(&self, records: impl Iterator<Item = (u64, &'a mut Received)>) {
        let mut state = self.state();
        let before = state.position();
        let mut has_passed = false;
        for (offset, received) in records {
            match state.tracker.next().or(state.start) {
                Some(next) if offset < next => state.handover.forgets_done(),
                Some(next) if offset > next => state.passes_over(next, offset),
                _ => {}
            }
            let sequence = state.tracker.receive(offset);
            // Beyond a gap the next record may be anywhere, and have been in hand beside the first.
            if sequence < REACH {
                state.handover.reaches(offset);
            }
            let is_done = state.handover.is_done(offset);
            if is_done {
                state.tracker.done(sequence);
                has_passed = true;
            }
            *received = Received { sequence, deaths: state.handover.deaths_of(offset), is_done };
        }
        if has_passed && let Some(position) = state.position() {
            state.has_ended |= state.handover.reached(position);
            state.is_dirty |= Some(position) != before;
        }
        // What was taken for the end was not: the commit goes back to what is not done.
        if state.position() < before {
            state.is_dirty = true;
        }
        self.measure(&state);
    }

    /// A record is done.
    pub(crate) fn done(&self, sequence: Sequence) -> Result<(), Over> {
        let mut state = self.state();
        if state.is_over {
            return Err(Over);
        }
        let before = state.tracker.position();
        state.tracker.done(sequence);
        let position = state.tracker.position();
        // What is done above the position is said too.
        state.is_dirty = true;
        if position != before
            && let Some(position) = position
        {
            state.has_ended |= state.handover.reached(position);
        }
        self.measure(&state);
        Ok(())
    }

    /// Up to where everything that was received is done, while all of it is.
    pub(crate) fn rests_at(&self) -> Option<u64> {
        let state = self.state();
        let rests = state.opening == Opening::Open && state.tracker.span() == 0;
        rests.then(|| state.position()).flatten()
    }

    /// The client has come to `to`, and has handed out nothing from `from` on, where it rests. That is believed once it is
    /// said twice: the client keeps the position of the assignment before for a moment.
    pub(crate) fn passes(&self, from: u64, to: u64) {
        let rests_here = self.rests_at() == Some(from);
        let mut state = self.state();
        let ahead = (rests_here && from < to).then_some((from, to));
        let before = std::mem::replace(&mut state.ahead, ahead);
        if ahead.is_none() || ahead != before {
            return;
        }
        state.passes_over(from, to);
        state.tracker.passes(to);
        state.has_ended |= state.handover.reached(to);
        state.is_dirty = true;
        self.measure(&state);
    }

    /// The longest gap that was not looked at yet.
    pub(crate) fn gap(&self) -> Option<Gap> {
        self.state().gap
    }

    /// The commit that was found, until it is known whether what stood after it was deleted.
    pub(crate) fn unasked(&self) -> Option<u64> {
        let state = self.state();
        state.unasked.filter(|_| state.opening == Opening::Open)
    }

    /// The partition begins at `low` now: returns what was deleted after the commit that was found. Where nothing has come
    /// since, the commit goes on to there.
    pub(crate) fn deleted(&self, low: u64) -> Option<Gap> {
        let mut state = self.state();
        let start = state.unasked.take()?;
        if low <= start {
            return None;
        }
        let gap = Gap { from: start, to: low, done: state.handover.done_within(start, low) };
        state.gap.take_if(|gap| gap.from < low);
        state.low = state.low.max(low);
        if state.tracker.next().is_none() {
            state.tracker.passes(low);
            state.has_ended |= state.handover.reached(low);
            state.is_dirty = true;
            self.measure(&state);
        }
        Some(gap)
    }

    /// The gap was looked at; the partition begins at `low` now.
    pub(crate) fn looked_at(&self, gap: Gap, low: u64) {
        let mut state = self.state();
        state.gap.take_if(|known| *known == gap);
        state.low = state.low.max(low);
    }

    /// A run of the record at this offset begins alone. How many began before and did not end.
    pub(crate) fn begin(&self, offset: u64) -> Result<u32, Over> {
        let mut state = self.state();
        if state.is_over { Err(Over) } else { Ok(state.handover.begin(offset)) }
    }

    /// The run did not begin after all.
    pub(crate) fn retract(&self, offset: u64) {
        let mut state = self.state();
        state.handover.retract(offset);
        // That it was not marked is not sure.
        (state.is_dirty, state.has_ended) = (true, true);
    }

    /// The run has ended, and leaves so many marks.
    pub(crate) fn end(&self, offset: u64, left: u32) {
        let mut state = self.state();
        if state.handover.end(offset, left) {
            (state.is_dirty, state.has_ended) = (true, true);
        }
    }

    /// What to commit if marks were taken away; the group is then taken for told, until [`Self::not_told`] says otherwise.
    pub(crate) fn ended(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        if state.is_over || !std::mem::take(&mut state.has_ended) {
            return None;
        }
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        state.point(false)
    }

    pub(crate) fn not_told(&self) {
        self.state().has_ended = true;
    }

    pub(crate) fn has_news(&self) -> bool {
        let state = self.state();
        state.is_dirty || state.told < self.handed.load(Ordering::Relaxed) || self.grants(&state)
    }

    /// Returns true if a record waits for a commit, and few are not handed out of those that have waited.
    fn grants(&self, state: &State) -> bool {
        let is_waiting = state.awaiting.first().is_some_and(|first| !self.is_free(*first));
        is_waiting && state.granted.len() < AT_ONCE
    }

    /// What to commit if there is news; it is then taken for committed, until [`Self::not_committed`] says otherwise.
    pub(crate) fn news(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        state.granting = None;
        if state.is_over {
            return None;
        }
        let handed = self.handed.load(Ordering::Relaxed);
        let has_handed = std::mem::replace(&mut state.told, handed) < handed;
        let is_dirty = std::mem::take(&mut state.is_dirty);
        if self.grants(&state) {
            let room = AT_ONCE - state.granted.len();
            let last = state.awaiting.iter().take(room).next_back();
            let granting = last.map(|last| last.saturating_add(1));
            state.handover.hands_out(granting.unwrap_or(0));
            state.granting = granting;
        } else if !is_dirty && !has_handed {
            return None;
        }
        state.handover.hands_out(handed);
        state.point(false)
    }

    /// What to commit now; `None` while no offset is known, and when it was given up.
    pub(crate) fn point(&self, is_clean: bool) -> Option<(u64, String)> {
        let mut state = self.state();
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        if state.is_over { None } else { state.point(is_clean) }
    }

    pub(crate) fn not_committed(&self) {
        let mut state = self.state();
        (state.is_dirty, state.granting) = (true, None);
    }

    /// Nothing of it is yielded from now on.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// What ends from now on counts no more; this is the last commit of the assignment.
    pub(crate) fn close(&self, is_clean: bool) -> Option<(u64, String)> {
        self.leave();
        let mut state = self.state();
        if std::mem::replace(&mut state.is_over, true) || state.opening != Opening::Open {
            return None;
        }
        state.handover.hands_out(self.handed.load(Ordering::Relaxed));
        state.point(is_clean)
    }

    /// Whether this hop is seen for the first time, of a retry topic: of how many times the death was sent back, and how
    /// many times the message was given on since.
    pub(crate) fn is_first(&self, death: Death, replays: u32, escalations: u32) -> bool {
        self.state().hops.insert((death, replays, escalations))
    }

    /// This hop is about to be written again: the record that comes is no copy.
    pub(crate) fn comes_again(&self, death: Death, replays: u32, escalations: u32) {
        self.state().hops.forget((death, replays, escalations));
    }

    /// A record of it has come from the client.
    pub(crate) fn fetched(&self) {
        self.is_fetched.store(true, Ordering::Relaxed);
    }

    /// Where the client is told to pause a partition while it begins to fetch it, either may be lost. So it is told only
    /// after this.
    pub(crate) fn is_fetched(&self) -> bool {
        self.is_fetched.load(Ordering::Relaxed)
    }

    /// Whether no record before had headers that cannot be read.
    pub(crate) fn is_first_unreadable(&self) -> bool {
        !self.has_unreadable.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn taken(&self) {
        self.in_hand.fetch_add(1, Ordering::SeqCst);
    }

    /// A record was handed out to whoever handles it.
    pub(crate) fn handed_out(&self, offset: u64) {
        self.handed.fetch_max(offset.saturating_add(1), Ordering::Relaxed);
        if self.free.load(Ordering::Relaxed) != u64::MAX {
            self.state().granted.remove(&offset);
        }
    }

    /// Whether it was the last one.
    pub(crate) fn given(&self) -> bool {
        self.in_hand.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand.load(Ordering::SeqCst)
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How full it is, where 1 is the bound: of what is in flight, and of what waits.
    pub(crate) fn fullness(&self, span: u64, held: usize, held_bytes: usize) -> f64 {
        let part = |some: f64, of: f64| some / of.max(1.0);
        let limit = span.min(self.limit.load(Ordering::Relaxed));
        let spanned = part(self.span.load(Ordering::Relaxed) as f64, limit as f64);
        let count = part(self.held.load(Ordering::Relaxed) as f64, held as f64);
        let bytes = part(self.held_bytes.load(Ordering::Relaxed) as f64, held_bytes as f64);
        spanned.max(count).max(bytes)
    }
}

impl State {
    fn point(&self, is_clean: bool) -> Option<(u64, String)> {
        let position = self.position()?;
        let ranges = self.tracker.ranges();
        Some((position, self.handover.write(is_clean, position, ranges, ROOM - self.cut)))
    }

    fn passes_over(&mut self, from: u64, to: u64) {
        let from = from.max(self.low);
        if from >= to {
            return;
        }
        let gap = Gap { from, to, done: self.handover.done_within(from, to) };
        if self.gap.is_none_or(|known| known.to - known.from < to - from) {
            self.gap = Some(gap);
        }
    }

    /// Before it everything is done.
    fn position(&self) -> Option<u64> {
        self.tracker.position().or(self.start)
    }
}

/// The latest hops of a retry topic.
#[derive(Debug, Default)]
struct Hops {
    known: HashSet<Hop>,
    order: VecDeque<Hop>,
}

type Hop = (Death, u32, u32);

impl Hops {
    fn insert(&mut self, hop: Hop) -> bool {
        if !self.known.insert(hop) {
            return false;
        }
        self.order.push_back(hop);
        if self.order.len() > HOPS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// The oldest are forgotten first as a rule, and so it is found soon.
    fn forget(&mut self, hop: Hop) {
        if self.known.remove(&hop)
            && let Some(at) = self.order.iter().position(|one| *one == hop)
        {
            self.order.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Partition {
        fn receive_one(&self, offset: u64) -> Received {
            let mut received = Received::default();
            self.receive([(offset, &mut received)].into_iter());
            received
        }
    }

    fn open() -> Partition {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "")));
        partition.opened();
        partition
    }

    #[test]
    fn what_ends_after_it_was_given_up_counts_no_more() {
        let partition = open();
        let one = partition.receive_one(5);
        let two = partition.receive_one(6);
        partition.done(one.sequence).unwrap();
        assert_eq!(partition.close(true), Some((6, "dlq1;clean".to_owned())));
        assert!(partition.done(two.sequence).is_err());
        assert_eq!(partition.close(true), None, "it is given up once");
        assert_eq!(partition.news(), None, "nothing is said after the last word");
    }

    #[test]
    fn g3_a_record_beyond_a_gap_is_a_suspect_too() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((500, "dlq1;open;by=9;deaths=1;until=1000")));
        partition.opened();
        assert_eq!([500, 50_000].map(|offset| partition.receive_one(offset).deaths), [2, 2]);
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((500, "dlq1;open;by=9;handed=510;deaths=1;until=505;careful=900")));
        let deaths = [500, 509, 510, 50_000].map(|offset| partition.receive_one(offset).deaths);
        assert_eq!(deaths, [2, 2, 0, 0]);
        let well = open();
        assert_eq!([5, 50_000].map(|offset| well.receive_one(offset).deaths), [0, 0]);
    }

    #[test]
    fn g1_a_partition_without_a_commit_starts_at_the_first_record_that_came() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        let start = || partition.point(false).map(|(position, _)| position);
        partition.comes(3);
        assert_eq!(start(), None, "what was committed is not known yet");
        partition.found(None);
        assert_eq!(start(), Some(3), "it has to open without another record");
        partition.comes(4);
        assert_eq!(start(), Some(3));
        let quiet = Partition::new(1, "orders".into(), 0, None);
        quiet.found(None);
        assert_eq!(quiet.point(false), None);
        quiet.comes(7);
        assert_eq!(quiet.point(false).map(|(position, _)| position), Some(7));
        let known = Partition::new(1, "orders".into(), 0, None);
        known.comes(5);
        known.found(Some((2, "")));
        assert_eq!(known.point(false).map(|(position, _)| position), Some(2));
    }

    #[test]
    fn what_was_before_the_group_began_is_passed_over() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        assert!(partition.begins_at(7));
        assert_eq!(partition.point(false).map(|(position, _)| position), Some(7));
        let passed = [3, 4, 9, 3].map(|offset| partition.passes_over(offset));
        assert_eq!(passed, [Some(Some(7)), Some(None), None, None]);
    }

    #[test]
    fn g5_the_client_does_not_go_back_to_what_has_come() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        assert!(partition.begins_at(7));
        assert!((3..7).all(|offset| partition.passes_over(offset).is_some()));
        assert!(partition.is_before_end());
        assert!((7..=10).all(|offset| partition.passes_over(offset).is_none()));
        assert!(!partition.is_before_end(), "7 to 10 would come again");
    }

    #[test]
    fn g1_an_end_without_records_is_passed_unless_something_has_come() {
        let partition = open();
        assert_eq!(partition.rests_at(), Some(5));
        partition.passes(5, 7);
        assert_eq!(partition.news(), None, "it may be of the assignment before");
        partition.passes(5, 8);
        partition.passes(5, 5);
        partition.passes(5, 8);
        assert_eq!(partition.news(), None, "not twice in a row");
        passes(&partition, 5, 7);
        assert_eq!((partition.news().map(|news| news.0), partition.rests_at()), (Some(7), Some(7)));
        passes(&partition, 5, 9);
        assert_eq!(partition.news(), None, "it rests elsewhere");
        let received = partition.receive_one(8);
        assert_eq!(partition.rests_at(), None);
        passes(&partition, 7, 9);
        assert_eq!(partition.point(false).map(|point| point.0), Some(8));
        partition.done(received.sequence).unwrap();
        assert_eq!(partition.rests_at(), Some(9));
        partition.close(true);
        passes(&partition, 9, 10);
        assert_eq!(partition.point(false), None);
    }

    fn passes(partition: &Partition, from: u64, to: u64) {
        partition.passes(from, to);
        partition.passes(from, to);
    }

    #[test]
    fn g1_a_record_before_what_was_taken_for_the_end_takes_the_commit_back() {
        let partition = open();
        passes(&partition, 5, 7);
        assert_eq!(partition.news().map(|news| news.0), Some(7));
        let received = partition.receive_one(5);
        assert_eq!(partition.news().map(|news| news.0), Some(5));
        partition.receive_one(6);
        assert_eq!(partition.news(), None);
        partition.done(received.sequence).unwrap();
        assert_eq!(partition.news().map(|news| news.0), Some(6));
    }

    #[test]
    fn only_news_is_committed() {
        let partition = open();
        let records = [5, 6].map(|offset| partition.receive_one(offset));
        assert_eq!(partition.news(), None);
        partition.done(records[1].sequence).unwrap();
        let (position, metadata) = partition.news().expect("what is done behind it is told");
        assert!(position == 5 && metadata.ends_with(";done=5:BB"), "{metadata}");
        assert_eq!(partition.news(), None);
        partition.done(records[0].sequence).unwrap();
        assert_eq!(partition.news().map(|(position, _)| position), Some(7));
        assert_eq!(partition.news(), None);
        partition.not_committed();
        assert_eq!(partition.news().map(|(position, _)| position), Some(7));
    }

    #[test]
    fn a_partition_that_was_never_ours_by_word_leaves_nothing() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        assert_eq!(partition.close(true), None);
    }

    #[test]
    fn g1_what_an_owner_before_has_done_is_passed_over_and_nothing_else() {
        let found = || {
            let partition = Partition::new(1, "orders".into(), 0, None);
            partition.found(Some((5, "dlq1;clean;done=5:BB")));
            partition.opened();
            partition
        };
        let is_done = |partition: &Partition, offset| partition.receive_one(offset).is_done;
        let partition = found();
        let first = partition.receive_one(5);
        assert_eq!([6, 7].map(|offset| is_done(&partition, offset)), [true, false]);
        assert_eq!(partition.news(), None);
        partition.done(first.sequence).unwrap();
        assert_eq!(partition.news().map(|news| news.0), Some(7));
        // What the position stands at is not there any more.
        let partition = found();
        assert!(is_done(&partition, 6));
        assert_eq!(partition.news().map(|news| news.0), Some(7));
        assert_eq!(partition.rests_at(), Some(7));
        // The log is another than that of the commit.
        let partition = found();
        assert_eq!([3, 6].map(|offset| is_done(&partition, offset)), [false, false]);
        let partition = found();
        assert_eq!([8, 5, 6].map(|offset| is_done(&partition, offset)), [false, false, false]);
    }

    #[test]
    fn g1_what_was_deleted_before_it_was_read_is_counted_without_what_was_done() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "dlq1;clean;done=5:BB")));
        partition.opened();
        partition.receive_one(9);
        let gap = partition.gap().unwrap();
        assert_eq!([5, 7, 9, 20].map(|low| gap.lost(low)), [0, 1, 3, 3]);
        partition.receive_one(11);
        assert_eq!(partition.gap(), Some(gap), "it is the longest");
        partition.looked_at(gap, 0);
        assert_eq!(partition.gap(), None);
        let partition = open();
        partition.receive_one(5);
        assert_eq!(partition.gap(), None);
        let partition = open();
        passes(&partition, 5, 25);
        assert_eq!(partition.gap().map(|gap| gap.lost(25)), Some(20));
    }

    #[test]
    fn g1_what_was_deleted_after_a_commit_is_counted_once() {
        let found = || {
            let partition = Partition::new(1, "orders".into(), 0, None);
            partition.found(Some((5, "dlq1;clean;done=5:BB")));
            assert_eq!(partition.unasked(), None, "it is not open");
            partition.opened();
            assert_eq!(partition.unasked(), Some(5));
            partition
        };
        let partition = found();
        assert_eq!(partition.deleted(5), None);
        assert_eq!(partition.unasked(), None);
        // Nothing is left.
        let partition = found();
        assert_eq!(partition.deleted(20).map(|gap| gap.lost(20)), Some(14));
        assert_eq!(partition.news().map(|news| news.0), Some(20));
        partition.receive_one(20);
        assert_eq!(partition.gap(), None);
        // What is left has come by then.
        let partition = found();
        partition.receive_one(20);
        assert_eq!(partition.deleted(20).map(|gap| gap.lost(20)), Some(14));
        assert_eq!(partition.gap(), None);
        assert_eq!(partition.point(false).map(|point| point.0), Some(20));
        let partition = found();
        assert!(partition.deleted(20).is_some());
        partition.receive_one(25);
        assert_eq!(partition.gap().map(|gap| gap.lost(25)), Some(5));
    }

    #[test]
    fn g3_where_an_owner_has_died_none_is_handed_out_before_that_is_committed() {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "dlq1;open;by=9;handed=7")));
        partition.opened();
        let sequences: Vec<_> = (5..50).map(|at| partition.receive_one(at).sequence).collect();
        assert_eq!((5..50).filter(|at| partition.admits(*at)).collect::<Vec<_>>(), [5, 6]);
        let (_, metadata) = partition.news().unwrap();
        assert!(metadata.contains(";handed=23;"), "{metadata}");
        assert!(!partition.is_free(7), "it is not committed yet");
        partition.not_committed();
        partition.committed();
        assert!(!partition.is_free(7), "it was refused");
        assert!(partition.news().is_some());
        partition.committed();
        assert_eq!((5..50).filter(|at| partition.is_free(*at)).max(), Some(22));
        assert!(partition.awaits());
        assert_eq!(partition.news(), None, "nobody takes more");
        (5..23).for_each(|at| partition.handed_out(at));
        let (_, metadata) = partition.news().unwrap();
        assert!(metadata.contains(";handed=39;"), "{metadata}");
        for sequence in sequences {
            partition.done(sequence).unwrap();
        }
        let end = partition.receive_one(5_000);
        partition.done(end.sequence).unwrap();
        assert!(partition.admits(6_000), "nobody has died for a long time");
        assert!(open().admits(6_000));
    }

    #[test]
    fn metadata_that_is_too_long_for_the_brokers_is_shortened() {
        let partition = open();
        let all: Vec<_> = (5..1_000).map(|at| partition.receive_one(at).sequence).collect();
        for sequence in all.into_iter().skip(1).step_by(2) {
            partition.done(sequence).unwrap();
        }
        let length = || partition.point(true).unwrap().1.len();
        let mut lengths = vec![length()];
        for _ in 0..16 {
            partition.shortens();
            lengths.push(length());
        }
        assert!(lengths[0] > 900 && lengths[4] <= ROOM / 16, "{lengths:?}");
        assert_eq!(lengths[16], "dlq1;clean".len());
    }

    #[test]
    fn a_hop_that_is_written_again_is_no_copy() {
        let partition = open();
        let death = Death { letter: dlq_core::LetterId::from_bytes([7; 16]), generation: 1 };
        assert!(partition.is_first(death, 0, 1) && !partition.is_first(death, 0, 1));
        partition.comes_again(death, 0, 1);
        assert!(partition.is_first(death, 0, 1) && !partition.is_first(death, 0, 1));
    }

    #[test]
    fn what_is_remembered_of_hops_is_bounded() {
        let mut hops = Hops::default();
        let death =
            |n: u32| Death { letter: dlq_core::LetterId::from_bytes([7; 16]), generation: n };
        for n in 0..(HOPS as u32 + 5) {
            assert!(hops.insert((death(n), 0, 1)));
        }
        assert!(!hops.insert((death(6), 0, 1)));
        assert_eq!((hops.known.len(), hops.order.len()), (HOPS, HOPS));
    }
}
