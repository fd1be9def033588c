use async_nats::jetstream::stream::Info;
use dlq_core::store::reading::{self, Collapsed, Sent};

use super::ledger::Marks;

/// Which state of the stream was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) created: String,
    last: u64,
    messages: u64,
}

impl Seen {
    pub(super) fn of(info: &Info) -> Self {
        let created = info.created.to_string();
        Self { created, last: info.state.last_sequence, messages: info.state.messages }
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
    /// How many messages of the stream are asked for at once.
    pub(super) batch: usize,
    pub(super) letters: Collapsed<u64>,
}

impl Snapshot {
    pub(super) fn new(seen: Seen, batch: usize) -> Self {
        Self { seen, marked: None, marks: Marks::new(), batch, letters: Collapsed::default() }
    }

    /// What was sent back is `marks`.
    pub(super) fn mark(&mut self, marked: Option<Seen>, marks: Marks) {
        self.letters
            .mark(|death| marks.get(death).map(|mark| Sent { at: mark.at, times: mark.times }));
        self.marked = marked;
        self.marks = marks;
    }
}
