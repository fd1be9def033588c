//! Letters of operations that somebody sends through an outbox; see [`Dispatch`](dlq_core::store::Dispatch).

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{
    ClaimToken, Dispatched, Finished, ItemOutcome, Operation, TakeRequest, Taken, Takes, rules,
};
use dlq_core::{Death, Filter, Reason, Resolution, Status, StoreError, StoreErrorKind};

use super::claim::{ASIDE, end_orphans, set_aside};
use super::each;
use crate::{Changed, Depth, Lease, Needs, Row, Rows, Select, Selected, Stop, Verb};

/// Takes letters of an operation to be sent.
#[derive(Debug)]
pub(crate) struct Take(pub(crate) TakeRequest);

/// Letters that were taken to be sent.
#[derive(Debug)]
pub(crate) struct Took {
    operation: Operation,
    letters: Vec<Taken>,
    wait: Option<Duration>,
    /// The events of letters that were quarantined instead, and why.
    pub(crate) capped: Vec<(Option<String>, Reason)>,
}

impl From<Took> for Takes {
    fn from(took: Took) -> Self {
        Self { operation: took.operation, letters: took.letters, wait: took.wait }
    }
}

impl Take {
    fn lapsed(&self) -> Select {
        Select::Lapsed { operation: self.0.operation, limit: u64::from(self.0.limit) }
    }

    fn queued(&self, from: u64, limit: u64) -> Select {
        let (operation, filter) = (self.0.operation, Arc::new(Filter::new()));
        Select::Queued { operation, filter, from, limit }
    }

    /// Gives letters to the sender, and returns them.
    fn give(
        &self,
        rows: &mut Rows,
        items: &[Selected],
        lapsed: bool,
        taken: &mut Vec<Taken>,
    ) -> Result<(), Stop> {
        let (now, until) = (rows.now(), rows.now().after(self.0.lease));
        let fences = rows.fences(items.len() as u64)?;
        for (item, fence) in items.iter().zip(fences) {
            let Some(mut row) = rows.take(item.letter, Depth::Whole)? else { continue };
            let owner = self.0.sender(&row.letter.origin);
            let lease = Lease { fence, owner, now, until };
            let (token, former) = row.send(&lease);
            // The item of a lapsed letter is `sending` already, and its counts stay as they are.
            if !lapsed {
                rows.set_outcome(self.0.operation, item.index, ItemOutcome::Sending, None)?;
            }
            let letter = row.letter.clone();
            taken.push(Taken { token, letter, index: item.index, former, lease_until: until });
            rows.update(row, Changed::State);
        }
        Ok(())
    }

    /// Takes queued letters as far as the operation lets, and returns how many it took.
    fn take_queued(
        &self,
        rows: &mut Rows,
        before: &Operation,
        room: u64,
        took: &mut Took,
    ) -> Result<(), Stop> {
        let (id, now) = (before.id, rows.now());
        let advance = before.advance(now, room);
        // The state is written even if nothing is taken, since time alone ends the wait of a canary.
        if advance.state != before.state {
            rows.steer(id, advance.state);
        }
        let (mut from, mut sent) = (0, Vec::new());
        // Quarantined letters use up none of the rate, but one step locks only so many of them.
        while (sent.len() as u64) < advance.release && (took.capped.len() as u64) < ASIDE {
            let wanted = advance.release - sent.len() as u64;
            let found = rows.select(&self.queued(from, wanted), Depth::Whole)?;
            for item in &found {
                from = item.index + 1;
                let Some(row) = rows.take(item.letter, Depth::Whole)? else { continue };
                if row.item != Some((id, item.index)) {
                    continue;
                }
                if let Some((reason, why)) = before.spec.sets_aside(&row.letter) {
                    took.capped.push((row.letter.message.event().map(str::to_owned), reason));
                    set_aside(rows, row, reason, &why)?;
                } else {
                    sent.push(*item);
                }
            }
            if (found.len() as u64) < wanted {
                if sent.is_empty() {
                    end_orphans(rows, before, &Filter::new())?;
                }
                break;
            }
        }
        self.give(rows, &sent, false, &mut took.letters)?;
        if before.spec.pace.is_some() && !sent.is_empty() {
            rows.set_next_release(id, before.advance(now, sent.len() as u64).next_release);
        }
        Ok(())
    }
}

impl Verb for Take {
    // It may run again after its answer was lost. What the first run took stays `sending` until its lease ends, and is
    // settled then like that of a sender that died.
    type Output = Took;

    fn needs(&self, needs: &mut Needs) {
        needs.operations.insert(self.0.operation);
        needs.select(self.lapsed(), Depth::Whole);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Took, Stop> {
        let id = self.0.operation;
        let refused = |kind, detail: String| {
            Stop::Failed(StoreError::new(kind, "take letters to send").with_detail(detail))
        };
        let Some(operation) = rows.operation(id)? else {
            return Err(refused(StoreErrorKind::NotFound, format!("no operation has the id {id}")));
        };
        if operation.spec.target.is_handler() {
            let why = "its letters go to their handlers, which claim them";
            return Err(refused(StoreErrorKind::Refused, why.to_owned()));
        }
        let mut took = Took {
            operation: operation.clone(),
            letters: Vec::new(),
            wait: None,
            capped: Vec::new(),
        };
        // Lapsed letters are given out in every state of the operation: also a cancelled one has to learn what was sent (G6).
        let lapsed = rows.select(&self.lapsed(), Depth::Whole)?;
        self.give(rows, &lapsed, true, &mut took.letters)?;
        let room = u64::from(self.0.limit).saturating_sub(took.letters.len() as u64);
        if room > 0 {
            self.take_queued(rows, &operation, room, &mut took)?;
        }
        // The sender is told the operation as this step leaves it, and by that when to ask again.
        took.operation = rows.operation(id)?.unwrap_or(operation);
        took.wait = took.operation.next_chance(rows.now()).map(|at| at.since(rows.now()));
        Ok(took)
    }
}

/// Records what became of letters that were taken.
#[derive(Debug)]
pub(crate) struct Record(pub(crate) Vec<(ClaimToken, Dispatched)>);

impl Record {
    fn one(rows: &mut Rows, token: &ClaimToken, dispatched: &Dispatched) -> Result<Finished, Stop> {
        let Some(mut row) = rows.take(token.letter, Depth::Head)? else {
            return Ok(Finished::Stale);
        };
        if !row.is_held_by(token) || !row.is_sending() {
            // The answer to the same record may have been lost. It counts as applied then, and changes nothing more.
            let is_known = row.finished == Some(token.fence);
            return Ok(if is_known { Finished::Applied } else { Finished::Stale });
        }
        // Nobody would take it any more.
        let cancelled = Dispatched::Refused("cancelled".to_owned());
        let is_cancelled = *dispatched == Dispatched::Later && Self::is_over(rows, &row)?;
        let dispatched = if is_cancelled { &cancelled } else { dispatched };
        match dispatched {
            Dispatched::Confirmed { is_doubtful } => {
                let why = is_doubtful.then_some("perhaps sent twice");
                if let Some((operation, index)) = row.item {
                    rows.set_outcome(operation, index, ItemOutcome::Sent, why)?;
                }
            }
            Dispatched::Refused(why) | Dispatched::Unclear(why) => {
                rows.end_item(&mut row, ItemOutcome::Skipped, Some(why))?;
            }
            Dispatched::Later => {
                if let Some((operation, index)) = row.item {
                    rows.set_outcome(operation, index, ItemOutcome::Queued, None)?;
                }
            }
        }
        row.dispatched(dispatched, rows.now());
        rows.update(row, Changed::State);
        Ok(Finished::Applied)
    }

    /// Returns true if the operation of a letter sends nothing any more. The operation is locked: a cancel that changes its
    /// state at this moment takes back what is queued only after that, and has passed over this letter or finds it queued.
    fn is_over(rows: &mut Rows, row: &Row) -> Result<bool, Stop> {
        let Some(operation) = row.letter.state.operation else { return Ok(true) };
        Ok(rows.operation(operation)?.is_none_or(|operation| operation.state.is_final()))
    }
}

impl Verb for Record {
    type Output = Vec<Finished>;

    fn needs(&self, needs: &mut Needs) {
        self.0.iter().for_each(|(token, _)| needs.letter(token.letter, Depth::Head));
    }

    fn decide(&self, rows: &mut Rows) -> Result<Vec<Finished>, Stop> {
        each(&self.0, |(token, dispatched)| Self::one(rows, token, dispatched))
    }
}

/// Resolves letters that were sent back, and of which a consumer says that they were handled.
#[derive(Debug)]
pub(crate) struct Succeed(pub(crate) Vec<Death>);

impl Succeed {
    fn one(rows: &mut Rows, death: &Death) -> Result<bool, Stop> {
        let Some(mut row) = rows.take(death.letter, Depth::Head)? else { return Ok(false) };
        let is_sending = row.is_sending();
        let was_sent = row.letter.state.status == Status::Sent || is_sending;
        // A success of another generation says nothing about the death that is here now.
        if row.letter.generation != death.generation || !was_sent {
            return Ok(false);
        }
        // The success arrives before its sender has recorded the send. The claim is void below, so that the late record is
        // stale and the replay is counted here.
        if is_sending {
            row.count_sent();
        }
        rows.end_item(&mut row, ItemOutcome::Succeeded, None)?;
        row.void();
        rules::resolve(&mut row.letter, Resolution::Succeeded, rows.now());
        rows.update(row, Changed::State);
        Ok(true)
    }
}

impl Verb for Succeed {
    type Output = u64;

    fn needs(&self, needs: &mut Needs) {
        self.0.iter().for_each(|death| needs.letter(death.letter, Depth::Head));
    }

    // A success may arrive before its send was recorded, be told twice, or be about a death that is not the last one.
    // None of that is an error: a consumer tells it in passing and does not wait for the answer.
    fn decide(&self, rows: &mut Rows) -> Result<u64, Stop> {
        let resolved = each(&self.0, |death| Self::one(rows, death))?;
        Ok(resolved.into_iter().filter(|is| *is).count() as u64)
    }
}
