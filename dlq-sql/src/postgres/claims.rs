//! Claims. One statement takes letters for one owner; nobody waits for another claimer.
//!
//! | the process dies | what is stored | what follows |
//! |---|---|---|
//! | before the claim is committed | nothing | the letters are due as before |
//! | after that, told or not | the claim | the lease ends, the next claim counts a crash, the token is worthless then |
//! | after operations released and before the claim | nothing: both are one transaction | the rate is not used up |
//! | while finishing | all of it, or nothing | the lease ends, or the same finish again is `Applied` |
//! | while the schedule runs | all of it, or nothing | another runs it at once, or after the interval |
//!
//! A batch of finishes may be several transactions; each letter and its operation are in one of them.

use std::collections::HashSet;
use std::time::Duration;

use dlq_core::store::{Claim, ClaimRequest, ClaimToken};
use dlq_core::{Filter, LetterId, Timestamp};
use sqlx::PgConnection;

use super::PostgresStore;
use super::batch::Batch;
use super::call::attempt;
use super::codec::Fields;
use super::filter::{is_cut, same, start};
use super::names::Names;
use super::operations::{ACTIVE, next_release};
use super::query::{DURABLE, Query};
use crate::columns;
use crate::error::Result;
use crate::values::{self, Put as _, Take as _};

impl PostgresStore {
    /// Claims due letters in one statement, and nothing else; `None`, and nothing is claimed, if an operation may release
    /// letters into what room is left, or was cancelled and had sent one of these.
    pub(super) async fn claim_plainly(&self, request: &ClaimRequest) -> Result<Option<Vec<Claim>>> {
        let (names, given) = (self.names(), self.given_time());
        let claimed = attempt!(self, conn => claim(conn, names, request, given))?;
        let Some(mut claims) = claimed else { return Ok(None) };
        // A claim changes the status of each letter, by which letters are counted.
        self.wrote(claims.len()).await;
        // `RETURNING` gives the rows in no order.
        claims.sort_unstable_by_key(|(place, _)| *place);
        Ok(Some(claims.into_iter().map(|(_, claim)| claim).collect()))
    }

    pub(super) async fn find_next_due(&self, consumers: &[String]) -> Result<Option<Timestamp>> {
        let given = self.given_time();
        attempt!(self, conn => next_due(conn, self.names(), consumers, given))
    }

    pub(super) async fn extend_claims(
        &self,
        tokens: &[ClaimToken],
        lease: Duration,
    ) -> Result<Vec<bool>> {
        let (letters, given) = (&self.names().letters, self.given_time());
        let held: Result<Vec<ClaimToken>> = attempt!(self, conn => async {
            let mut batch = Batch::default();
            for token in tokens {
                put_token(batch.row(), token)?;
            }
            let query = Query::new(format!(
                "WITH held AS (SELECT t.letter_id FROM {letters} t JOIN "
            ));
            // Letters are locked in the order of ids, as everybody does who waits, so that no two calls wait in a circle.
            let query = query.batch(batch)?.push(&format!(
                " AS u (letter_id, generation, fence) ON {HELD} ORDER BY t.letter_id FOR UPDATE OF t) \
                 UPDATE {letters} t SET claim_until = x.until, \
                 available_at = CASE WHEN t.claim_sender IS NULL THEN x.until END FROM held h, "
            ));
            let query = lasting(query, lease, given).push(&format!(
                " WHERE t.letter_id = h.letter_id AND {DURABLE} RETURNING t.letter_id, t.generation, t.claim_fence"
            ));
            query.all(conn, |record| read_token(&mut Fields::of(record))).await
        });
        // A lease that has ended is extended, too: until somebody else claims, which changes the fence, nobody else
        // runs it.
        let held: HashSet<_> = held?.into_iter().collect();
        Ok(tokens.iter().map(|token| held.contains(token)).collect())
    }
}

/// Condition that the row `t` is held by the token `u`.
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
type DueKey = (Timestamp, Timestamp, LetterId);

/// Claims due letters. Those that others are at are passed over. `None` if that is not all that is to be done.
async fn claim(
    conn: &mut PgConnection,
    names: &Names,
    request: &ClaimRequest,
    given: Option<Timestamp>,
) -> Result<Option<Vec<(DueKey, Claim)>>> {
    let Names { letters, operations, fences, whole, .. } = names;
    let limit = request.limit;
    // With `MATERIALIZED` the locking runs once, and the rest of the statement looks at what it has locked.
    let query = due(Query::new("WITH due AS MATERIALIZED ("), names, &request.filter, limit, given);
    let query = query.push(&format!(
        "), plain AS MATERIALIZED (SELECT NOT EXISTS (SELECT FROM due d JOIN {operations} o ON o.id = d.sent_by \
         WHERE o.state = 'cancelled') AND (NOT EXISTS (SELECT FROM {operations} WHERE {ACTIVE}) \
         OR (SELECT count(*) FROM due) >= "
    ));
    // A claim that is still there was not finished within its lease: its lapse is counted. Tokens come from a sequence,
    // which gives none out twice (G6).
    let query = query.bind(limit).push(&format!(
        ") AS is_plain), claimed AS (UPDATE {letters} t SET status = 'replaying', retry_after = NULL, \
         claim_former = coalesce(t.claim_former, t.status), \
         lapses = CASE WHEN t.claim_former IS NULL THEN t.lapses ELSE least(t.lapses + 1, 4294967295) END, \
         claim_fence = nextval('{fences}'), claim_until = x.until, available_at = x.until, \
         last_retry_at = x.at, updated_at = x.at, claim_owner = "
    ));
    let query = query.bind(request.owner.as_str()).push(" FROM due d, plain p, ");
    let query = lasting(query, request.lease, given).push(&format!(
        " WHERE t.letter_id = d.id AND p.is_plain AND {DURABLE} RETURNING d.was_due, {whole}) \
         SELECT p.is_plain, c.* FROM plain p LEFT JOIN claimed c ON true"
    ));
    let mut is_plain = true;
    let claimed = query.all(conn, |record| {
        let mut fields = Fields::of(record);
        is_plain = fields.flag()?;
        // A row without a letter only tells whether the claim was plain.
        let Some(was_due) = fields.time_or_none()? else { return Ok(None) };
        let row = columns::read_whole(&mut fields)?;
        let place = (was_due, row.letter.state.created_at, row.letter.id);
        let held = row.claim.clone();
        Ok(held.map(|held| (place, row.into_claim(held.former, held.until))))
    });
    let claimed = claimed.await?.into_iter().flatten().collect();
    Ok(is_plain.then_some(claimed))
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
    // Consumers are not part of the condition, since one index answers for one name in the order of the line.
    let (consumers, rest) = by_consumer(filter);
    // The operation that sent it; of a record none, since its run goes on.
    let query = query.push(
        "SELECT d.letter_id AS id, d.available_at AS was_due, \
         CASE WHEN 'retrying' NOT IN (d.status, coalesce(d.claim_former, '')) THEN d.operation END AS sent_by FROM ",
    );
    let query = each_consumer(query, &consumers).push(&format!(
        "(SELECT t.letter_id, t.available_at, t.created_at, t.status, t.claim_former, t.operation \
         FROM {} t WHERE {}t.available_at <= ",
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
    // A name that is given twice would find its letters twice, and count them twice against the limit.
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
    // Only an operation that runs releases letters later.
    if !is_active {
        return Ok(next);
    }
    let release = next_release(conn, names, consumers, now).await?;
    Ok(next.into_iter().chain(release).min())
}
