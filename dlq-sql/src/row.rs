//! [`Row`]: a letter and what only the store knows of it.

use dlq_core::store::rules::{self, DedupKey, Standing};
use dlq_core::store::{Claim, ClaimToken, Finish, Mark};
use dlq_core::{Cause, DeadLetter, ErrorClass, OperationId, Reason, Status, Timestamp};

use crate::columns::Parts;
use crate::keys;

/// A letter and what only the store knows of it. Read with or without the message's bytes and the history.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// SQLite's own number of the row; 0 before it is written.
    pub(crate) seq: i64,
    pub(crate) letter: DeadLetter,
    /// The last fencing token that was given out for it.
    pub(crate) fence: u64,
    pub(crate) claim: Option<Held>,
    /// The token of the claim that was finished last.
    pub(crate) finished: Option<u64>,
    /// Leases of this generation that ended unfinished.
    pub(crate) lapses: u32,
    /// Its place in the operation that holds it.
    pub(crate) item: Option<(OperationId, u64)>,
    /// The key of its original message, if it is the one row that has it.
    pub(crate) key: Option<Vec<u8>>,
    /// What it counts as in the table of counts; `None` before it is written.
    pub(crate) counted: Option<CountKey>,
}

/// A claim that has not been finished.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// What the letter was before: `pending` or `retrying`.
    pub(crate) former: Status,
    pub(crate) until: Timestamp,
    pub(crate) owner: String,
}

/// The dimensions by which letters are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountKey {
    pub(crate) status: Status,
    pub(crate) reason: Reason,
    pub(crate) cause: Option<Cause>,
    pub(crate) class: ErrorClass,
    pub(crate) consumer: String,
    pub(crate) subject: String,
}

/// Who claims, by when, until when.
pub(crate) struct Lease<'a> {
    pub(crate) fence: u64,
    pub(crate) owner: &'a str,
    pub(crate) now: Timestamp,
    pub(crate) until: Timestamp,
}

impl Row {
    pub(crate) fn new(letter: DeadLetter) -> Self {
        Self {
            seq: 0,
            letter,
            fence: 0,
            claim: None,
            finished: None,
            lapses: 0,
            item: None,
            key: None,
            counted: None,
        }
    }

    pub(crate) fn count_key(&self) -> CountKey {
        let letter = &self.letter;
        CountKey {
            status: letter.state.status,
            reason: letter.reason,
            cause: letter.cause,
            class: letter.class,
            consumer: letter.consumer.clone(),
            subject: letter.message.subject().to_owned(),
        }
    }

    pub(crate) fn is_record(&self) -> bool {
        let status = self.claim.as_ref().map_or(self.letter.state.status, |held| held.former);
        status == Status::Retrying
    }

    /// When it can be claimed: when it is due, or when its lease ends.
    pub(crate) fn available_at(&self) -> Option<Timestamp> {
        let state = &self.letter.state;
        match &self.claim {
            Some(held) => Some(held.until),
            None => {
                state.due.filter(|_| matches!(state.status, Status::Pending | Status::Retrying))
            }
        }
    }

    pub(crate) fn is_held(&self, now: Timestamp) -> bool {
        self.claim.as_ref().is_some_and(|held| held.until > now)
    }

    /// True if it was sent back to be run and nobody runs it: it was not claimed, or its lease has ended. A record goes on
    /// instead, since its run does.
    pub(crate) fn is_idle_replay(&self, now: Timestamp) -> bool {
        match &self.claim {
            Some(held) => held.former == Status::Pending && held.until <= now,
            None => self.letter.state.status == Status::Pending,
        }
    }

    /// Whether marking it would change nothing.
    pub(crate) fn is_so(&self, mark: Mark) -> bool {
        let state = &self.letter.state;
        match mark {
            Mark::Resolved => state.status == Status::Resolved,
            Mark::Pending => {
                state.status == Status::Pending
                    && state.due.is_none()
                    && state.operation.is_none()
                    && state.replays == 0
            }
            _ => state.status == Status::Quarantined,
        }
    }

    /// Whoever holds it holds it no longer, and what was counted for them is forgotten.
    pub(crate) fn void(&mut self) {
        self.claim = None;
        self.lapses = 0;
    }

    pub(crate) fn standing(&self, news: &DeadLetter, dedup: bool) -> Standing {
        let same_original = || {
            let key = DedupKey::of(news);
            dedup && key.is_some() && key == DedupKey::of(&self.letter)
        };
        Standing {
            generation: self.letter.generation,
            is_record: self.is_record(),
            is_claimed: self.claim.is_some(),
            attempts: self.letter.attempts,
            has_same_bytes: rules::is_known_by_bytes(&self.letter, news) || same_original(),
        }
    }

    pub(crate) fn hand_out(&mut self, lease: &Lease<'_>) -> Claim {
        let former = match &self.claim {
            Some(held) => {
                self.lapses = self.lapses.saturating_add(1);
                held.former
            }
            None => self.letter.state.status,
        };
        self.fence = lease.fence;
        self.claim = Some(Held { former, until: lease.until, owner: lease.owner.to_owned() });
        let state = &mut self.letter.state;
        state.status = Status::Replaying;
        state.due = None;
        state.last_retry_at = Some(lease.now);
        state.updated_at = lease.now;
        self.clone().into_claim(former, lease.until)
    }

    /// The claim that the row was given last, as it is told to who claimed.
    pub(crate) fn into_claim(self, former: Status, until: Timestamp) -> Claim {
        let continues = former == Status::Retrying;
        let mut letter = self.letter;
        letter.crashes = rules::crashes_shown(&letter, continues, self.lapses);
        let token =
            ClaimToken { letter: letter.id, generation: letter.generation, fence: self.fence };
        Claim { token, letter, continues, lease_until: until }
    }

    pub(crate) fn is_held_by(&self, token: &ClaimToken) -> bool {
        self.claim.is_some()
            && self.fence == token.fence
            && self.letter.generation == token.generation
    }

    /// Ends the claim; the token has been checked, and the letter's operation told.
    pub(crate) fn finish(&mut self, held: &Held, finish: Finish, now: Timestamp) -> Changed {
        let continues = held.former == Status::Retrying;
        let crashes = rules::crashes_shown(&self.letter, continues, self.lapses);
        self.finished = Some(self.fence);
        self.claim = None;
        if !matches!(finish, Finish::Released { .. }) {
            self.lapses = 0;
        }
        match finish {
            Finish::Resolved(resolution) => {
                rules::resolve(&mut self.letter, resolution, now);
                Changed::State
            }
            Finish::Retry { due, history, attempts } => {
                let run = rules::Retried { continues, crashes, due, history, attempts };
                rules::retry(&mut self.letter, run, now);
                Changed::Run
            }
            Finish::Dead(mut death) => {
                let least = self.letter.generation.saturating_add(u32::from(!continues));
                death.generation = death.generation.max(least);
                rules::reopen(&mut self.letter, *death, now);
                Changed::All
            }
            Finish::Released { after } => {
                let state = &mut self.letter.state;
                state.status = held.former;
                state.due = Some(now.after(after));
                state.updated_at = now;
                Changed::State
            }
        }
    }
}

/// Which columns differ from what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Changed {
    /// What happens to a letter while it rests.
    State,
    /// That, and what a run that failed changes.
    Run,
    /// Everything: the row was overwritten by a whole letter.
    All,
}

/// The key of the original message as bytes, each text with its length in front.
pub(crate) fn dedup_key(letter: &DeadLetter) -> Option<Vec<u8>> {
    DedupKey::of(letter).map(|key| keys::encoded(&key))
}

impl From<dlq_letters::Row> for Row {
    fn from(row: dlq_letters::Row) -> Self {
        let dlq_letters::Row { tag, letter, fence, claim, finished, lapses, item, key } = row;
        let claim =
            claim.map(|dlq_letters::Held { former, until, owner }| Held { former, until, owner });
        let key = key.as_ref().map(keys::encoded);
        let mut row =
            Self { seq: tag, letter, fence, claim, finished, lapses, item, key, counted: None };
        row.counted = Some(row.count_key());
        row
    }
}

impl<'v> From<&'v Row> for Parts<'v> {
    fn from(row: &'v Row) -> Self {
        let claim = row.claim.as_ref();
        Self {
            letter: &row.letter,
            available_at: row.available_at(),
            item: row.item,
            fence: row.fence,
            claim: claim.map(|held| (held.until, held.former, held.owner.as_str())),
            finished: row.finished,
            lapses: row.lapses,
        }
    }
}
