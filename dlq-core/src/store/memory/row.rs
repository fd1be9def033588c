use super::super::rules::{DedupKey, Standing};
use super::super::{Claim, ClaimToken, Finish};
use crate::store::rules;
use crate::{DeadLetter, LetterId, OperationId, Status, Timestamp};

/// A letter and what only the store needs to know of it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) letter: DeadLetter,
    /// The last fencing token that was given out.
    pub(super) fence: u64,
    pub(super) claim: Option<Held>,
    /// The token of the claim that was finished last.
    pub(super) finished: Option<u64>,
    /// Leases of this generation that ended unfinished.
    pub(super) lapses: u32,
    /// Its place in the operation that holds it.
    pub(super) item: Option<(OperationId, usize)>,
    /// Held by one row at most.
    pub(super) key: Option<DedupKey>,
    /// Ids of letters that were merged into it.
    pub(super) aliases: Vec<LetterId>,
}

/// A claim that has not been finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// What the letter was before: `pending` or `retrying`.
    pub(super) former: Status,
    pub(super) until: Timestamp,
}

impl Row {
    pub(super) fn new(letter: DeadLetter) -> Self {
        Self {
            letter,
            fence: 0,
            claim: None,
            finished: None,
            lapses: 0,
            item: None,
            key: None,
            aliases: Vec::new(),
        }
    }

    pub(super) fn is_record(&self) -> bool {
        let status = self.claim.map_or(self.letter.state.status, |held| held.former);
        status == Status::Retrying
    }

    /// When it can be claimed: when it is due, or when its lease ends.
    pub(super) fn available_at(&self) -> Option<Timestamp> {
        match self.claim {
            Some(held) => Some(held.until),
            None => {
                self.letter.state.due.filter(|_| {
                    matches!(self.letter.state.status, Status::Pending | Status::Retrying)
                })
            }
        }
    }

    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        self.claim.is_some_and(|held| held.until > now)
    }

    /// True if it was sent back to be run and nobody runs it: it was not claimed, or its lease has ended. A record goes on
    /// instead, since its run does.
    pub(super) fn is_idle_replay(&self, now: Timestamp) -> bool {
        match self.claim {
            Some(held) => held.former == Status::Pending && held.until <= now,
            None => self.letter.state.status == Status::Pending,
        }
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

    pub(super) fn hand_out(&mut self, fence: u64, now: Timestamp, until: Timestamp) -> Claim {
        let former = match self.claim {
            Some(held) => {
                self.lapses = self.lapses.saturating_add(1);
                held.former
            }
            None => self.letter.state.status,
        };
        self.fence = fence;
        self.claim = Some(Held { former, until });
        let state = &mut self.letter.state;
        state.status = Status::Replaying;
        state.due = None;
        state.last_retry_at = Some(now);
        state.updated_at = now;
        let continues = former == Status::Retrying;
        let mut letter = self.letter.clone();
        letter.crashes = rules::crashes_shown(&letter, continues, self.lapses);
        let token = ClaimToken { letter: letter.id, generation: letter.generation, fence };
        Claim { token, letter, continues, lease_until: until }
    }

    pub(super) fn is_held_by(&self, token: &ClaimToken) -> bool {
        self.claim.is_some()
            && self.fence == token.fence
            && self.letter.generation == token.generation
    }

    /// Ends the claim; the token has been checked, and the letter's operation told.
    pub(super) fn finish(&mut self, held: Held, finish: Finish, now: Timestamp) {
        let continues = held.former == Status::Retrying;
        let crashes = rules::crashes_shown(&self.letter, continues, self.lapses);
        self.finished = Some(self.fence);
        self.claim = None;
        match finish {
            Finish::Resolved(resolution) => {
                self.lapses = 0;
                rules::resolve(&mut self.letter, resolution, now);
            }
            Finish::Retry { due, history, attempts } => {
                self.lapses = 0;
                let run = rules::Retried { continues, crashes, due, history, attempts };
                rules::retry(&mut self.letter, run, now);
            }
            Finish::Dead(mut death) => {
                self.lapses = 0;
                let least = self.letter.generation.saturating_add(u32::from(!continues));
                death.generation = death.generation.max(least);
                rules::reopen(&mut self.letter, *death, now);
            }
            Finish::Released { after } => {
                let state = &mut self.letter.state;
                state.status = held.former;
                state.due = Some(now.after(after));
                state.updated_at = now;
            }
        }
    }
}
