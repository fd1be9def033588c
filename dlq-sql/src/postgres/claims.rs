//! Claims. One statement takes letters for one owner; nobody waits for another claimer.
//!
//! | the process dies | what is stored | what follows |
//! |---|---|---|
//! | before the claim is committed | nothing | the letters are due as before |
//! | after that, told or not | the claim | the lease ends, the next claim counts a crash, the token is worthless then |
//! | after operations released and before the claim | nothing: both are one transaction | the rate is not used up |
//! | after it claimed a letter of a cancelled operation, before that is taken back | the claim | the lease ends, the next claim takes it back |
//! | while finishing | all of it, or nothing | the lease ends, or the same finish again is `Applied` |
//! | while the schedule runs | all of it, or nothing | another runs it at once, or after the interval |
//!
//! A batch of finishes may be several transactions; each letter and its operation are in one of them.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use dlq_core::store::{
    Claim, ClaimRequest, ClaimToken, Claims, Finish, Finished, ItemOutcome, ScheduleRun, rules,
};
use dlq_core::{Filter, LetterId, OperationId, Status, StoreError, Timestamp};
use sqlx::PgConnection;

use super::PostgresStore;
use super::batch::Batch;
use super::call::{attempt, transact};
use super::codec::Fields;
use super::filter::{is_cut, same, start};
use super::names::Names;
use super::operations::{ACTIVE, next_release};
use super::query::{DURABLE, Query};
use super::unit::Unit;
use crate::columns;
use crate::error::{During, Result};
use crate::row::Changed;
use crate::values::{self, Put as _, Take as _};

impl Claims for PostgresStore {
    async fn claim(&self, request: ClaimRequest) -> std::result::Result<Vec<Claim>, StoreError> {
        self.claim_due(&request).await.during("claim letters")
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> std::result::Result<Vec<bool>, StoreError> {
        self.extend_held(&tokens, lease).await.during("extend claims")
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> std::result::Result<Vec<Finished>, StoreError> {
        self.finish_held(&finishes).await.during("finish claims")
    }

    async fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> std::result::Result<Option<Timestamp>, StoreError> {
        let given = self.given_time();
        attempt!(self, conn => next_due(conn, self.names(), &consumers, given))
            .during("find the next due letter")
    }

    async fn due_elsewhere(
        &self,
        consumers: Vec<String>,
        heard: u64,
    ) -> std::result::Result<u64, StoreError> {
        Ok(self.heard(&consumers, heard).await)
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn run_schedule(
        &self,
        run: ScheduleRun,
    ) -> std::result::Result<(u64, Duration), StoreError> {
        if !run.schedule.enabled {
            return Ok((0, Duration::MAX));
        }
        transact!(self, unit => unit.run_schedule(&run)).during("run the schedule")
    }
}

impl PostgresStore {
    async fn claim_due(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        if request.limit == 0 {
            return Ok(Vec::new());
        }
        let (names, given) = (self.names(), self.given_time());
        let mut claims: Vec<Claimed> = Vec::new();
        let (room, is_active) = loop {
            let room = request.limit.saturating_sub(count(claims.len()));
            let due = attempt!(self, conn => claim(conn, names, request, room, given));
            let step = match due {
                Ok((due, is_active)) => {
                    self.wrote(due.len()).await;
                    let found = due.len();
                    let due = self.without_cancelled(due).await;
                    due.map(|due| (due.len() == found, due, is_active))
                }
                Err(fault) => Err(fault),
            };
            match step {
                Ok((is_done, due, is_active)) => {
                    claims.extend(due);
                    // What was taken back has left room.
                    if is_done {
                        break (request.limit.saturating_sub(count(claims.len())), is_active);
                    }
                }
                // What has been claimed is handed out; who claims again hears of what is wrong.
                Err(fault) if claims.is_empty() => return Err(fault),
                Err(_) => break (0, false),
            }
        };
        if room > 0 && is_active {
            let released: Result<_> = transact!(self, unit => async {
                unit.release(&request.filter, room as usize).await?;
                unit.flush().await?;
                // What was released is taken here.
                unit.wakes.clear();
                claim(unit.conn(), names, request, room, given).await
            });
            match released {
                Ok((released, _)) => claims.extend(released),
                // What has been claimed is handed out; who claims again hears of what is wrong.
                Err(fault) if claims.is_empty() => return Err(fault),
                Err(_) => {}
            }
        }
        claims.sort_unstable_by_key(|claimed| claimed.place);
        Ok(claims.into_iter().map(|claimed| claimed.claim).collect())
    }

    /// The claims that are to be handed out, of these. Letters that a cancelled operation had sent, and that nobody runs
    /// any more, are taken back instead: where the process dies before that, whoever claims next takes them back.
    async fn without_cancelled(&self, claimed: Vec<Claimed>) -> Result<Vec<Claimed>> {
        let operations: BTreeSet<_> = claimed.iter().filter_map(Claimed::sent_by).collect();
        if operations.is_empty() {
            return Ok(claimed);
        }
        let (sent, mut kept): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|claimed| claimed.sent_by().is_some());
        match self.take_back_cancelled(&operations, sent).await {
            Ok(more) => kept.extend(more),
            // The lease of the others ends.
            Err(fault) if kept.is_empty() => return Err(fault),
            Err(_) => {}
        }
        Ok(kept)
    }

    /// Takes back those that one of these operations had sent that is cancelled. Returns the others.
    async fn take_back_cancelled(
        &self,
        operations: &BTreeSet<OperationId>,
        sent: Vec<Claimed>,
    ) -> Result<Vec<Claimed>> {
        let cancelled = attempt!(self, conn => async {
            let ids: Vec<_> = operations.iter().map(|id| id.as_bytes().to_vec()).collect();
            let query = format!("SELECT id FROM {} WHERE state = 'cancelled' AND id = ANY(", self.names().operations);
            let query = Query::new(query).bind(ids).push(")");
            query.all(conn, |record| Fields::of(record).id_or_none()).await
        });
        let cancelled: Vec<_> =
            cancelled?.into_iter().flatten().map(OperationId::from_bytes).collect();
        let (back, kept): (Vec<_>, Vec<_>) = sent
            .into_iter()
            .partition(|sent| sent.sent_by().is_some_and(|id| cancelled.contains(&id)));
        if !back.is_empty() {
            transact!(self, unit => unit.take_back(&back))?;
        }
        Ok(kept)
    }

    async fn extend_held(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<bool>> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let (letters, given) = (&self.names().letters, self.given_time());
        let held: Result<Vec<ClaimToken>> = attempt!(self, conn => async {
            let mut batch = Batch::default();
            for token in tokens {
                put_token(batch.row(), token)?;
            }
            let query = Query::new(format!(
                "WITH held AS (SELECT t.letter_id FROM {letters} t JOIN "
            ));
            let query = query.batch(batch)?.push(&format!(
                " AS u (letter_id, generation, fence) ON {HELD} ORDER BY t.letter_id FOR UPDATE OF t) \
                 UPDATE {letters} t SET claim_until = x.until, available_at = x.until FROM held h, "
            ));
            let query = lasting(query, lease, given).push(&format!(
                " WHERE t.letter_id = h.letter_id AND {DURABLE} RETURNING t.letter_id, t.generation, t.claim_fence"
            ));
            query.all(conn, |record| read_token(&mut Fields::of(record))).await
        });
        let held: HashSet<_> = held?.into_iter().collect();
        Ok(tokens.iter().map(|token| held.contains(token)).collect())
    }
}

/// Whether the row `t` is held by the token `u`.
pub(super) const HELD: &str = "t.letter_id = u.letter_id AND t.generation = u.generation \
    AND t.claim_fence = u.fence AND t.claim_former IS NOT NULL";

pub(super) fn put_token<'v>(row: &mut Batch<'v>, token: &'v ClaimToken) -> Result<()> {
    row.bytes(Some(token.letter.as_bytes()))?;
    row.count(token.generation)?;
    row.int(Some(values::signed(token.fence)))
}

pub(super) fn read_token(fields: &mut Fields<'_>) -> Result<ClaimToken> {
    Ok(ClaimToken {
        letter: fields.letter()?,
        generation: fields.count()?,
        fence: fields.unsigned()?,
    })
}

/// In microseconds, rounded up; at most about 290 years.
pub(super) fn micros(time: Duration) -> i64 {
    const MOST: i64 = i64::MAX / 1_000;
    i64::try_from(time.as_nanos().div_ceil(1_000)).map_or(MOST, |micros| micros.min(MOST))
}

/// Adds a source `x` of the time now, `at`, and of that after `lease`, `until`.
fn lasting(query: Query, lease: Duration, given: Option<Timestamp>) -> Query {
    let query = query.push("(SELECT ").now(given).push(" AS at, ").now(given).push(" + ");
    query.bind(micros(lease)).push(" * interval '1 microsecond' AS until) x")
}

/// When a letter was due, when it was stored, and its id: the order in which letters are handed out.
type Place = (Timestamp, Timestamp, LetterId);

/// A claim that was made.
struct Claimed {
    place: Place,
    /// When the letter was handed out before.
    was_handed_out: Option<Timestamp>,
    claim: Claim,
}

impl Claimed {
    /// The operation that sent the letter; `None` for a record, whose run goes on.
    fn sent_by(&self) -> Option<OperationId> {
        self.claim.letter.state.operation.filter(|_| !self.claim.continues)
    }
}

fn count(claims: usize) -> u32 {
    u32::try_from(claims).unwrap_or(u32::MAX)
}

impl Unit<'_> {
    /// Takes back what has just been claimed for an operation that is cancelled: as if it had not been claimed.
    async fn take_back(&mut self, claimed: &[Claimed]) -> Result<()> {
        let now = self.now();
        let letters: Vec<_> = claimed.iter().map(|one| one.claim.token.letter).collect();
        self.fetch_heads(&letters).await?;
        for Claimed { was_handed_out, claim, .. } in claimed {
            let row = self.head(claim.token.letter).await?;
            // It may have died anew, or been marked, since.
            let Some(mut row) = row.filter(|row| row.is_held_by(&claim.token)) else { continue };
            self.end_item(&mut row, ItemOutcome::Skipped, Some("cancelled")).await?;
            row.void();
            rules::put_back(&mut row.letter, Status::Pending, now);
            row.letter.state.last_retry_at = *was_handed_out;
            self.update(row, Changed::State);
        }
        Ok(())
    }
}

/// Claims due letters, in order; says also whether operations may have more. Letters that others are at are passed over.
async fn claim(
    conn: &mut PgConnection,
    names: &Names,
    request: &ClaimRequest,
    limit: u32,
    given: Option<Timestamp>,
) -> Result<(Vec<Claimed>, bool)> {
    let Names { letters, operations, fences, whole, .. } = names;
    let query = due(Query::new("WITH due AS MATERIALIZED ("), names, &request.filter, limit, given);
    let query = query.push(&format!(
        "), claimed AS (UPDATE {letters} t SET status = 'replaying', retry_after = NULL, \
         claim_former = coalesce(t.claim_former, t.status), \
         lapses = CASE WHEN t.claim_former IS NULL THEN t.lapses ELSE least(t.lapses + 1, 4294967295) END, \
         claim_fence = nextval('{fences}'), claim_until = x.until, available_at = x.until, \
         last_retry_at = x.at, updated_at = x.at, claim_owner = "
    ));
    let query = query.bind(request.owner.as_str()).push(" FROM due d, ");
    let query = lasting(query, request.lease, given).push(&format!(
        " WHERE t.letter_id = d.id AND {DURABLE} RETURNING d.was_due, d.was_handed_out, {whole}) \
         SELECT a.is_active, c.* FROM (SELECT EXISTS (SELECT FROM {operations} WHERE {ACTIVE}) AS is_active) a \
         LEFT JOIN claimed c ON true"
    ));
    let mut is_active = false;
    let claimed = query.all(conn, |record| {
        let mut fields = Fields::of(record);
        is_active = fields.flag()?;
        let Some(was_due) = fields.time_or_none()? else { return Ok(None) };
        let was_handed_out = fields.time_or_none()?;
        let row = crate::row::Row::from(columns::read_whole(&mut fields)?);
        let place = (was_due, row.letter.state.created_at, row.letter.id);
        let held = row.claim.clone();
        Ok(held.map(|held| {
            let claim = row.into_claim(held.former, held.until);
            Claimed { place, was_handed_out, claim }
        }))
    });
    Ok((claimed.await?.into_iter().flatten().collect(), is_active))
}

/// Adds a statement that locks the letters that can be claimed now, first come first, at most `limit`. For named
/// consumers each is looked up in the index of its own, so that some more may be locked for a moment.
fn due(
    query: Query,
    names: &Names,
    filter: &Filter,
    limit: u32,
    given: Option<Timestamp>,
) -> Query {
    let (consumers, rest) = by_consumer(filter);
    let query = query.push(
        "SELECT d.letter_id AS id, d.available_at AS was_due, d.last_retry_at AS was_handed_out FROM ",
    );
    let query = each_consumer(query, &consumers).push(&format!(
        "(SELECT t.letter_id, t.available_at, t.created_at, t.last_retry_at FROM {} t WHERE {}t.available_at <= ",
        names.letters,
        of_consumer("t", &consumers)
    ));
    let query = query.now(given).push(" AND ").filter(&rest);
    let query = query.push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ");
    let query = query.bind(limit).push(" FOR UPDATE SKIP LOCKED) d");
    query.push(" ORDER BY d.available_at, d.created_at, d.letter_id LIMIT ").bind(limit)
}

/// The consumers that are named, each once, and what else the filter asks for.
pub(super) fn by_consumer(filter: &Filter) -> (Vec<String>, Filter) {
    let mut rest = filter.clone();
    let mut consumers = std::mem::take(&mut rest.consumers);
    consumers.sort_unstable();
    consumers.dedup();
    (consumers, rest)
}

/// Adds what makes the subselect that follows run once for each of these consumers, so that each is answered in order
/// from an index; once for all together where none is named.
pub(super) fn each_consumer(query: Query, consumers: &[String]) -> Query {
    match consumers {
        [] => query,
        consumers => query.push("unnest(").bind(consumers).push("::text[]) AS c (name), LATERAL "),
    }
}

/// The condition that goes with it.
pub(super) fn of_consumer(table: &str, consumers: &[String]) -> String {
    if consumers.is_empty() {
        String::new()
    } else if consumers.iter().any(|name| is_cut(name)) {
        format!("{} AND ", same(&format!("{table}.consumer"), "c.name"))
    } else {
        format!("{} = c.name AND ", start(&format!("{table}.consumer")))
    }
}

async fn next_due(
    conn: &mut PgConnection,
    names: &Names,
    consumers: &[String],
    given: Option<Timestamp>,
) -> Result<Option<Timestamp>> {
    let query = Query::new("SELECT ").now(given).push(&format!(
        ", EXISTS (SELECT FROM {} WHERE {ACTIVE}), (SELECT min(d.available_at) FROM ",
        names.operations
    ));
    let query = each_consumer(query, consumers).push(&format!(
        "(SELECT t.available_at FROM {} t WHERE {}t.available_at IS NOT NULL ORDER BY t.available_at LIMIT 1) d)",
        names.letters,
        of_consumer("t", consumers)
    ));
    let found = query.first(conn, |record| {
        let mut fields = Fields::of(record);
        Ok((fields.time()?, fields.flag()?, fields.time_or_none()?))
    });
    let Some((now, is_active, next)) = found.await? else { return Ok(None) };
    if !is_active {
        return Ok(next);
    }
    let release = next_release(conn, names, consumers, now).await?;
    Ok(next.into_iter().chain(release).min())
}
