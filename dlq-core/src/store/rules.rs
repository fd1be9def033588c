//! Decisions that every store makes in the same way, as pure functions: what an arriving letter means to the stored
//! one, and how a letter changes when something happens to it. A store looks up, asks here, and writes the answer in
//! one step.
//!
//! A row whose letter waits for another attempt (`retrying`, or claimed from there) is a *record*: it has the
//! generation of the death that the message would die next. Any other row has the generation of its last death.

use super::Receipt;
use crate::fingerprint::Fingerprint;
use crate::{
    Binding, DeadLetter, Death, DelayedRetry, ErrorClass, History, LetterState, Message, Reason,
    Resolution, Status, Timestamp,
};

/// The row under the id of a letter that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its generation.
    pub generation: u32,
    /// True if the letter is a retry record: `retrying`, or claimed from there.
    pub is_record: bool,
    /// True if somebody has claimed the letter and has not finished, whether or not the lease has ended.
    pub is_claimed: bool,
    /// Handler runs that it knows of.
    pub attempts: u32,
    /// True if the row [is known](is_known_by_bytes) by the bytes of the arriving letter, or the store takes both for
    /// the same original message.
    pub has_same_bytes: bool,
}

/// Meaning of an arriving letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing is there: write it.
    New,
    /// It is known: change nothing.
    Known,
    /// It is news about the letter that is there: that letter takes it over.
    News,
    /// It is out of date: change nothing.
    OutOfDate,
    /// It is another message with the same identity: keep both, this one under
    /// [`LetterId::conflicting`](crate::LetterId::conflicting), by the same rules.
    Conflict,
}

/// Returns true if a letter of generation `generation` is of another message than the row under its id: going by its bytes, or by
/// a generation that no message reaches. Headers that claim an identity can be forged, and a generation that is compared
/// with an absurd one would be out of date for ever.
fn is_another(row: Standing, generation: u32) -> bool {
    let is_absurd = |generation| generation > Death::MAX_GENERATION;
    !row.has_same_bytes || is_absurd(generation) != is_absurd(row.generation)
}

/// Returns what a death of generation `generation` means to the row under its id.
///
/// Only what is known by its bytes is out of date, or news: another message with the same identity is kept beside the one
/// that is there, however often each has died.
#[must_use]
pub fn death_arrives(row: Option<Standing>, generation: u32) -> Arrival {
    match row {
        None => Arrival::New,
        Some(row) if is_another(row, generation) => Arrival::Conflict,
        Some(row) if generation > row.generation => Arrival::News,
        Some(row) if generation < row.generation => Arrival::OutOfDate,
        // A record has the generation of its next death, which has come now.
        Some(row) if row.is_record => Arrival::News,
        Some(_) => Arrival::Known,
    }
}

/// Returns what a retry record of generation `generation` after `attempts` handler runs means to the row under its id.
///
/// A death is never taken back by a record of the same generation, and a record in somebody's hands is left to them.
#[must_use]
pub fn record_arrives(row: Option<Standing>, generation: u32, attempts: u32) -> Arrival {
    match row {
        None => Arrival::New,
        Some(row) if is_another(row, generation) => Arrival::Conflict,
        Some(row) if generation > row.generation => Arrival::News,
        Some(row) if generation < row.generation => Arrival::OutOfDate,
        // Of two records of one generation the one that knows of more attempts stands (G3).
        Some(row) if row.is_record && !row.is_claimed && attempts > row.attempts => Arrival::News,
        Some(_) => Arrival::Known,
    }
}

/// Returns true if two messages have the same payload and the same key; absent differs from empty.
#[must_use]
pub fn same_bytes(one: &Message, other: &Message) -> bool {
    one.payload() == other.payload() && one.key() == other.key()
}

/// Returns true if the bytes of `news` are those of the letter under its id, or were before either was edited.
#[must_use]
pub fn is_known_by_bytes(row: &DeadLetter, news: &DeadLetter) -> bool {
    let was = |one: &DeadLetter, other: &DeadLetter| {
        let former = &one.state.edited_from;
        // Hardly any letter was edited, and a binding is a hash over the whole payload.
        !former.is_empty() && former.contains(&Binding::of(&one.id, &other.message))
    };
    // Either of the two may be the edited one, since a letter can be restored from another store.
    same_bytes(&row.message, &news.message) || was(row, news) || was(news, row)
}

/// `letter` as it is restored: with its state, but in nobody's hands and in no operation. One that was being run is
/// pending; one that waits for a retry is due at the latest now where nothing else was arranged.
pub fn restored(mut letter: DeadLetter, now: Timestamp) -> DeadLetter {
    let state = &mut letter.state;
    // The claim is one of the other store. Nobody would ever end it here.
    if state.status == Status::Replaying {
        state.status = Status::Pending;
    }
    // The operation belongs to the store that the letter was read from.
    state.operation = None;
    state.due = match state.status {
        Status::Pending => state.due,
        // A record that is never due is claimed by nobody and would wait for ever.
        Status::Retrying => state.due.or(Some(now)),
        _ => None,
    };
    state.resolution = (state.status == Status::Resolved)
        // Every resolved letter has a resolution. Where it is missing, this one claims the least: no handler is said to
        // have succeeded.
        .then(|| state.resolution.unwrap_or(Resolution::Dismissed));
    letter
}

/// Returns the text for the audit about restored letters, as JSON: their number, and the number of each receipt. Also
/// returns the number of those that are new or changed.
#[must_use]
pub fn restored_subject(receipts: &[Receipt]) -> (String, u64) {
    let count = |of: fn(&Receipt) -> bool| receipts.iter().filter(|receipt| of(receipt)).count();
    let (stored, reopened) =
        (count(|it| *it == Receipt::Stored), count(|it| *it == Receipt::Reopened));
    let subject = serde_json::json!({
        "letters": receipts.len(),
        "stored": stored,
        "reopened": reopened,
        "merged": count(|it| matches!(it, Receipt::Merged(_))),
        "conflicting": count(|it| matches!(it, Receipt::Conflicting(_))),
    });
    (subject.to_string(), (stored + reopened) as u64)
}

/// The retry record that `delayed_retry` leaves in a store: a letter that is `retrying`, of the generation that its death
/// would have. Its reason is the one it would die of.
pub fn retry_record(delayed_retry: DelayedRetry, now: Timestamp) -> DeadLetter {
    let DelayedRetry { delivery, consumer, due, history, attempts } = delayed_retry;
    let death = delivery.death(&consumer);
    let mut record = DeadLetter {
        id: death.letter,
        generation: death.generation,
        message: delivery.message().clone(),
        origin: delivery.origin().clone(),
        consumer: consumer.to_string(),
        service: None,
        reason: Reason::Exhausted,
        class: ErrorClass::default(),
        cause: None,
        history,
        attempts,
        deliveries: delivery.deliveries(),
        crashes: delivery.crashes(),
        delayed_retries: delivery.delayed_retries().saturating_add(1),
        fingerprint: Fingerprint::of(&consumer, Reason::Exhausted, None),
        died_at: now,
        confirmed: true,
        attributes: std::collections::BTreeMap::new(),
        state: LetterState { status: Status::Retrying, due: Some(due), ..born(now) },
    };
    take_last_failure(&mut record);
    record
}

/// The state of a letter that is new to a store.
#[must_use]
pub fn born(now: Timestamp) -> LetterState {
    LetterState { created_at: now, updated_at: now, ..LetterState::default() }
}

/// A letter as it is put into a store: what was said of it before is not believed, except that it was sent back, and how
/// often, and that it is quarantined. So says a broker of whose letters some were sent back before there was a store, and of
/// whose letters some may have been.
pub fn put(mut letter: DeadLetter, now: Timestamp) -> DeadLetter {
    let said = std::mem::replace(&mut letter.state, born(now));
    waits(&mut letter, &said, now);
    letter
}

/// `letter` died anew: it takes over everything of `death` except id and state, and waits again, unless that death was sent
/// back, or quarantined, before it came here. When it died first and how often it was sent back stay; a retry
/// record of the first generation has not died before.
pub fn reopen(letter: &mut DeadLetter, death: DeadLetter, now: Timestamp) {
    if (letter.generation, death.generation) == (0, 0) {
        // It was a retry record until now: whoever looks for what died of late finds it.
        letter.state.created_at = now;
    }
    let said = death.state.clone();
    take(letter, death);
    waits(letter, &said, now);
}

/// Lets `letter` take over a later death that was put or [restored], as [`reopen`] does. A letter that is restored as
/// resolved was handled after that death, and stays resolved.
pub fn replace(letter: &mut DeadLetter, news: DeadLetter, now: Timestamp) {
    let handled = handled(&news);
    reopen(letter, news, now);
    if let Some(resolution) = handled {
        resolve(letter, resolution, now);
    }
}

/// The resolution of `news`, which a store believes of a [restored] letter only.
fn handled(news: &DeadLetter) -> Option<Resolution> {
    news.state.resolution.filter(|_| news.state.status == Status::Resolved)
}

/// `letter` waits, unless it is `said` that it was sent back already, or may have been and is quarantined.
fn waits(letter: &mut DeadLetter, said: &LetterState, now: Timestamp) {
    put_back(letter, Status::Pending, now);
    let state = &mut letter.state;
    // Both sides tell of the same replays, so the higher count stands. Each replay is a retry as well, so that the second
    // count is never below the first.
    state.replays = state.replays.max(said.replays);
    state.retry_count = state.retry_count.max(said.retry_count).max(said.replays);
    match said.status {
        Status::Sent => (state.status, state.last_retry_at) = (Status::Sent, said.last_retry_at),
        Status::Quarantined => state.status = Status::Quarantined,
        _ => {}
    }
}

/// A record is news about `letter`: it takes over everything of `record` except id, and waits until that is due. It stays
/// with its operation, which hears of the end; one that died anew has been taken from it before.
pub fn take_record(letter: &mut DeadLetter, record: DeadLetter, now: Timestamp) {
    let (due, operation) = (record.state.due, letter.state.operation);
    take(letter, record);
    put_back(letter, Status::Retrying, now);
    // `put_back` has cleared both fields.
    letter.state.due = due;
    letter.state.operation = operation;
}

/// Another letter of the same original message died: `letter` takes over everything of `death` except id and state,
/// is seen once more, and waits again as one that is [reopened](reopen); one that was set aside stays so, and so does one
/// that was resolved, where the other is [restored] as resolved.
pub fn merge(letter: &mut DeadLetter, death: DeadLetter, now: Timestamp) {
    // The generation never falls, or a death that is known would be news when it arrives again.
    let generation = letter.generation.max(death.generation);
    let said = death.state.clone();
    let handled = handled(&death).filter(|_| letter.state.status == Status::Resolved);
    take(letter, death);
    letter.generation = generation;
    letter.state.seen = letter.state.seen.saturating_add(1);
    let quarantined = letter.state.status == Status::Quarantined;
    waits(letter, &said, now);
    if quarantined {
        letter.state.status = Status::Quarantined;
    }
    if let Some(resolution) = handled {
        resolve(letter, resolution, now);
    }
}

/// A claim of `letter` ended well.
pub fn resolve(letter: &mut DeadLetter, resolution: Resolution, now: Timestamp) {
    put_back(letter, Status::Resolved, now);
    letter.state.resolution = Some(resolution);
}

/// Nothing is arranged for `letter` any more; it has `status`.
pub fn put_back(letter: &mut DeadLetter, status: Status, now: Timestamp) {
    let state = &mut letter.state;
    state.status = status;
    state.resolution = None;
    state.due = None;
    state.operation = None;
    state.updated_at = now;
}

/// A claim of `letter` ended with a failure that may be retried: it is a record from now on, or goes on being one.
///
/// `crashes` are those that the claim showed, `continues` whether the letter was a record before the claim.
pub fn retry(letter: &mut DeadLetter, run: Retried, now: Timestamp) {
    if run.continues {
        letter.delayed_retries = letter.delayed_retries.saturating_add(1);
    } else {
        // The letter becomes a record, which has the generation of its next death.
        letter.generation = letter.generation.saturating_add(1);
        letter.delayed_retries = 1;
    }
    letter.history = run.history;
    letter.attempts = run.attempts;
    letter.crashes = run.crashes;
    letter.died_at = now;
    take_last_failure(letter);
    // The operation stays, unlike in `put_back`: the letter counts as released until its last attempt has ended.
    letter.state.status = Status::Retrying;
    letter.state.due = Some(run.due);
    letter.state.updated_at = now;
}

/// A run of a letter that failed and may be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retried {
    /// True if the letter was a retry record before.
    pub continues: bool,
    /// Crashes that its claim showed.
    pub crashes: u32,
    /// When the next attempt may run.
    pub due: Timestamp,
    /// Every attempt so far.
    pub history: History,
    /// Handler runs so far in this generation.
    pub attempts: u32,
}

/// The crashes that a claim shows: for a record those before it was written and the leases that ended unfinished since
/// (`lapses`); for a letter that begins a new generation only the latter.
#[must_use]
pub fn crashes_shown(letter: &DeadLetter, continues: bool, lapses: u32) -> u32 {
    if continues { letter.crashes.saturating_add(lapses) } else { lapses }
}

/// `letter` is sent back by an operation: due now, and counted.
pub fn release(letter: &mut DeadLetter, now: Timestamp) {
    let state = &mut letter.state;
    state.due = Some(now);
    state.retry_count = state.retry_count.saturating_add(1);
    state.replays = state.replays.saturating_add(1);
    state.updated_at = now;
}

/// `letter` is sent back by the automatic schedule: due now, and counted.
pub fn schedule(letter: &mut DeadLetter, now: Timestamp) {
    // `replays` stays: its cap (G7) is for operators. The automatic schedule has a limit of its own on `retry_count`.
    letter.state.due = Some(now);
    letter.state.retry_count = letter.state.retry_count.saturating_add(1);
    letter.state.updated_at = now;
}

/// Sets `letter` aside for this reason. Nothing is counted.
pub fn quarantine(letter: &mut DeadLetter, reason: Reason, now: Timestamp) {
    put_back(letter, Status::Quarantined, now);
    letter.reason = reason;
}

/// The original message of a letter, where its producer names it: stores that deduplicate keep one letter for each.
///
/// The event it reports (or, without one, the subject it was addressed to), the producer's id and the consumer. A
/// message whose id is absent or empty is the same as no other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey {
    /// True if `name` is an event; false if it is a subject.
    pub is_event: bool,
    /// The event or the subject.
    pub name: String,
    /// The producer's id.
    pub message_id: String,
    /// Consumer that gave the message up.
    pub consumer: String,
}

impl DedupKey {
    /// The key of `letter`; `None` when its producer's id is absent or empty.
    #[must_use]
    pub fn of(letter: &DeadLetter) -> Option<Self> {
        let message = &letter.message;
        let message_id = message.id().filter(|id| !id.is_empty())?;
        let (is_event, name) =
            message.event().map_or((false, message.subject()), |event| (true, event));
        Some(Self {
            is_event,
            name: name.to_owned(),
            message_id: message_id.to_owned(),
            consumer: letter.consumer.clone(),
        })
    }

    /// Returns the key as a store keeps it: the kind of the name, then each text after its length.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.is_event)];
        for text in [&self.name, &self.message_id, &self.consumer] {
            // Lengths keep apart keys whose texts would join to the same bytes.
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    /// Reads the key that [`to_bytes`](Self::to_bytes) wrote; `None` for bytes that it does not write.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (is_event, mut rest) = bytes.split_first()?;
        let mut text = || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            String::from_utf8(text.to_vec()).ok()
        };
        let (name, message_id, consumer) = (text()?, text()?, text()?);
        Some(Self { is_event: *is_event != 0, name, message_id, consumer })
    }
}

fn take_last_failure(letter: &mut DeadLetter) {
    if let Some(failure) = letter.history.last() {
        letter.class = failure.class;
        letter.cause = Some(failure.cause);
    }
    letter.fingerprint = Fingerprint::of(&letter.consumer, letter.reason, letter.history.last());
}

fn take(letter: &mut DeadLetter, news: DeadLetter) {
    let (id, mut state) = (letter.id, letter.state.clone());
    // The letter goes on being known by all bytes that it ever had (G2).
    let former = &news.state.edited_from;
    let more: Vec<_> = former.iter().filter(|one| !state.edited_from.contains(one)).collect();
    state.edited_from.extend(more);
    *letter = DeadLetter { id, state, ..news };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delivery, Origin, Position};

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = DedupKey {
            is_event: true,
            name: "orders.créé".to_owned(),
            message_id: "evt-1".to_owned(),
            consumer: String::new(),
        };
        let bytes = key.to_bytes();
        assert_eq!(DedupKey::from_bytes(&bytes), Some(key));
        for length in 0..bytes.len() {
            assert_eq!(DedupKey::from_bytes(&bytes[..length]), None, "cut off at {length}");
        }
    }

    fn nowhere() -> Origin {
        Origin::new("memory", "nowhere", Position::Offset(0))
    }

    fn standing(generation: u32, is_record: bool, is_claimed: bool) -> Option<Standing> {
        Some(Standing { generation, is_record, is_claimed, attempts: 3, has_same_bytes: true })
    }

    #[test]
    fn a_death_is_news_once() {
        use Arrival::{Conflict, Known, New, News, OutOfDate};
        assert_eq!(death_arrives(None, 0), New);
        assert_eq!(death_arrives(standing(1, false, false), 1), Known);
        assert_eq!(death_arrives(standing(1, false, true), 2), News);
        assert_eq!(death_arrives(standing(1, false, false), 0), OutOfDate);
        assert_eq!(death_arrives(standing(1, true, false), 1), News);
        let other = standing(1, true, false).map(|row| Standing { has_same_bytes: false, ..row });
        assert_eq!(death_arrives(other, 1), Conflict);
        assert_eq!(death_arrives(other, 2), Conflict, "nor is it news of this one");
        assert_eq!(death_arrives(other, 0), Conflict, "another message is never out of date");
        assert_eq!(record_arrives(other, 2, 1), Conflict);
        assert_eq!(record_arrives(other, 0, 1), Conflict);
    }

    #[test]
    fn g2_an_absurd_generation_is_compared_with_no_other() {
        use Arrival::{Conflict, Known, News};
        let most = Death::MAX_GENERATION;
        for absurd in [most + 1, u32::MAX - 1, u32::MAX] {
            assert_eq!(death_arrives(standing(absurd, false, false), 1), Conflict);
            assert_eq!(death_arrives(standing(1, false, false), absurd), Conflict);
            assert_eq!(record_arrives(standing(absurd, true, false), 1, 1), Conflict);
            assert_eq!(record_arrives(standing(1, false, false), absurd, 1), Conflict);
            assert_eq!(death_arrives(standing(absurd, false, false), absurd), Known);
        }
        assert_eq!(death_arrives(standing(0, false, false), most), News);
    }

    #[test]
    fn a_record_never_takes_a_death_back() {
        use Arrival::{Known, New, News, OutOfDate};
        assert_eq!(record_arrives(None, 0, 1), New);
        assert_eq!(record_arrives(standing(0, false, false), 0, 9), Known);
        assert_eq!(record_arrives(standing(0, false, false), 1, 1), News);
        assert_eq!(record_arrives(standing(1, false, false), 0, 9), OutOfDate);
        assert_eq!(record_arrives(standing(0, true, false), 0, 3), Known);
        assert_eq!(record_arrives(standing(0, true, false), 0, 4), News);
        assert_eq!(record_arrives(standing(0, true, true), 0, 4), Known);
    }

    #[test]
    fn a_replay_that_is_retried_is_a_record_of_its_next_death() {
        let now = Timestamp::from_millis(5);
        let delayed_retry = DelayedRetry {
            delivery: Delivery::new(Message::new("s", "p"), nowhere()).with_consumer("c"),
            consumer: "c".into(),
            due: now,
            history: History::new(),
            attempts: 2,
        };
        let mut letter = retry_record(delayed_retry, now);
        assert_eq!((letter.generation, letter.delayed_retries), (0, 1));
        let run = |continues| Retried {
            continues,
            crashes: 1,
            due: now,
            history: History::new(),
            attempts: 3,
        };
        retry(&mut letter, run(true), now);
        assert_eq!((letter.generation, letter.delayed_retries, letter.attempts), (0, 2, 3));
        retry(&mut letter, run(false), now);
        assert_eq!((letter.generation, letter.delayed_retries, letter.crashes), (1, 1, 1));
    }
}
