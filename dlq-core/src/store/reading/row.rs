use bytes::Bytes;

use crate::{Binding, DeadLetter, LetterId, LetterState, Message, Status, Timestamp};

/// Payloads up to so many bytes are kept; what is known of a letter is more than that.
const SMALL: usize = 1024;

/// A letter of a broker's dead letters, without its payload unless that is small, and the place where it stands there.
#[derive(Clone, Debug)]
pub struct Row<P> {
    /// The letter.
    pub letter: DeadLetter,
    /// Position of the letter.
    pub place: P,
    /// Size of the payload; `None` if the message has none.
    pub size: Option<u64>,
    /// Digest of payload and key.
    pub bytes: Binding,
    /// Id of the letter if another message has claimed its own before.
    pub conflicting: LetterId,
}

impl<P> Row<P> {
    /// Keeps the part of a whole letter that lists and counts need.
    pub fn new(mut letter: DeadLetter, place: P) -> Self {
        let message = &letter.message;
        let (bytes, conflicting) = (digest(message), letter.id.conflicting(message));
        let size = message.payload().map(|payload| payload.len() as u64);
        // A copy, which keeps nothing else in memory.
        let small = message.payload().filter(|payload| payload.len() <= SMALL);
        let small = small.map(|payload| Bytes::copy_from_slice(payload));
        letter.message = letter.message.with_payload(small);
        Self { letter, place, size, bytes, conflicting }
    }

    /// Makes a row of what was kept of one.
    #[must_use]
    pub fn kept(letter: DeadLetter, place: P, size: Option<u64>, bytes: Binding) -> Self {
        let conflicting = letter.id;
        Self { letter, place, size, bytes, conflicting }
    }

    /// Summarizes the letter, with the size of its payload.
    #[must_use]
    pub fn summary(&self) -> crate::LetterSummary {
        let mut summary = self.letter.summary();
        summary.payload_size = self.size;
        summary
    }

    /// The letter, if its payload is kept here.
    #[must_use]
    pub fn whole(&self) -> Option<&DeadLetter> {
        let is_whole = self.size.is_none() || self.letter.message.payload().is_some();
        is_whole.then_some(&self.letter)
    }

    /// The letter with its payload, if this is what it was.
    #[must_use]
    pub fn with_payload(&self, payload: Bytes) -> Option<DeadLetter> {
        let mut letter = self.letter.clone();
        letter.message = letter.message.with_payload(Some(payload));
        (digest(&letter.message) == self.bytes).then_some(letter)
    }
}

/// Record of how a death was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When, the last time.
    pub at: Timestamp,
    /// Number of times.
    pub times: u32,
}

impl Sent {
    /// Says so of a letter of which nothing is said yet.
    pub fn mark(&self, state: &mut LetterState) {
        state.status = Status::Sent;
        state.replays = state.replays.saturating_add(self.times);
        state.retry_count = state.retry_count.saturating_add(self.times);
        state.updated_at = self.at;
        state.last_retry_at = Some(self.at);
    }
}

/// The same for the same payload and key.
fn digest(message: &Message) -> Binding {
    // With a fixed id this is a hash of the bytes alone, so that messages of different letters can be compared.
    Binding::of(&LetterId::from_bytes([0; 16]), message)
}
