//! Verbs for holders of claims: extend and finish.

use std::time::Duration;

use dlq_core::Resolution;
use dlq_core::store::{ClaimToken, Finish, Finished, ItemOutcome};

use super::each;
use crate::{Changed, Depth, Needs, Rows, Stop, Verb};

/// Extends leases.
#[derive(Debug)]
pub(crate) struct Extend {
    pub(crate) tokens: Vec<ClaimToken>,
    pub(crate) lease: Duration,
}

impl Verb for Extend {
    type Output = Vec<bool>;

    fn needs(&self, needs: &mut Needs) {
        for token in &self.tokens {
            needs.letter(token.letter, Depth::Head);
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let until = rows.now().after(self.lease);
        each(&self.tokens, |token| {
            let Some(row) = rows.letter(token.letter, Depth::Head)? else { return Ok(false) };
            // A lease that has ended is extended all the same: until somebody else claims the letter, nobody else runs it.
            if !row.is_held_by(token) {
                return Ok(false);
            }
            let mut row = row.clone();
            if let Some(held) = &mut row.claim {
                held.until = until;
            }
            rows.update(row, Changed::State);
            Ok(true)
        })
    }
}

/// Ends claims.
#[derive(Debug)]
pub(crate) struct EndClaims(pub(crate) Vec<(ClaimToken, Finish)>);

impl Verb for EndClaims {
    type Output = Vec<Finished>;

    fn needs(&self, needs: &mut Needs) {
        for (token, _) in &self.0 {
            needs.letter(token.letter, Depth::Head);
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        each(&self.0, |(token, finish)| end(rows, token, finish))
    }
}

fn end(rows: &mut Rows, token: &ClaimToken, finish: &Finish) -> Result<Finished, Stop> {
    let now = rows.now();
    let Some(row) = rows.letter(token.letter, Depth::Head)? else { return Ok(Finished::Stale) };
    let Some(held) = row.claim.clone().filter(|_| row.is_held_by(token)) else {
        // The answer to the same call may have been lost. The token of the last end is kept, so that a repeated call is
        // not taken for that of a stale owner.
        let again = row.finished == Some(token.fence);
        return Ok(if again { Finished::Applied } else { Finished::Stale });
    };
    let mut row = row.clone();
    match finish {
        Finish::Resolved(Resolution::Dismissed) => {
            rows.end_item(&mut row, ItemOutcome::Skipped, Some("dismissed"))?;
        }
        Finish::Resolved(_) => rows.end_item(&mut row, ItemOutcome::Succeeded, None)?,
        Finish::Dead(death) => rows.died_anew(&mut row, death)?,
        Finish::Retry { .. } | Finish::Released { .. } => {}
    }
    let changed = row.finish(&held, finish.clone(), now);
    // Only a death rewrites the message, and a record that dies for the first time has no key until now.
    if changed == Changed::All {
        rows.take_key(&mut row)?;
    }
    rows.update(row, changed);
    Ok(Finished::Applied)
}
