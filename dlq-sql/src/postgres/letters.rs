use std::collections::HashMap;

use dlq_core::store::reading::{Stretch, cut, stretches};
use dlq_core::store::{Group, Hours, Letters, Stats};
use dlq_core::{
    DeadLetter, Filter, Fingerprint, LetterId, LetterSummary, Order, Page, PageRequest, Status,
    StoreError, Timestamp,
};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::call::attempt;
use super::codec::{Fields, read_summary, read_whole};
use super::counts::MANY;
use super::filter::{is_counted, same};
use super::names::Names;
use super::query::Query;
use crate::error::{During, Result};
use crate::kinds::{Kind, span, with_prefix};
use crate::values::Take as _;

impl Letters for PostgresStore {
    async fn get(&self, id: LetterId) -> std::result::Result<Option<DeadLetter>, StoreError> {
        attempt!(self, conn => async {
            let query =
                Query::new(&self.names().select_whole).push(" WHERE t.letter_id = ").bind(id);
            Ok(query.first(conn, read_whole).await?.map(|row| row.letter))
        })
        .during("read the letter")
    }

    async fn get_all(
        &self,
        ids: Vec<LetterId>,
    ) -> std::result::Result<Vec<DeadLetter>, StoreError> {
        let found = attempt!(self, conn => async {
            let query = Query::new(&self.names().select_whole).push(" WHERE t.letter_id = ANY(");
            query.bind(ids.clone()).push(")").all(conn, read_whole).await
        });
        let found = found.during("read letters")?.into_iter();
        // The database gives the rows in no order, and the caller gets them in that of the ids.
        let mut found: HashMap<_, _> = found.map(|row| (row.letter.id, row.letter)).collect();
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }

    async fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> std::result::Result<Vec<LetterId>, StoreError> {
        let Some((first, last)) = with_prefix(&digits) else { return Ok(Vec::new()) };
        attempt!(self, conn => async {
            let sql =
                format!("SELECT letter_id FROM {} WHERE letter_id BETWEEN ", self.names().letters);
            let query = Query::new(sql).bind(first).push(" AND ").bind(last);
            let query = query.push(" ORDER BY letter_id LIMIT ").bind(limit);
            query.all(conn, |row| Fields::of(row).letter()).await
        })
        .during("find letters by id")
    }

    async fn list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> std::result::Result<Page, StoreError> {
        attempt!(self, conn => list(conn, self.names(), &filter, &page)).during("list letters")
    }

    async fn count(&self, filter: Filter) -> std::result::Result<u64, StoreError> {
        attempt!(self, conn => async {
            let names = self.names();
            // The table of counts answers without a look at any letter.
            let query = if is_counted(&filter) {
                Query::new(format!(
                    "SELECT coalesce(sum(t.n), 0)::bigint FROM {} t WHERE ",
                    names.counts
                ))
            } else {
                Query::new(format!("SELECT count(*) FROM {} t WHERE ", names.letters))
            };
            let count = query.filter(&filter).first(conn, |row| Fields::of(row).unsigned()).await?;
            Ok(count.unwrap_or(0))
        })
        .during("count letters")
    }

    async fn groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> std::result::Result<Vec<Group>, StoreError> {
        attempt!(self, conn => groups(conn, self.names(), &filter, limit)).during("group letters")
    }

    async fn stats(&self, filter: Filter) -> std::result::Result<Stats, StoreError> {
        let counted = attempt!(self, conn => stats(conn, self.names(), &filter));
        let (stats, differences) = counted.during("count letters by kind")?;
        // Whoever had to add up so many spares the next one the work.
        if differences > MANY {
            self.fold().await;
        }
        Ok(stats)
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> std::result::Result<Hours, StoreError> {
        attempt!(self, conn => by_hour(conn, self.names(), &filter, since, hours))
            .during("count letters by hour")
    }
}

async fn by_hour(
    conn: &mut PgConnection,
    names: &Names,
    filter: &Filter,
    since: Timestamp,
    hours: u32,
) -> Result<Hours> {
    let mut found = Hours::new(since, hours);
    let until = found.until();
    let counted = |column: &str| {
        let query = Query::new(format!("SELECT floor(extract(epoch FROM t.{column} - "));
        let rest = format!(") / 3600)::bigint, count(*) FROM {} t WHERE ", names.letters);
        query.bind(since).push(&rest)
    };
    let read = |record: &PgRow| {
        let mut fields = Fields::of(record);
        Ok((fields.int()?, fields.unsigned()?))
    };
    let stored = counted("created_at").filter(&found.stored(filter)).push(" AND t.created_at < ");
    let stored = stored.bind(until).push(" GROUP BY 1");
    for (hour, letters) in stored.all(&mut *conn, read).await? {
        found.add_stored_in(hour, letters);
    }
    if let Some(filter) = Hours::resolved(filter) {
        // Said in words, since an index of a condition may be used for no bound value.
        let resolved = counted("updated_at").filter(&filter);
        let resolved = resolved.push(" AND t.status = 'resolved' AND t.updated_at >= ").bind(since);
        let resolved = resolved.push(" AND t.updated_at < ").bind(until).push(" GROUP BY 1");
        for (hour, letters) in resolved.all(conn, read).await? {
            found.add_resolved_in(hour, letters);
        }
    }
    Ok(found)
}

async fn list(
    conn: &mut PgConnection,
    names: &Names,
    filter: &Filter,
    page: &PageRequest,
) -> Result<Page> {
    // One letter more is read than is asked for: it tells whether another page follows.
    let most = i64::from(page.limit.max(1)) + 1;
    let mut letters: Vec<LetterSummary> = Vec::new();
    for Stretch { order, after } in stretches(page) {
        let (beyond, order) = match order {
            Order::NewestFirst => ("<", " ORDER BY t.created_at DESC, t.letter_id DESC LIMIT "),
            Order::OldestFirst => (">", " ORDER BY t.created_at, t.letter_id LIMIT "),
        };
        let mut query = Query::new(&names.select_head).push(" WHERE ").filter(filter);
        if let Some((at, id)) = after {
            query = query.push(&format!(" AND (t.created_at, t.letter_id) {beyond} ("));
            query = query.bind(at).push(", ").bind(id).push(")");
        }
        let query = query.push(order).bind(most - letters.len() as i64);
        letters.append(&mut query.all(conn, read_summary).await?);
        if letters.len() as i64 == most {
            break;
        }
    }
    Ok(cut(letters, page))
}

/// A group, and where its first and last letters stand.
struct Seen {
    fingerprint: Fingerprint,
    consumer: String,
    count: u64,
    first: Timestamp,
    last: LetterId,
}

async fn groups(
    conn: &mut PgConnection,
    names: &Names,
    filter: &Filter,
    limit: u32,
) -> Result<Vec<Group>> {
    let (from, count) = if is_counted(filter) {
        (&names.counts, "sum(t.n)::bigint")
    } else {
        (&names.letters, "count(*)")
    };
    let largest = format!(
        "WITH largest AS (SELECT t.fingerprint, t.consumer, {count} AS n FROM {from} t WHERE "
    );
    let edge = |query: Query, select: &str, direction: &str| {
        let lateral = format!(
            " CROSS JOIN LATERAL (SELECT {select} FROM {} t \
             WHERE t.fingerprint = largest.fingerprint AND {} AND ",
            names.letters,
            same("t.consumer", "largest.consumer")
        );
        let order = format!(" ORDER BY t.created_at{direction}, t.letter_id{direction} LIMIT 1)");
        query.push(&lateral).filter(filter).push(&order)
    };
    // Differences of a group may cancel out.
    let query = Query::new(largest).filter(filter).push(&format!(
        " GROUP BY t.fingerprint, t.consumer HAVING {count} > 0 \
         ORDER BY {count} DESC, t.fingerprint, t.consumer LIMIT "
    ));
    let query = query.bind(limit).push(
        ") SELECT largest.fingerprint, largest.consumer, largest.n, early.created_at, late.letter_id FROM largest",
    );
    let query = edge(query, "t.created_at", "").push(" early");
    let query = edge(query, "t.letter_id", " DESC").push(" late");
    let query = query.push(" ORDER BY largest.n DESC, largest.fingerprint, largest.consumer");
    let all = query.all(conn, |record| {
        let mut fields = Fields::of(record);
        Ok(Seen {
            fingerprint: fields.word("fingerprint")?,
            consumer: fields.text()?,
            count: fields.unsigned()?,
            first: fields.time()?,
            last: fields.letter()?,
        })
    });
    let all = all.await?;
    let ids: Vec<_> = all.iter().map(|group| group.last).collect();
    let samples = Query::new(&names.select_head).push(" WHERE t.letter_id = ANY(").bind(ids);
    let samples = samples.push(")").all(conn, read_summary).await?;
    let group = |seen: Seen| {
        // The samples are read by another statement. A letter that was deleted in between leaves its group out.
        let sample = samples.iter().find(|sample| sample.id == seen.last)?.clone();
        Some(Group {
            fingerprint: seen.fingerprint,
            consumer: seen.consumer,
            count: seen.count,
            first_seen: seen.first,
            last_seen: sample.state.created_at,
            sample,
        })
    };
    Ok(all.into_iter().filter_map(group).collect())
}

async fn stats(conn: &mut PgConnection, names: &Names, filter: &Filter) -> Result<(Stats, u64)> {
    const BY: &str = "t.status, t.reason, t.cause, t.class, t.consumer, t.subject";
    let is_counted = is_counted(filter);
    let query = if is_counted {
        // Of a kind and a fingerprint there is one when they were folded.
        let none = "NULL::timestamptz, NULL::timestamptz, (sum(t.parts) - count(*))::bigint";
        Query::new(format!(
            "SELECT {BY}, sum(t.n)::bigint, {none} FROM \
             (SELECT {BY}, sum(t.n) AS n, count(*) AS parts FROM {} t WHERE ",
            names.counts
        ))
    } else {
        let edges = "min(t.created_at), max(t.created_at), 0::bigint";
        Query::new(format!("SELECT {BY}, count(*), {edges} FROM {} t WHERE ", names.letters))
    };
    let query = query.filter(filter);
    let query = if is_counted {
        query.push(&format!(" GROUP BY {BY}, t.fingerprint) t GROUP BY {BY}"))
    } else {
        query.push(&format!(" GROUP BY {BY}"))
    };
    let kinds = query.all(conn, |record| {
        let mut fields = Fields::of(record);
        let kind = Kind::read(&mut fields)?;
        let (n, oldest, newest) = (fields.int()?, fields.time_or_none()?, fields.time_or_none()?);
        Ok((kind, n, oldest, newest, fields.unsigned()?))
    });
    let (mut stats, mut differences) = (Stats::default(), 0);
    for (kind, n, oldest, newest, more) in kinds.await? {
        differences += more;
        let status = kind.status;
        // Differences of a kind may cancel out.
        if n > 0 {
            kind.add_to(&mut stats, n.cast_unsigned());
            span(&mut stats, status, oldest, newest);
        }
    }
    if is_counted {
        // Times are not counted: the first and the last letter of each status stand at the ends of its part of an
        // index.
        for status in stats.by_status.keys().copied().collect::<Vec<_>>() {
            let oldest = edge(conn, names, filter, status, "").await?;
            let newest = edge(conn, names, filter, status, " DESC").await?;
            span(&mut stats, status, oldest, newest);
        }
    }
    Ok((stats, differences))
}

/// When the first letter of this status that matches was stored, in ascending or descending order.
async fn edge(
    conn: &mut PgConnection,
    names: &Names,
    filter: &Filter,
    status: Status,
    direction: &str,
) -> Result<Option<Timestamp>> {
    let mut filter = filter.clone();
    filter.statuses = vec![status];
    Query::new(format!("SELECT t.created_at FROM {} t WHERE ", names.letters))
        .filter(&filter)
        .push(&format!(" ORDER BY t.created_at{direction}, t.letter_id{direction} LIMIT 1"))
        .first(conn, |row| Fields::of(row).time())
        .await
}
