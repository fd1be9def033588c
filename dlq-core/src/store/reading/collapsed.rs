use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{ByAge, groups, page, place, stats, with_prefix};
use crate::store::rules::{Arrival, Standing, death_arrives};
use crate::store::{Group, Stats};
use crate::{
    Binding, DeadLetter, Death, Filter, LetterId, LetterState, Message, Page, PageRequest, Status,
    Timestamp,
};

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
    /// Its state but for what was sent back.
    base: LetterState,
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
        let base = letter.state.clone();
        Self { letter, place, size, bytes, conflicting, base }
    }

    /// Makes a row of what was kept of one.
    #[must_use]
    pub fn kept(letter: DeadLetter, place: P, size: Option<u64>, bytes: Binding) -> Self {
        let (conflicting, base) = (letter.id, letter.state.clone());
        Self { letter, place, size, bytes, conflicting, base }
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

/// The letters of a broker as they stood when they were read: several copies are one letter, the latest death counts,
/// and no bytes are lost.
#[derive(Clone, Debug)]
pub struct Collapsed<P> {
    /// In boxes: a map of what is larger than some words moves much whenever it grows.
    rows: BTreeMap<LetterId, Box<Row<P>>>,
    by_age: BTreeSet<ByAge>,
}

impl<P> Default for Collapsed<P> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), by_age: BTreeSet::new() }
    }
}

impl<P> Collapsed<P> {
    /// Adds a letter that comes later than those before, and says what it meant to them.
    pub fn add(&mut self, mut row: Row<P>) -> Arrival {
        let arrival = self.arrives(&row);
        let mut there = arrival;
        while there == Arrival::Conflict {
            // The id under which it is kept may be taken as well: headers that claim an identity can be forged.
            row.letter.id = row.conflicting;
            row.conflicting = beyond(row.conflicting, &row.bytes);
            there = self.arrives(&row);
        }
        match there {
            Arrival::Known | Arrival::OutOfDate | Arrival::Conflict => return arrival,
            Arrival::New => {}
            Arrival::News => {
                // When it was first seen and how often it was sent back stay.
                if let Some(there) = self.rows.get(&row.letter.id) {
                    let (state, before) = (&mut row.base, &there.base);
                    state.created_at = before.created_at;
                    state.replays = state.replays.max(before.replays);
                    state.retry_count = state.retry_count.max(before.retry_count);
                    row.letter.state = row.base.clone();
                }
            }
        }
        self.by_age.insert(place(&row.letter));
        self.rows.insert(row.letter.id, Box::new(row));
        arrival
    }

    fn arrives(&self, row: &Row<P>) -> Arrival {
        let standing = self.rows.get(&row.letter.id).map(|there| Standing {
            generation: there.letter.generation,
            is_record: false,
            is_claimed: false,
            attempts: there.letter.attempts,
            has_same_bytes: there.bytes == row.bytes,
        });
        death_arrives(standing, row.letter.generation)
    }

    /// Says what was sent back: these deaths, and no others.
    pub fn mark(&mut self, sent: impl Fn(&Death) -> Option<Sent>) {
        for row in self.rows.values_mut() {
            let death = row.letter.death();
            let state = &mut row.letter.state;
            *state = row.base.clone();
            if let Some(sent) = sent(&death) {
                sent.mark(state);
            }
        }
    }

    /// Forgets the letters of which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&Row<P>) -> bool) {
        let by_age = &mut self.by_age;
        self.rows.retain(|_, row| keep(row) || !by_age.remove(&place(&row.letter)));
    }

    /// The letter of this id.
    #[must_use]
    pub fn get(&self, id: &LetterId) -> Option<&Row<P>> {
        self.rows.get(id).map(Box::as_ref)
    }

    /// Every letter that matches, oldest first.
    #[must_use]
    pub fn matching<'a, 'f>(
        &'a self,
        filter: &'f Filter,
    ) -> impl DoubleEndedIterator<Item = &'a Row<P>> + use<'a, 'f, P> {
        let rows = self.by_age.iter().filter_map(|(_, id)| self.get(id));
        rows.filter(|row| filter.matches(&row.letter))
    }

    /// As [`Letters::with_prefix`](crate::store::Letters::with_prefix).
    #[must_use]
    pub fn with_prefix(&self, digits: &str, limit: u32) -> Vec<LetterId> {
        with_prefix(&self.rows, digits, limit)
    }

    /// As [`Letters::list`](crate::store::Letters::list).
    #[must_use]
    pub fn page(&self, filter: &Filter, request: PageRequest) -> Page {
        let letter = |id: &LetterId| self.rows.get(id).map(|row| &row.letter);
        let mut page = page(&self.by_age, letter, filter, request);
        page.letters.iter_mut().for_each(|letter| self.measure(letter));
        page
    }

    /// As [`Letters::count`](crate::store::Letters::count).
    #[must_use]
    pub fn count(&self, filter: &Filter) -> u64 {
        self.matching(filter).count() as u64
    }

    /// As [`Letters::groups`](crate::store::Letters::groups).
    #[must_use]
    pub fn groups(&self, filter: &Filter, limit: u32) -> Vec<Group> {
        let mut groups = groups(self.matching(filter).map(|row| &row.letter), limit);
        groups.iter_mut().for_each(|group| self.measure(&mut group.sample));
        groups
    }

    /// As [`Letters::stats`](crate::store::Letters::stats).
    #[must_use]
    pub fn stats(&self, filter: &Filter) -> Stats {
        stats(self.matching(filter).map(|row| &row.letter))
    }

    /// Says how large the payload of a letter is, which may not be here.
    pub fn measure(&self, summary: &mut crate::LetterSummary) {
        summary.payload_size = self.rows.get(&summary.id).and_then(|row| row.size);
    }
}

/// The next id for a message with these bytes, whose payload is not here any more.
fn beyond(id: LetterId, bytes: &Binding) -> LetterId {
    id.conflicting(&Message::new("", bytes.as_bytes().to_vec()))
}

/// The same for the same payload and key.
fn digest(message: &Message) -> Binding {
    Binding::of(&LetterId::from_bytes([0; 16]), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorClass, Origin, Position, Reason};

    fn letter(message: Message, generation: u32) -> DeadLetter {
        let origin = Origin::new("memory", "orders", Position::Offset(7));
        DeadLetter {
            id: LetterId::of(&origin, None, "a"),
            generation,
            message,
            origin,
            consumer: "a".to_owned(),
            service: None,
            reason: Reason::Exhausted,
            class: ErrorClass::Transient,
            cause: None,
            history: crate::History::new(),
            attempts: 1,
            deliveries: 1,
            crashes: 0,
            delayed_retries: 0,
            fingerprint: crate::Fingerprint::of("a", Reason::Exhausted, None),
            died_at: Timestamp::EPOCH,
            confirmed: true,
            attributes: BTreeMap::new(),
            state: LetterState::default(),
        }
    }

    fn read(letters: impl IntoIterator<Item = DeadLetter>) -> Vec<(Bytes, u32)> {
        let mut all = Collapsed::default();
        for (place, letter) in letters.into_iter().enumerate() {
            let _ = all.add(Row::new(letter, place));
        }
        let mut rows: Vec<_> = all
            .matching(&Filter::new())
            .map(|row| row.letter.clone())
            .map(|letter| {
                (letter.message.payload().cloned().unwrap_or_default(), letter.generation)
            })
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn g2_messages_that_claim_one_identity_are_all_read() {
        let message = |payload: &'static str| Message::new("s", payload);
        let one = || letter(message("one"), 0);
        let of = |key: &'static str, generation| letter(message("x").with_key(key), generation);
        assert_eq!(read([one(), of("a", 0), of("b", 0)]).len(), 3, "two keys");
        let later = [one(), of("a", 4), of("a", 5), letter(message("one"), 1)];
        assert_eq!(read(later), [("one".into(), 1), ("x".into(), 5)], "at a later generation");
        let absurd = [letter(message("one"), u32::MAX), one(), letter(message("one"), 1)];
        assert_eq!(read(absurd), [("one".into(), 1), ("one".into(), u32::MAX)]);
        // Somebody else has the id under which it would be kept.
        let other = of("a", 0);
        let taken =
            DeadLetter { id: other.id.conflicting(&other.message), ..letter(message("taken"), 0) };
        assert_eq!(read([one(), taken, other.clone(), other]).len(), 3, "the id is taken");
    }
}
