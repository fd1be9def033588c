//! [`Row`]: a letter and what only the store knows of it.

use dlq_core::store::rules::{self, DedupKey, Standing};
use dlq_core::store::{Claim, ClaimToken, Dispatched, Finish, FormerSender, Mark};
use dlq_core::{DeadLetter, LetterId, OperationId, Status, Timestamp};

/// A letter and what only the store knows of it.
///
/// A row that was loaded as a [head](crate::Depth) has a letter without payload, key, headers and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number by which a backend finds the row again; 0 before it is written. The engine does not touch it.
    pub tag: i64,
    /// The letter.
    pub letter: DeadLetter,
    /// The last fencing token that was given out for it.
    pub fence: u64,
    /// The claim that has not been finished.
    pub claim: Option<Held>,
    /// The token of the claim that was finished last.
    pub finished: Option<u64>,
    /// Leases of this generation that ended unfinished.
    pub lapses: u32,
    /// The operation that holds it, and the index of its item.
    pub item: Option<(OperationId, u64)>,
    /// The key of its original message, if it is the one row that has it.
    pub key: Option<DedupKey>,
}

/// A claim that has not been finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The status before the claim: `pending` or `retrying`.
    pub former: Status,
    /// The end of the lease.
    pub until: Timestamp,
    /// The claimer, for operators to see.
    pub owner: String,
    /// The sender, if the letter is being sent through an outbox. It is held then until somebody settles what was sent,
    /// however long ago the lease has ended.
    pub sender: Option<String>,
}

/// The place of a letter that was merged into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The letter that it was merged into.
    pub row: LetterId,
    /// The latest generation that was merged.
    pub generation: u32,
}

/// A lease that is given out.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The fencing token.
    pub fence: u64,
    /// The claimer.
    pub owner: &'a str,
    /// The time of the claim.
    pub now: Timestamp,
    /// The end of the lease.
    pub until: Timestamp,
}

/// The columns of a row that differ from what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// State, claim, operation and counts: what happens to a letter while it rests.
    State,
    /// State, and the fields that a failed run changes: generation, history, class, cause, fingerprint, error.
    Run,
    /// Everything: the row was overwritten by a whole letter.
    All,
}

impl Row {
    /// A row of a letter that is new.
    #[must_use]
    pub const fn new(letter: DeadLetter) -> Self {
        Self {
            tag: 0,
            letter,
            fence: 0,
            claim: None,
            finished: None,
            lapses: 0,
            item: None,
            key: None,
        }
    }

    /// Returns true if it is a retry record: `retrying`, or claimed from there.
    #[must_use]
    pub fn is_record(&self) -> bool {
        let status = self.claim.as_ref().map_or(self.letter.state.status, |held| held.former);
        status == Status::Retrying
    }

    /// Returns when it can be claimed: when it is due, or when its lease ends; never while an outbox holds it.
    #[must_use]
    pub fn available_at(&self) -> Option<Timestamp> {
        let state = &self.letter.state;
        match &self.claim {
            // The letter may have been sent, so the end of the lease gives it to a dispatcher and never to a handler.
            Some(Held { sender: Some(_), .. }) => None,
            Some(held) => Some(held.until),
            None => {
                state.due.filter(|_| matches!(state.status, Status::Pending | Status::Retrying))
            }
        }
    }

    /// Returns true if somebody holds a live claim, or an outbox holds it.
    #[must_use]
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.claim.as_ref().is_some_and(|held| held.until > now || held.sender.is_some())
    }

    /// Returns true if an outbox holds it.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.claim.as_ref().is_some_and(|held| held.sender.is_some())
    }

    /// Returns true if it was sent back to be run and nobody runs it: it was not claimed, or its lease has ended. A record
    /// is none, since its run goes on.
    #[must_use]
    pub fn is_idle_replay(&self, now: Timestamp) -> bool {
        match &self.claim {
            Some(held) => {
                held.former == Status::Pending && held.until <= now && held.sender.is_none()
            }
            None => self.letter.state.status == Status::Pending,
        }
    }

    /// Returns true if marking it would change nothing.
    #[must_use]
    pub fn is_so(&self, mark: Mark) -> bool {
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

    /// Voids the claim, and forgets what was counted for it.
    pub fn void(&mut self) {
        self.claim = None;
        self.lapses = 0;
    }

    /// Returns what a letter that arrives needs to know of this whole row.
    #[must_use]
    pub fn standing(&self, news: &DeadLetter, dedup: bool) -> Standing {
        // A row that others were merged into has the bytes of the last of them, and the original may have had other
        // bytes before.
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

    /// Returns true if `token` is that of the claim that holds it.
    #[must_use]
    pub fn is_held_by(&self, token: &ClaimToken) -> bool {
        // The end of the lease does not count: the token is good until somebody else claims, which changes the fence.
        self.claim.is_some()
            && self.fence == token.fence
            && self.letter.generation == token.generation
    }

    /// Gives the letter out, and returns the claim that the claimer is told.
    pub fn hand_out(&mut self, lease: &Lease<'_>) -> Claim {
        let former = match &self.claim {
            Some(held) => {
                // A claim that is still there was never finished. Its run ended with the process and counts as a crash (G3).
                self.lapses = self.lapses.saturating_add(1);
                held.former
            }
            None => self.letter.state.status,
        };
        self.fence = lease.fence;
        let owner = lease.owner.to_owned();
        self.claim = Some(Held { former, until: lease.until, owner, sender: None });
        let state = &mut self.letter.state;
        state.status = Status::Replaying;
        state.due = None;
        state.last_retry_at = Some(lease.now);
        state.updated_at = lease.now;
        self.clone().into_claim(former, lease.until)
    }

    /// Gives the letter to a sender. Returns the token, and the former sender if there was one. A lease that ended is no
    /// crash: nothing ran.
    pub fn send(&mut self, lease: &Lease<'_>) -> (ClaimToken, Option<FormerSender>) {
        // The former sender took the letter at this time, from which on its outbox looks for what it sent.
        let since = self.letter.state.last_retry_at.unwrap_or(lease.now);
        let former = self.claim.take().and_then(|held| held.sender);
        self.fence = lease.fence;
        self.claim = Some(Held {
            // Only letters that were pending are frozen into an operation that sends.
            former: Status::Pending,
            until: lease.until,
            owner: lease.owner.to_owned(),
            sender: Some(lease.owner.to_owned()),
        });
        let state = &mut self.letter.state;
        state.status = Status::Replaying;
        state.due = None;
        state.last_retry_at = Some(lease.now);
        state.updated_at = lease.now;
        let (letter, generation) = (self.letter.id, self.letter.generation);
        let token = ClaimToken { letter, generation, fence: lease.fence };
        (token, former.map(|sender| FormerSender { sender, since }))
    }

    /// Ends the sending of a letter whose token was checked. The item has been told.
    pub fn dispatched(&mut self, dispatched: &Dispatched, now: Timestamp) {
        self.finished = Some(self.fence);
        self.claim = None;
        // `put_back` takes the letter out of its operation. A letter that is sent, or queued again, stays in it.
        let operation = self.letter.state.operation;
        match dispatched {
            Dispatched::Confirmed { .. } => {
                self.count_sent();
                rules::put_back(&mut self.letter, Status::Sent, now);
                self.letter.state.operation = operation;
            }
            Dispatched::Refused(_) => rules::put_back(&mut self.letter, Status::Pending, now),
            Dispatched::Unclear(_) => rules::put_back(&mut self.letter, Status::Quarantined, now),
            Dispatched::Later => {
                rules::put_back(&mut self.letter, Status::Pending, now);
                self.letter.state.operation = operation;
            }
        }
    }

    /// Counts that the letter was sent back.
    pub fn count_sent(&mut self) {
        let state = &mut self.letter.state;
        state.retry_count = state.retry_count.saturating_add(1);
        state.replays = state.replays.saturating_add(1);
    }

    /// Returns the claim that the row was given last.
    #[must_use]
    pub fn into_claim(self, former: Status, until: Timestamp) -> Claim {
        let continues = former == Status::Retrying;
        let mut letter = self.letter;
        // The claimer is told crashes with lapses in them. What is stored counts them only once the run has ended.
        letter.crashes = rules::crashes_shown(&letter, continues, self.lapses);
        let token =
            ClaimToken { letter: letter.id, generation: letter.generation, fence: self.fence };
        Claim { token, letter, continues, lease_until: until }
    }

    /// Ends the claim. The token has been checked, and the letter's operation told. Returns what differs.
    pub fn finish(&mut self, held: &Held, finish: Finish, now: Timestamp) -> Changed {
        let continues = held.former == Status::Retrying;
        // Crashes are read before the lapses behind them are forgotten.
        let crashes = rules::crashes_shown(&self.letter, continues, self.lapses);
        self.finished = Some(self.fence);
        self.claim = None;
        // A release says "not now" and changes no count, so earlier lapses stay (G10).
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
                // A record already has the generation of its next death. Any other letter has that of its last one.
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
