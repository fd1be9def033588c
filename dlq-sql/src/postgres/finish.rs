//! End of successful claims: those of a batch that succeeded or were put back take one statement, conditional on their
//! tokens.

use std::collections::{BTreeSet, HashSet};

use dlq_core::Timestamp;
use dlq_core::store::{ClaimToken, Finish, Finished};
use sqlx::PgConnection;

use super::PostgresStore;
use super::batch::Batch;
use super::call::attempt;
use super::claims::{HELD, micros, put_token, read_token};
use super::codec::Fields;
use super::names::Names;
use super::query::{DURABLE, Query};
use crate::error::Result;
use crate::values::{Put as _, Take as _};

type Ending = (ClaimToken, Finish);

impl PostgresStore {
    /// Ends those of these claims that ended well; no two of them are of one letter. Returns the answer for each of those.
    pub(super) async fn end_plainly(&self, finishes: &[Ending]) -> Result<Vec<Option<Finished>>> {
        let plain: Vec<_> = finishes.iter().filter(|(_, finish)| is_plain(finish)).collect();
        if plain.is_empty() {
            return Ok(vec![None; finishes.len()]);
        }
        let (names, given) = (self.names(), self.given_time());
        let done: Result<Vec<_>> = attempt!(self, conn => end_plainly(conn, names, &plain, given));
        let (mut ended, mut released) = (HashSet::new(), BTreeSet::new());
        for (token, consumer) in done? {
            ended.insert(token);
            released.extend(consumer);
        }
        // It comes after the commit: a process that is woken earlier would find nothing due.
        self.say(released).await;
        self.wrote(ended.len()).await;
        let answer = |(token, _): &Ending| ended.contains(token).then_some(Finished::Applied);
        Ok(finishes.iter().map(answer).collect())
    }
}

fn is_plain(finish: &Finish) -> bool {
    matches!(finish, Finish::Resolved(_) | Finish::Released { .. })
}

/// Ends claims whose letters succeeded or are put back, unless an operation has to be told; says which, and whose letters
/// are due again.
async fn end_plainly(
    conn: &mut PgConnection,
    names: &Names,
    plain: &[&Ending],
    given: Option<Timestamp>,
) -> Result<Vec<(ClaimToken, Option<String>)>> {
    let mut batch = Batch::default();
    for (token, finish) in plain {
        let (resolution, after) = match finish {
            Finish::Resolved(resolution) => (Some(resolution.as_str().into()), None),
            Finish::Released { after } => (None, Some(micros(*after))),
            Finish::Retry { .. } | Finish::Dead(_) => continue,
        };
        let row = batch.row();
        put_token(row, token)?;
        row.text(resolution)?;
        row.int(after)?;
    }
    // A claim that has ended is not held any more: said again, it goes to the engine, which knows it by `finished_fence`.
    // Success in an operation goes there too, since the operation has to be told.
    let letters = &names.letters;
    let query = Query::new(format!(
        "WITH held AS (SELECT t.letter_id, u.resolution, u.after FROM {letters} t JOIN "
    ));
    let query = query.batch(batch)?.push(&format!(
        " AS u (letter_id, generation, fence, resolution, after) ON {HELD} \
         AND (t.operation IS NULL OR u.resolution IS NULL) ORDER BY t.letter_id FOR UPDATE OF t) \
         UPDATE {letters} t SET status = CASE WHEN h.resolution IS NULL THEN t.claim_former ELSE 'resolved' END, \
         resolution = coalesce(h.resolution, t.resolution), \
         lapses = CASE WHEN h.resolution IS NULL THEN t.lapses ELSE 0 END, \
         retry_after = x.at + h.after * interval '1 microsecond', \
         available_at = x.at + h.after * interval '1 microsecond', updated_at = x.at, \
         finished_fence = t.claim_fence, claim_until = NULL, claim_former = NULL, claim_owner = NULL \
         FROM held h, (SELECT "
    ));
    let query = query.now(given).push(&format!(
        " AS at) x WHERE t.letter_id = h.letter_id AND {DURABLE} \
         RETURNING t.letter_id, t.generation, t.claim_fence, CASE WHEN h.resolution IS NULL THEN t.consumer END"
    ));
    query
        .all(conn, |record| {
            let mut fields = Fields::of(record);
            Ok((read_token(&mut fields)?, fields.text_or_none()?))
        })
        .await
}
