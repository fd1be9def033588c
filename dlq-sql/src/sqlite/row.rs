//! [`Row`]: a letter and what only the store knows of it.

use dlq_core::store::rules::{self, DedupKey, Standing};
use dlq_core::store::{Claim, ClaimToken, Finish};
use dlq_core::{Cause, DeadLetter, ErrorClass, OperationId, Reason, Status, Timestamp};

/// A letter and what only the store knows of it. Read with or without the message's bytes and the history.
#[derive(Debug)]
pub(super) struct Row {
    /// SQLite's own number of the row; 0 before it is written.
    pub(super) seq: i64,
    pub(super) letter: DeadLetter,
    /// The last fencing token that was given out for it.
    pub(super) fence: u64,
    pub(super) claim: Option<Held>,
    /// The token of the claim that was finished last.
    pub(super) finished: Option<u64>,
    /// Leases of this generation that ended unfinished.
    pub(super) lapses: u32,
    /// Its place in the operation that holds it.
    pub(super) item: Option<(OperationId, u64)>,
    /// The key of its original message, if it is the one row that has it.
    pub(super) key: Option<Vec<u8>>,
    /// What it counts as in the table of counts; `None` before it is written.
    pub(super) counted: Option<CountKey>,
}

/// A claim that has not been finished.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// What the letter was before: `pending` or `retrying`.
    pub(super) former: Status,
    pub(super) until: Timestamp,
    pub(super) owner: String,
}

/// The dimensions by which letters are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountKey {
    pub(super) status: Status,
    pub(super) reason: Reason,
    pub(super) cause: Option<Cause>,
    pub(super) class: ErrorClass,
    pub(super) consumer: String,
    pub(super) subject: String,
}

/// Who claims, by when, until when.
pub(super) struct Lease<'a> {
    pub(super) fence: u64,
    pub(super) owner: &'a str,
    pub(super) now: Timestamp,
    pub(super) until: Timestamp,
}

impl Row {
    pub(super) fn new(letter: DeadLetter) -> Self {
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

    pub(super) fn count_key(&self) -> CountKey {
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

    pub(super) fn is_record(&self) -> bool {
        let status = self.claim.as_ref().map_or(self.letter.state.status, |held| held.former);
        status == Status::Retrying
    }

    /// When it can be claimed: when it is due, or when its lease ends.
    pub(super) fn available_at(&self) -> Option<Timestamp> {
        let state = &self.letter.state;
        match &self.claim {
            Some(held) => Some(held.until),
            None => {
                state.due.filter(|_| matches!(state.status, Status::Pending | Status::Retrying))
            }
        }
    }

    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        self.claim.as_ref().is_some_and(|held| held.until > now)
    }

    /// Whoever holds it holds it no longer, and what was counted for them is forgotten.
    pub(super) fn void(&mut self) {
        self.claim = None;
        self.lapses = 0;
    }

    pub(super) fn standing(&self, news: &DeadLetter, dedup: bool) -> Standing {
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

    pub(super) fn hand_out(&mut self, lease: &Lease<'_>) -> Claim {
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
        let continues = former == Status::Retrying;
        let mut letter = self.letter.clone();
        letter.crashes = rules::crashes_shown(&letter, continues, self.lapses);
        let token =
            ClaimToken { letter: letter.id, generation: letter.generation, fence: lease.fence };
        Claim { token, letter, continues, lease_until: lease.until }
    }

    pub(super) fn is_held_by(&self, token: &ClaimToken) -> bool {
        self.claim.is_some()
            && self.fence == token.fence
            && self.letter.generation == token.generation
    }

    /// Ends the claim; the token has been checked, and the letter's operation told.
    pub(super) fn finish(&mut self, held: &Held, finish: Finish, now: Timestamp) -> Changed {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// What happens to a letter while it rests.
    State,
    /// That, and what a run that failed changes.
    Run,
    /// Everything: the row was overwritten by a whole letter.
    All,
}

/// The key of the original message as bytes, each text with its length in front.
pub(super) fn dedup_key(letter: &DeadLetter) -> Option<Vec<u8>> {
    let key = DedupKey::of(letter)?;
    let mut bytes = vec![u8::from(key.is_event)];
    for text in [&key.name, &key.message_id, &key.consumer] {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    Some(bytes)
}
