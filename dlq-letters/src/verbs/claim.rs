//! Letters that are handed out: what is due, and what operations release into the room that is left.

use std::sync::Arc;

use dlq_core::store::{Claim, ClaimRequest, ItemOutcome, Operation, OperationState, Target, rules};
use dlq_core::{Filter, LetterId, Reason};

use super::each;
use super::operate::take_back;
use crate::{Changed, Depth, Lease, Needs, Row, Rows, Select, Selected, Stop, Verb};

/// The most letters that one claim takes back, and the most that it sets aside. Meanwhile they are locked, and whoever
/// claims next goes on.
pub(super) const ASIDE: u64 = 500;

/// The least queued letters that are looked at once some had to be set aside: otherwise each would cost another look.
const NEXT_LOOK: u64 = 100;

/// Claims letters.
#[derive(Debug)]
pub(crate) struct ClaimDue {
    request: ClaimRequest,
    filter: Arc<Filter>,
}

/// The letters of a claim.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) claims: Vec<Claim>,
    /// The events of letters that were quarantined instead, and why.
    pub(crate) capped: Vec<(Option<String>, Reason)>,
}

impl ClaimDue {
    pub(crate) fn new(request: ClaimRequest) -> Self {
        let filter = Arc::new(request.filter.clone());
        Self { request, filter }
    }

    fn wanted(&self) -> u64 {
        u64::from(self.request.limit)
    }

    fn due(&self, limit: u64) -> Select {
        Select::Due { filter: Arc::clone(&self.filter), limit }
    }

    /// Returns the due letters to hand out, and whether there may be more. Takes back those that a cancelled operation had
    /// sent and that nobody runs.
    fn take_due(&self, rows: &mut Rows) -> Result<(Vec<LetterId>, bool), Stop> {
        let wanted = self.wanted();
        let mut limit = wanted;
        loop {
            // Only letters that are handed out are needed whole, and only some of a longer list are.
            let depth = if limit == wanted { Depth::Whole } else { Depth::Head };
            let found = rows.select(&self.due(limit), depth)?;
            let may_have_more = found.len() as u64 == limit;
            let judged = each(&found, |item| {
                let cancelled = is_cancelled(rows, item.letter)?;
                Ok((item.letter, cancelled))
            })?;
            let cancelled = judged.iter().filter(|(_, cancelled)| *cancelled).count() as u64;
            let most = wanted.saturating_add(ASIDE);
            let kept = judged.len() as u64 - cancelled;
            // Letters of a cancelled operation take up places in the selection, so a longer one is asked for. The bound keeps
            // the number of locked letters small.
            if kept < wanted && may_have_more && limit < most {
                limit = wanted.saturating_add(cancelled.saturating_mul(2)).min(most);
                continue;
            }
            let mut ready = Vec::new();
            let mut back = Vec::new();
            for (letter, cancelled) in judged {
                if ready.len() as u64 == wanted {
                    break;
                }
                if cancelled { &mut back } else { &mut ready }.push(letter);
            }
            each(back, |letter| match rows.take(letter, Depth::Head)? {
                Some(row) => take_back(rows, row),
                None => Ok(()),
            })?;
            return Ok((ready, may_have_more));
        }
    }

    /// Lets running operations release letters into `room`, and adds to `ready` those that match the request.
    fn release(
        &self,
        rows: &mut Rows,
        mut room: u64,
        ready: &mut Vec<LetterId>,
        capped: &mut Vec<(Option<String>, Reason)>,
    ) -> Result<(), Stop> {
        let now = rows.now();
        for operation in rows.active()? {
            if room == 0 {
                break;
            }
            // Letters that go to a broker are taken by a dispatcher, and no consumer claims them.
            if operation.spec.target != Target::Handler {
                continue;
            }
            let advance = operation.advance(now, room);
            if advance.release == 0 {
                continue;
            }
            let before = capped.len();
            let released = self.release_some(rows, &operation, advance.release, ready, capped)?;
            // Nothing is written where nothing was released: most claims find nothing.
            if advance.state != operation.state && (released > 0 || capped.len() > before) {
                rows.steer(operation.id, advance.state);
            }
            // The rate is charged for what was released, as fewer letters may match than the rate allows.
            let next = operation.advance(now, released).next_release;
            if next != operation.next_release {
                rows.set_next_release(operation.id, next);
            }
            room = room.saturating_sub(released);
        }
        Ok(())
    }

    /// Releases `wanted` letters of an operation, if there are so many. Returns how many.
    fn release_some(
        &self,
        rows: &mut Rows,
        operation: &Operation,
        wanted: u64,
        ready: &mut Vec<LetterId>,
        capped: &mut Vec<(Option<String>, Reason)>,
    ) -> Result<u64, Stop> {
        let (mut released, mut from, mut limit) = (0, 0, wanted);
        let before = capped.len();
        while released < wanted && (capped.len() as u64) < ASIDE {
            let filter = Arc::clone(&self.filter);
            let queued = Select::Queued { operation: operation.id, filter, from, limit };
            let found = rows.select(&queued, Depth::Whole)?;
            for item in &found {
                if released == wanted || capped.len() as u64 == ASIDE {
                    return Ok(released);
                }
                // A selection does not see the changes of this attempt, so the next one begins behind what was handled.
                from = item.index + 1;
                let Some(row) = rows.take(item.letter, Depth::Whole)? else { continue };
                // The selection and the row may have been read at different times. The row decides.
                if row.item != Some((operation.id, item.index)) {
                    continue;
                }
                if let Some((reason, why)) = operation.spec.sets_aside(&row.letter) {
                    capped.push((row.letter.message.event().map(str::to_owned), reason));
                    set_aside(rows, row, reason, &why)?;
                } else {
                    released += 1;
                    // The release raises counts that the filter may bound. A letter that does not match any more stays
                    // due for others.
                    if self.filter.matches(&release_one(rows, row, *item)?.letter) {
                        ready.push(item.letter);
                    }
                }
            }
            if (found.len() as u64) < limit {
                // Where something was found, whoever claims next looks.
                if released == 0 && capped.len() == before {
                    end_orphans(rows, operation, &self.filter)?;
                }
                break;
            }
            limit = (wanted - released).max(NEXT_LOOK);
        }
        Ok(released)
    }

    /// Gives letters to the claimer, those first that have been due for longest.
    fn hand_out(&self, rows: &mut Rows, ready: Vec<LetterId>) -> Result<Vec<Claim>, Stop> {
        let taken = each(ready, |letter| rows.take(letter, Depth::Whole))?;
        let mut taken: Vec<Row> = taken.into_iter().flatten().collect();
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        taken.sort_by_key(|row| (row.available_at(), row.letter.state.created_at, row.letter.id));
        let now = rows.now();
        let until = now.after(self.request.lease);
        // Tokens are asked for once it is known how many letters there are, since most claims find none and need none.
        let fences = rows.fences(taken.len() as u64)?;
        let hand_out = |(mut row, fence): (Row, u64)| {
            let lease = Lease { fence, owner: &self.request.owner, now, until };
            let claim = row.hand_out(&lease);
            rows.update(row, Changed::State);
            claim
        };
        Ok(taken.into_iter().zip(fences).map(hand_out).collect())
    }
}

impl Verb for ClaimDue {
    type Output = Claimed;

    fn needs(&self, needs: &mut Needs) {
        needs.select(self.due(self.wanted()), Depth::Whole);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let (mut ready, may_have_more) = self.take_due(rows)?;
        let room = self.wanted().saturating_sub(ready.len() as u64);
        let mut capped = Vec::new();
        // Due letters come first: while more of them wait, a release would only make the line longer.
        if room > 0 && !may_have_more {
            self.release(rows, room, &mut ready, &mut capped)?;
        }
        Ok(Claimed { claims: self.hand_out(rows, ready)?, capped })
    }
}

/// Returns true if nobody runs the letter and its operation was cancelled.
fn is_cancelled(rows: &mut Rows, letter: LetterId) -> Result<bool, Stop> {
    let now = rows.now();
    let row = rows.letter(letter, Depth::Head)?;
    let Some((operation, _)) = row.filter(|row| row.is_idle_replay(now)).and_then(|row| row.item)
    else {
        return Ok(false);
    };
    // The state is read without a lock. A letter that is handed out although a cancel commits just now runs once, and a
    // later claim takes it back if its lease ends unfinished.
    Ok(rows.operation_state(operation)? == Some(OperationState::Cancelled))
}

/// Makes a letter due, and counts it as sent back.
fn release_one(rows: &mut Rows, mut row: Row, item: Selected) -> Result<Row, Stop> {
    if let Some((operation, _)) = row.item {
        rows.set_outcome(operation, item.index, ItemOutcome::Released, None)?;
    }
    rules::release(&mut row.letter, rows.now());
    rows.update(row.clone(), Changed::State);
    Ok(row)
}

/// Quarantines a letter that an operation does not send. Its reason changes, and with it perhaps its error, for which the history
/// is needed.
pub(super) fn set_aside(
    rows: &mut Rows,
    mut row: Row,
    reason: Reason,
    why: &str,
) -> Result<(), Stop> {
    rows.end_item(&mut row, ItemOutcome::Skipped, Some(why))?;
    row.void();
    rules::quarantine(&mut row.letter, reason, rows.now());
    rows.update(row, Changed::Run);
    Ok(())
}

/// Ends queued items whose letters nobody will find: they were deleted, or taken out of the operation, by hand.
pub(super) fn end_orphans(
    rows: &mut Rows,
    operation: &Operation,
    filter: &Filter,
) -> Result<(), Stop> {
    let consumers = filter.consumers.clone();
    let select = Select::Orphans { operation: operation.id, consumers, limit: ASIDE };
    for item in rows.select(&select, Depth::Head)? {
        let why = Some("the letter is not there any more");
        rows.set_outcome(operation.id, item.index, ItemOutcome::Skipped, why)?;
    }
    Ok(())
}
