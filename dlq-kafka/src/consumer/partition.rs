//! A partition while it is assigned to this process.

mod commit;
mod flow;
mod gaps;
mod hops;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use gaps::Gap;

use crate::consumer::handover::{Handover, REACH};
use crate::consumer::tracker::{Sequence, Tracker};
use hops::Hops;

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
    in_flight: Apart<AtomicUsize>,
    /// After the highest offset that was handed out.
    handed: AtomicU64,
    /// Records from this offset on may not be handed out before that is committed.
    free: AtomicU64,
    /// Records that wait for their time, or for one before them, and about how many bytes they are.
    held: AtomicUsize,
    held_bytes: AtomicUsize,
    has_unreadable: AtomicBool,
    /// True if the client fetches the partition, because a record of it has come.
    is_fetched: AtomicBool,
    /// True if the client has paused the partition, because enough of it is in memory or in flight.
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
    /// True if there is something to commit.
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
    /// True if marks were removed and the group may not know it yet.
    has_ended: bool,
    /// It was given up: nothing that ends now counts.
    is_over: bool,
    /// Start of a group that has committed nothing, while earlier records may still come, and whether the client was
    /// told.
    end: Option<(u64, bool)>,
    hops: Hops,
    /// Distance of the client's position from everything that is done, at the last look: from where and to where.
    ahead: Option<(u64, u64)>,
    /// The offset at which the partition began when that was asked last: what was deleted before it was told.
    low: u64,
}

/// State of taking over a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The state that the previous owner left is not known yet.
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
    /// Number of times that the record was handed out to owners that died.
    pub(crate) deaths: u32,
    /// An owner before has done it.
    pub(crate) is_done: bool,
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
            in_flight: Apart(AtomicUsize::new(0)),
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
        // Flow control reads these without the lock. A stale value pauses or resumes a partition one turn later.
        self.span.store(state.tracker.span(), Ordering::Relaxed);
        let limit = state.handover.limit().unwrap_or(u64::MAX);
        // This runs for each record. A store takes the cache line from those who only read it, so it is made on a change alone.
        if self.limit.load(Ordering::Relaxed) != limit {
            self.limit.store(limit, Ordering::Relaxed);
        }
        // Beyond the careful part no record waits for a commit any more, whatever was granted.
        if state.handover.limit().is_none() && self.free.load(Ordering::Relaxed) != u64::MAX {
            self.free.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(crate) fn opening(&self) -> Opening {
        self.state().opening
    }

    /// Takes over the commit of the previous owner and its metadata.
    pub(crate) fn found(&self, committed: Option<(u64, &str)>) {
        let mut state = self.state();
        match committed {
            None => (state.opening, state.start) = (Opening::First, state.first),
            Some((position, metadata)) => {
                state.handover = Handover::take_over(state.handover.owner(), metadata, position);
                (state.start, state.unasked) = (Some(position), Some(position));
                // The bound stands before the partition opens, and no record of the partition is handed out until then.
                self.free.store(state.handover.handed().unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        }
        self.measure(&state);
    }

    /// There is no commit, and the group begins here, at the end. Returns false if it has begun before that was answered.
    pub(crate) fn begins_at(&self, end: u64) -> bool {
        let mut state = self.state();
        // The answer may come after a rebalance or a commit, and a place that is known already is the one that counts.
        if state.opening != Opening::Unknown || state.start.is_some() {
            return false;
        }
        // The client may have begun at the first record already. `end` has what it delivers below passed over.
        (state.start, state.end) = (Some(end), Some((end, false)));
        true
    }

    /// Returns whether a received record is older than the start of the group; if so, also the offset that the client
    /// has to seek to, once.
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

    /// Returns true if nothing has come yet from the start of the group: seeking there now delivers nothing twice.
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

    /// Records were fetched, of which the offset is given and what is to be known is noted.
    pub(crate) fn receive<'a>(&self, records: impl Iterator<Item = (u64, &'a mut Received)>) {
        let mut state = self.state();
        let before = state.position();
        let mut has_passed = false;
        for (offset, received) in records {
            match state.tracker.next().or(state.start) {
                // Offsets go back only where the topic was made anew or has lost its end. The ranges are then of another log.
                Some(next) if offset < next => state.handover.forgets_done(),
                // A jump may be markers, compaction or deleted records; `Lost` finds out which.
                Some(next) if offset > next => state.passes_over(next, offset),
                _ => {}
            }
            let sequence = state.tracker.receive(offset);
            // Beyond a gap the next record may be anywhere, and have been in flight beside the first.
            if sequence < REACH {
                state.handover.reaches(offset);
            }
            let is_done = state.handover.is_done(offset);
            // It counts as received and done at once, so the position passes it as it passes any other record.
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
        // The client reports no error when it commits a lost partition, so an end that comes too late is refused here (G1).
        if state.is_over {
            return Err(Over);
        }
        let before = state.tracker.position();
        state.tracker.done(sequence);
        let position = state.tracker.position();
        // The commit has news without a new position as well: the ranges that are done above it.
        state.is_dirty = true;
        if position != before
            && let Some(position) = position
        {
            state.has_ended |= state.handover.reached(position);
        }
        self.measure(&state);
        Ok(())
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
        // The commit of the mark may have arrived although it failed, so its removal has to be committed.
        (state.is_dirty, state.has_ended) = (true, true);
    }

    /// The run has ended, and leaves so many marks.
    pub(crate) fn end(&self, offset: u64, left: u32) {
        let mut state = self.state();
        if state.handover.end(offset, left) {
            // `is_dirty` has the clock commit it. `has_ended` has it committed before another suspect runs (G3).
            (state.is_dirty, state.has_ended) = (true, true);
        }
    }

    /// Nothing of it is yielded from now on.
    pub(crate) fn leave(&self) {
        // The order is total with the count in `taken`: either `yielded` sees this flag, or the drain sees the delivery.
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }
}

impl State {
    /// Before it everything is done.
    fn position(&self) -> Option<u64> {
        self.tracker.position().or(self.start)
    }
}

#[cfg(test)]
mod tests;
