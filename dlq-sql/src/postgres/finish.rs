//! How claims end.
//!
//! Most end well: those of a batch that succeeded or were put back take one statement, conditional on their tokens. The
//! others lock their letters, then their operations, each in order, and change both in one transaction.

use std::collections::{BTreeSet, HashSet};

use dlq_core::store::{ClaimToken, Finish, Finished, ItemOutcome};
use dlq_core::{DeadLetter, LetterId, Resolution, Timestamp};
use sqlx::PgConnection;

use super::PostgresStore;
use super::batch::Batch;
use super::call::{attempt, transact};
use super::claims::{HELD, micros, put_token, read_token};
use super::codec::Fields;
use super::names::Names;
use super::query::{DURABLE, Query};
use super::unit::Unit;
use crate::error::Result;
use crate::row::{Changed, Row};
use crate::values::{Put as _, Take as _};

type Ending = (ClaimToken, Finish);

impl PostgresStore {
    pub(super) async fn finish_held(&self, finishes: &[Ending]) -> Result<Vec<Finished>> {
        let letters: HashSet<_> = finishes.iter().map(|(token, _)| token.letter).collect();
        // Where a letter is named twice, the first word counts: they are taken one after another.
        let plain: Vec<_> = if letters.len() == finishes.len() {
            finishes.iter().filter(|(_, finish)| is_plain(finish)).collect()
        } else {
            Vec::new()
        };
        let mut ended: HashSet<ClaimToken> = HashSet::new();
        if !plain.is_empty() {
            let (names, given) = (self.names(), self.given_time());
            let done: Result<Vec<_>> =
                attempt!(self, conn => end_plainly(conn, names, &plain, given));
            let mut released = BTreeSet::new();
            for (token, consumer) in done? {
                ended.insert(token);
                released.extend(consumer);
            }
            self.say(released).await;
            self.wrote(ended.len()).await;
        }
        let others = finishes.iter().filter(|(token, _)| !ended.contains(token));
        let others: Vec<_> = others.collect();
        let mut others = match &others[..] {
            [] => Vec::new(),
            others => transact!(self, unit => unit.finish_all(others))?,
        }
        .into_iter();
        let answer = |(token, _): &Ending| {
            if ended.contains(token) { Some(Finished::Applied) } else { others.next() }
        };
        Ok(finishes.iter().filter_map(answer).collect())
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

impl Unit<'_> {
    async fn finish_all(&mut self, finishes: &[&Ending]) -> Result<Vec<Finished>> {
        let letters: Vec<LetterId> = finishes.iter().map(|(token, _)| token.letter).collect();
        self.fetch_heads(&letters).await?;
        self.prepare(finishes).await?;
        let mut answers = Vec::with_capacity(finishes.len());
        for (token, finish) in finishes {
            answers.push(self.finish(token, finish).await?);
        }
        Ok(answers)
    }

    /// Looks up, all at once, what the outcomes concern.
    async fn prepare(&mut self, finishes: &[&Ending]) -> Result<()> {
        let mut rows: Vec<Row> = Vec::new();
        let mut deaths: Vec<&DeadLetter> = Vec::new();
        for (token, finish) in finishes {
            if matches!(finish, Finish::Retry { .. } | Finish::Released { .. }) {
                continue;
            }
            if let Finish::Dead(death) = finish {
                deaths.push(death);
            }
            rows.extend(self.head(token.letter).await?.filter(|row| row.is_held_by(token)));
        }
        self.fetch_items(&rows.iter().collect::<Vec<_>>()).await?;
        if !deaths.is_empty() && self.is_dedup().await? {
            self.fetch_originals(deaths.into_iter()).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, token: &ClaimToken, finish: &Finish) -> Result<Finished> {
        let Some(mut row) = self.head(token.letter).await? else { return Ok(Finished::Stale) };
        let held = row.claim.clone().filter(|_| row.is_held_by(token));
        let Some(held) = held else {
            let again = row.finished == Some(token.fence);
            return Ok(if again { Finished::Applied } else { Finished::Stale });
        };
        match finish {
            Finish::Resolved(Resolution::Dismissed) => {
                self.end_item(&mut row, ItemOutcome::Skipped, Some("dismissed")).await?;
            }
            Finish::Resolved(_) => self.end_item(&mut row, ItemOutcome::Succeeded, None).await?,
            Finish::Dead(death) => self.died_anew(&mut row, death).await?,
            Finish::Retry { .. } | Finish::Released { .. } => {}
        }
        let changed = row.finish(&held, finish.clone(), self.now());
        if changed == Changed::All {
            self.take_key(&row).await?;
        }
        self.update(row, changed);
        Ok(Finished::Applied)
    }
}
