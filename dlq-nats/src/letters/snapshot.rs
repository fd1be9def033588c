use std::collections::HashMap;

use async_nats::jetstream::stream::Info;
use dlq_core::store::reading::{self, Collapsed, Sent};
use dlq_core::store::rules::Arrival;
use dlq_core::{Death, LetterId};

use super::ledger::Marks;

/// Which state of the stream was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) created: String,
    pub(super) last: u64,
    messages: u64,
}

impl Seen {
    pub(super) fn of(info: &Info) -> Self {
        let created = info.created.to_string();
        Self { created, last: info.state.last_sequence, messages: info.state.messages }
    }

    /// Whether something has been removed since this was seen, and before that was.
    pub(super) fn has_lost(&self, now: &Self) -> bool {
        now.messages != self.messages.saturating_add(now.last.saturating_sub(self.last))
    }
}

/// A letter and its sequence.
pub(super) type Row = reading::Row<u64>;

/// The letters of a stream as they stood when it was read.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) seen: Seen,
    /// The state of the ledger, where there is one.
    pub(super) marked: Option<Seen>,
    pub(super) marks: Marks,
    pub(super) letters: Collapsed<u64>,
    /// The last letter that was read, by which the stream is known again.
    pub(super) last: Option<(u64, Death)>,
    /// Where other messages of a letter stand: copies, and its deaths before.
    others: HashMap<LetterId, Vec<u64>>,
    /// Whether two messages claim one identity, of which the first has it.
    has_conflict: bool,
}

impl Snapshot {
    pub(super) fn new(seen: Seen) -> Self {
        Self {
            seen,
            marked: None,
            marks: Marks::new(),
            letters: Collapsed::default(),
            last: None,
            others: HashMap::new(),
            has_conflict: false,
        }
    }

    /// Adds a letter that stands behind all others.
    pub(super) fn add(&mut self, row: Row) {
        let (id, place) = (row.letter.id, row.place);
        self.last = Some((place, row.letter.death()));
        let before = self.letters.get(&id).map(|before| before.place);
        let other = match self.letters.add(row) {
            Arrival::New => None,
            Arrival::News => before,
            Arrival::Known | Arrival::OutOfDate => Some(place),
            Arrival::Conflict => {
                self.has_conflict = true;
                None
            }
        };
        if let Some(other) = other {
            self.others.entry(id).or_default().push(other);
        }
    }

    /// Forgets letters whose messages have gone: whether that is all there is to it. Otherwise another message has what
    /// one of them had.
    pub(super) fn forget(&mut self, has_gone: impl Fn(u64) -> bool) -> bool {
        self.others.retain(|_, places| {
            places.retain(|place| !has_gone(*place));
            !places.is_empty()
        });
        let (others, mut is_all) = (&self.others, !self.has_conflict);
        self.letters.retain(|row| {
            let stays = !has_gone(row.place);
            is_all &= stays || !others.contains_key(&row.letter.id);
            stays
        });
        is_all
    }

    /// What was sent back is `marks`.
    pub(super) fn mark(&mut self, marked: Option<Seen>, marks: Marks) {
        self.letters
            .mark(|death| marks.get(death).map(|mark| Sent { at: mark.at, times: mark.times }));
        self.marked = marked;
        self.marks = marks;
    }

    /// The same of letters that have come since.
    pub(super) fn mark_news(&mut self) {
        let (marked, marks) = (self.marked.take(), std::mem::take(&mut self.marks));
        self.mark(marked, marks);
    }
}
