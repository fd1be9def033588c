use std::collections::HashMap;
use std::rc::Rc;

use dlq_core::store::reading::{Stretch, cut, stretches};
use dlq_core::store::{Group, Hours, Letters, Stats};
use dlq_core::{
    DeadLetter, Filter, Fingerprint, LetterId, LetterSummary, Order, Page, PageRequest, Status,
    StoreError, Timestamp,
};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::SqliteStore;
use super::codec::Fields;
use super::codec::{read_summary, read_whole};
use super::filter::is_counted;
use super::names::Names;
use super::query::{Bind, Query};
use crate::error::{During, Result};
use crate::kinds::{Kind, span, with_prefix};
use crate::values::Take as _;

impl Letters for SqliteStore {
    async fn get(&self, id: LetterId) -> std::result::Result<Option<DeadLetter>, StoreError> {
        let get = move |conn: &Connection, names: &Names| {
            let query = Query::new(&names.select_whole).push(" WHERE t.letter_id = ").bind(id);
            Ok(query.first(conn, read_whole)?.map(|row| row.letter))
        };
        self.read(get).await.during("read the letter")
    }

    async fn get_all(
        &self,
        ids: Vec<LetterId>,
    ) -> std::result::Result<Vec<DeadLetter>, StoreError> {
        let get = move |conn: &Connection, names: &Names| {
            let one = |id: LetterId| {
                let query = Query::new(&names.select_whole).push(" WHERE t.letter_id = ").bind(id);
                Ok(query.first(conn, read_whole)?.map(|row| row.letter))
            };
            ids.iter().filter_map(|id| one(*id).transpose()).collect::<Result<_>>()
        };
        self.read(get).await.during("read letters")
    }

    async fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> std::result::Result<Vec<LetterId>, StoreError> {
        let Some((first, last)) = with_prefix(&digits) else { return Ok(Vec::new()) };
        let find = move |conn: &Connection, names: &Names| {
            Query::new(format!("SELECT letter_id FROM {} WHERE letter_id BETWEEN ", names.letters))
                .bind(first)
                .push(" AND ")
                .bind(last)
                .push(" ORDER BY letter_id LIMIT ")
                .bind(limit)
                .all(conn, |row| Ok(LetterId::from_bytes(row.get(0)?)))
        };
        self.read(find).await.during("find letters by id")
    }

    async fn list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> std::result::Result<Page, StoreError> {
        let list = move |conn: &Connection, names: &Names| list(conn, names, &filter, page);
        self.read(list).await.during("list letters")
    }

    async fn count(&self, filter: Filter) -> std::result::Result<u64, StoreError> {
        let count = move |conn: &Connection, names: &Names| {
            // The table of counts answers without a look at any letter.
            let query = if is_counted(&filter) {
                Query::new(format!("SELECT coalesce(sum(t.n), 0) FROM {} t WHERE ", names.counts))
            } else {
                Query::new(format!("SELECT count(*) FROM {} t WHERE ", names.letters))
            };
            let count = query.filter(&filter).first(conn, |row| Fields::after(row, 0).next())?;
            Ok(i64::cast_unsigned(count.unwrap_or(0)))
        };
        self.read(count).await.during("count letters")
    }

    async fn groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> std::result::Result<Vec<Group>, StoreError> {
        let groups = move |conn: &Connection, names: &Names| groups(conn, names, &filter, limit);
        self.read(groups).await.during("group letters")
    }

    async fn stats(&self, filter: Filter) -> std::result::Result<Stats, StoreError> {
        let stats = move |conn: &Connection, names: &Names| stats(conn, names, &filter);
        self.read(stats).await.during("count letters")
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> std::result::Result<Hours, StoreError> {
        let count =
            move |conn: &Connection, names: &Names| by_hour(conn, names, &filter, since, hours);
        self.read(count).await.during("count letters by hour")
    }
}

fn list(conn: &Connection, names: &Names, filter: &Filter, page: PageRequest) -> Result<Page> {
    // One letter more is read than is asked for: it tells whether another page follows.
    let most = i64::from(page.limit.max(1)) + 1;
    let mut letters: Vec<LetterSummary> = Vec::new();
    for Stretch { order, after } in stretches(&page) {
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
        letters.append(&mut query.all(conn, read_summary)?);
        if letters.len() as i64 == most {
            break;
        }
    }
    Ok(cut(letters, &page))
}

struct Seen {
    fingerprint: Fingerprint,
    count: u64,
    first: Timestamp,
    last: (Timestamp, LetterId),
}

/// Number of fingerprints of which each is looked up in the index.
const FEW: usize = 1_000;

/// All fingerprints of the store, where they are few and the filter asks for nothing but times and consumers. They are found by
/// as many steps in the index, however many letters there are.
fn few_fingerprints(
    conn: &Connection,
    names: &Names,
    filter: &Filter,
) -> Result<Option<Vec<Value>>> {
    let mut rest = filter.clone();
    (rest.since, rest.until) = (None, None);
    rest.consumers.clear();
    if rest != Filter::default() || (filter.since.is_none() && filter.until.is_none()) {
        return Ok(None);
    }
    let letters = &names.letters;
    let query = Query::new(format!(
        "WITH RECURSIVE found(f) AS (SELECT min(fingerprint) FROM {letters} UNION ALL \
         SELECT (SELECT min(fingerprint) FROM {letters} WHERE fingerprint > f) FROM found \
         WHERE f IS NOT NULL LIMIT {}) SELECT f FROM found WHERE f IS NOT NULL",
        FEW + 1
    ));
    let found = query.all(conn, |row| Ok(Value::from(row.get::<_, String>(0)?)))?;
    Ok(Some(found).filter(|found| found.len() <= FEW))
}

fn groups(conn: &Connection, names: &Names, filter: &Filter, limit: u32) -> Result<Vec<Group>> {
    let columns = "SELECT t.fingerprint, t.consumer, t.created_at, t.letter_id FROM";
    let query = match few_fingerprints(conn, names, filter)? {
        // The index by fingerprint has all that is asked for, which spares a look at each row.
        Some(few) => Query::new(format!("{columns} (SELECT value AS f FROM rarray("))
            .bind(Bind::Many(Rc::new(few)))
            .push(&format!(")) CROSS JOIN {} t WHERE t.fingerprint = f AND ", names.letters)),
        None => Query::new(format!("{columns} {} t WHERE ", names.letters)),
    };
    let query = query.filter(filter);
    let mut statement = query.prepare(conn)?;
    let mut rows = statement.raw_query();
    // By the fingerprint's text and the consumer, as they are stored.
    let mut seen: HashMap<(String, String), Seen> = HashMap::new();
    // One pair is filled again for each row, so that a row of a known group allocates nothing.
    let mut key = (String::new(), String::new());
    while let Some(row) = rows.next()? {
        let mut fields = Fields::after(row, 2);
        let place = (fields.time()?, LetterId::from_bytes(fields.next()?));
        for (part, column) in [(&mut key.0, 0), (&mut key.1, 1)] {
            part.clear();
            part.push_str(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?);
        }
        match seen.get_mut(&key) {
            Some(group) => {
                group.count += 1;
                group.first = group.first.min(place.0);
                group.last = group.last.max(place);
            }
            None => {
                let fingerprint = Fields::after(row, 0).word("fingerprint")?;
                let group = Seen { fingerprint, count: 1, first: place.0, last: place };
                seen.insert(key.clone(), group);
            }
        }
    }
    let mut all: Vec<_> =
        seen.into_iter().map(|((_, consumer), group)| (group, consumer)).collect();
    all.sort_unstable_by(|(one, one_consumer), (other, other_consumer)| {
        other
            .count
            .cmp(&one.count)
            .then_with(|| one.fingerprint.cmp(&other.fingerprint))
            .then_with(|| one_consumer.cmp(other_consumer))
    });
    all.truncate(limit as usize);
    let mut groups = Vec::with_capacity(all.len());
    for (group, consumer) in all {
        let sample =
            Query::new(&names.select_head).push(" WHERE t.letter_id = ").bind(group.last.1);
        // All of this is one snapshot, so that the letter that was just counted is there.
        let Some(sample) = sample.first(conn, read_summary)? else { continue };
        groups.push(Group {
            fingerprint: group.fingerprint,
            consumer,
            count: group.count,
            first_seen: group.first,
            last_seen: group.last.0,
            sample,
        });
    }
    Ok(groups)
}

fn stats(conn: &Connection, names: &Names, filter: &Filter) -> Result<Stats> {
    let columns = "t.status, t.reason, nullif(t.cause, ''), t.class, t.consumer, t.subject";
    let is_counted = is_counted(filter);
    // Where counts suffice, no letter is looked at. They know no times.
    let query = if is_counted {
        Query::new(format!("SELECT {columns}, t.n, NULL, NULL FROM {} t WHERE ", names.counts))
            .filter(filter)
    } else {
        Query::new(format!(
            "SELECT {columns}, count(*), min(t.created_at), max(t.created_at) FROM {} t WHERE ",
            names.letters
        ))
        .filter(filter)
        .push(" GROUP BY t.status, t.reason, t.cause, t.class, t.consumer, t.subject")
    };
    let mut stats = Stats::default();
    let mut statement = query.prepare(conn)?;
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let mut fields = Fields::after(row, 0);
        let kind = Kind::read(&mut fields)?;
        let n = i64::cast_unsigned(fields.next()?);
        let status = kind.status;
        if n > 0 {
            kind.add_to(&mut stats, n);
            span(&mut stats, status, fields.time_or_none()?, fields.time_or_none()?);
        }
    }
    drop(rows);
    if is_counted {
        // Times are not counted: the first and the last letter of each status stand at the ends of its part of an
        // index.
        for status in stats.by_status.keys().copied().collect::<Vec<_>>() {
            let oldest = edge(conn, names, filter, status, "")?;
            let newest = edge(conn, names, filter, status, " DESC")?;
            span(&mut stats, status, oldest, newest);
        }
    }
    Ok(stats)
}

fn by_hour(
    conn: &Connection,
    names: &Names,
    filter: &Filter,
    since: Timestamp,
    hours: u32,
) -> Result<Hours> {
    const HOUR: u128 = Hours::HOUR.as_nanos();
    let mut found = Hours::new(since, hours);
    let until = found.until();
    let counted = |column: &str| {
        let query = Query::new(format!("SELECT (t.{column} - ")).bind(since);
        query.push(&format!(") / {HOUR}, count(*) FROM {} t WHERE ", names.letters))
    };
    let read = |row: &rusqlite::Row<'_>| {
        let mut fields = Fields::after(row, 0);
        Ok((fields.next::<i64>()?, i64::cast_unsigned(fields.next()?)))
    };
    let stored = counted("created_at").filter(&found.stored(filter)).push(" AND t.created_at < ");
    for (hour, letters) in stored.bind(until).push(" GROUP BY 1").all(conn, read)? {
        found.add_stored_in(hour, letters);
    }
    if let Some(filter) = Hours::resolved(filter) {
        // Said in words, since an index of a condition is used for no bound value.
        let resolved = counted("updated_at").filter(&filter);
        let resolved = resolved.push(" AND t.status = 'resolved' AND t.updated_at >= ").bind(since);
        let resolved = resolved.push(" AND t.updated_at < ").bind(until).push(" GROUP BY 1");
        for (hour, letters) in resolved.all(conn, read)? {
            found.add_resolved_in(hour, letters);
        }
    }
    Ok(found)
}

/// When the first letter of this status that matches was stored, in ascending or descending order.
fn edge(
    conn: &Connection,
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
        .first(conn, |row| Fields::after(row, 0).time())
}
