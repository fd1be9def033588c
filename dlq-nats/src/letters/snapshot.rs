use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::stream::Info;
use bytes::Bytes;
use dlq_core::store::reading;
use dlq_core::store::rules::{Arrival, Standing, death_arrives};
use dlq_core::{
    Binding, Cursor, DeadLetter, Filter, LetterId, LetterState, LetterSummary, Message, Status,
};

use super::StoredLetter;
use super::ledger::Marks;

/// Which state of the stream was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    created: String,
    last: u64,
    messages: u64,
}

impl Seen {
    pub(super) fn of(info: &Info) -> Self {
        let created = info.created.to_string();
        Self { created, last: info.state.last_sequence, messages: info.state.messages }
    }
}

/// Payloads up to so many bytes are kept; what is known of a letter is more than that.
const SMALL: usize = 1024;

/// A letter, without its payload unless that is small.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) letter: DeadLetter,
    pub(super) sequence: u64,
    size: Option<u64>,
    bytes: Binding,
    /// Its state but for what the ledger says.
    base: LetterState,
}

impl Row {
    /// The letter, if its payload is kept here.
    pub(super) fn whole(&self) -> Option<&DeadLetter> {
        let is_whole = self.size.is_none() || self.letter.message.payload().is_some();
        is_whole.then_some(&self.letter)
    }

    /// The letter with its payload, if this is what it was.
    pub(super) fn with_payload(&self, payload: Bytes) -> Option<DeadLetter> {
        let mut letter = self.letter.clone();
        letter.message = letter.message.with_payload(Some(payload));
        (digest(&letter.message) == self.bytes).then_some(letter)
    }
}

/// The letters of a stream as they stood when it was read: several copies are one letter, the latest death counts, and
/// no bytes are lost.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) seen: Seen,
    /// The state of the ledger, where there is one.
    pub(super) marked: Option<Seen>,
    pub(super) marks: Marks,
    /// How many messages of the stream are asked for at once.
    pub(super) batch: usize,
    pub(super) rows: BTreeMap<LetterId, Row>,
    pub(super) by_age: BTreeSet<Cursor>,
}

impl Snapshot {
    pub(super) fn new(seen: Seen, batch: usize) -> Self {
        let (rows, by_age) = (BTreeMap::new(), BTreeSet::new());
        Self { seen, marked: None, marks: Marks::new(), batch, rows, by_age }
    }

    /// What was sent back is `sent`.
    pub(super) fn mark(&mut self, marked: Option<Seen>, marks: Marks) {
        for row in self.rows.values_mut() {
            let death = row.letter.death();
            let state = &mut row.letter.state;
            *state = row.base.clone();
            if let Some(mark) = marks.get(&death) {
                state.status = Status::Sent;
                state.replays = state.replays.saturating_add(mark.times);
                state.retry_count = state.retry_count.saturating_add(mark.times);
                state.updated_at = mark.at;
                state.last_retry_at = Some(mark.at);
            }
        }
        self.marked = marked;
        self.marks = marks;
    }

    /// A letter that comes later in the stream than those before.
    pub(super) fn add(&mut self, stored: StoredLetter) {
        let StoredLetter { mut letter, sequence } = stored;
        let message = &letter.message;
        let bytes = digest(message);
        let there = self.rows.get(&letter.id);
        let standing = there.map(|there| Standing {
            generation: there.letter.generation,
            is_record: false,
            is_claimed: false,
            attempts: there.letter.attempts,
            has_same_bytes: there.bytes == bytes,
        });
        match death_arrives(standing, letter.generation) {
            Arrival::Known | Arrival::OutOfDate => return,
            Arrival::New => {}
            Arrival::News => {
                // When it was first seen and how often it was sent back stay.
                if let Some(there) = there {
                    let (state, before) = (&mut letter.state, &there.base);
                    state.created_at = before.created_at;
                    state.replays = state.replays.max(before.replays);
                    state.retry_count = state.retry_count.max(before.retry_count);
                }
            }
            Arrival::Conflict => {
                letter.id = letter.id.conflicting(message);
                return self.add(StoredLetter { letter, sequence });
            }
        }
        let size = letter.message.payload().map(|payload| payload.len() as u64);
        // A copy, which keeps nothing else in memory.
        let small = letter.message.payload().filter(|payload| payload.len() <= SMALL);
        let small = small.map(|payload| Bytes::copy_from_slice(payload));
        letter.message = letter.message.with_payload(small);
        self.by_age.insert(reading::place(&letter));
        let base = letter.state.clone();
        self.rows.insert(letter.id, Row { letter, sequence, size, bytes, base });
    }

    /// Every letter that matches, oldest first.
    pub(super) fn matching<'a>(
        &'a self,
        filter: &'a Filter,
    ) -> impl DoubleEndedIterator<Item = &'a Row> {
        let rows = self.by_age.iter().filter_map(|place| self.rows.get(&place.id));
        rows.filter(|row| filter.matches(&row.letter))
    }

    /// Says how large the payload is, which may not be here.
    pub(super) fn measure(&self, summary: &mut LetterSummary) {
        summary.payload_size = self.rows.get(&summary.id).and_then(|row| row.size);
    }
}

/// The same for the same payload and key.
fn digest(message: &Message) -> Binding {
    Binding::of(&LetterId::from_bytes([0; 16]), message)
}
