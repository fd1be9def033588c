//! Facts that the store finds out about itself.

use dlq_core::store::{CheckLimits, Letters as _, Vitals, Waiting};
use dlq_core::{Filter, Finding, Severity, StoreError};
use rusqlite::{Connection, Row};

use super::SqliteStore;
use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use super::{operations, schema};
use crate::error::{During, Result};
use crate::values::Take as _;

/// From which part of the largest size on a file is nearly full, in hundredths.
const NEARLY_FULL: u64 = 90;

impl SqliteStore {
    pub(super) async fn examine(
        &self,
        limits: CheckLimits,
    ) -> std::result::Result<Vec<Finding>, StoreError> {
        let missing = self.read(schema::missing).await.during("check the store")?;
        let counts = &self.inner.names.counts;
        let mut findings: Vec<_> = missing.iter().map(|part| lacks(part, counts)).collect();
        // Without a table there is no more to ask.
        if missing.iter().any(|part| part.kind == "table") {
            return Ok(findings);
        }
        // The counts answer this, so that a check costs the same however many letters there are.
        let stats = self.stats(Filter::new()).await?;
        let now = self.now();
        let vitals = self.read(move |conn, names| {
            let mut vitals = Vitals::new(now);
            (vitals.waiting, vitals.latest) = waiting(conn, names, now.as_nanos())?;
            vitals.operations = operations::under_way(conn, names)?;
            vitals.processed = rows(conn, &names.processed)?;
            Ok(vitals)
        });
        let mut vitals = vitals.await.during("check the store")?;
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        findings.extend(vitals.findings(&limits));
        if let Some(most) = self.inner.max_pages {
            let used = self.read(|conn, _| used_pages(conn)).await.during("check the store")?;
            findings.extend(nearly_full(used, most.into()));
        }
        // Only on demand, since it reads the whole file.
        if limits.is_deep {
            findings.extend(self.verify().await?.iter().map(|damage| damaged(damage)));
        }
        Ok(findings)
    }
}

/// The letters of each consumer that have waited longest, and the one that is due last, by the index of what each can
/// claim.
fn waiting(conn: &Connection, names: &Names, now: i64) -> Result<(Vec<Waiting>, Vec<Waiting>)> {
    let (mut all, mut latest, mut consumer) = (Vec::new(), Vec::new(), None::<String>);
    let waits = |record: &Row<'_>| {
        let mut fields = Fields::after(record, 0);
        Ok(Waiting {
            status: fields.word("status")?,
            consumer: fields.next()?,
            since: fields.time()?,
        })
    };
    loop {
        // From one consumer to the next it is one step in the index, past all letters that wait for it.
        let next = next_consumer("", names, consumer.as_deref());
        consumer = next.first(conn, |record| Fields::after(record, 0).next())?;
        let Some(consumer) = &consumer else { return Ok((all, latest)) };
        all.extend(line("", names, consumer, now).all(conn, waits)?);
        latest.extend(last("", names, consumer).first(conn, waits)?);
    }
}

/// The consumer that comes next of those for which letters wait.
fn next_consumer(explain: &str, names: &Names, after: Option<&str>) -> Query {
    // Counting would read every row. Rows are numbered as they come, so that the distance says about how many there
    // are.
    let sql = format!(
        "{explain}SELECT t.consumer FROM {} t WHERE t.available_at IS NOT NULL",
        names.letters
    );
    let query = match after {
        Some(after) => Query::new(sql).push(" AND t.consumer > ").bind(after),
        None => Query::new(sql),
    };
    query.push(" ORDER BY t.consumer LIMIT 1")
}

fn line(explain: &str, names: &Names, consumer: &str, now: i64) -> Query {
    let sql = format!(
        "{explain}SELECT t.status, t.consumer, t.available_at FROM {} t \
         WHERE t.available_at IS NOT NULL AND t.consumer = ",
        names.letters
    );
    Query::new(sql)
        .bind(consumer)
        .push(" AND t.available_at <= ")
        .bind(now)
        .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
        .bind(Vitals::MOST)
}

fn last(explain: &str, names: &Names, consumer: &str) -> Query {
    let sql = format!(
        "{explain}SELECT t.status, t.consumer, t.available_at FROM {} t \
         WHERE t.available_at IS NOT NULL AND t.consumer = ",
        names.letters
    );
    Query::new(sql).bind(consumer).push(" ORDER BY t.available_at DESC LIMIT 1")
}

/// About how many rows a table has whose rows are numbered one after the other.
fn rows(conn: &Connection, table: &str) -> Result<u64> {
    let sql = format!(
        "SELECT coalesce((SELECT max(seq) FROM {table}) - (SELECT min(seq) FROM {table}) + 1, 0)"
    );
    Ok(conn.query_row(&sql, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
}

fn used_pages(conn: &Connection) -> Result<u64> {
    let page = |pragma: &str| conn.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0));
    // Free pages are filled before the file grows.
    let (all, free): (i64, i64) = (page("page_count")?, page("freelist_count")?);
    Ok((all - free).cast_unsigned())
}

fn nearly_full(used: u64, most: u64) -> Option<Finding> {
    (used * 100 >= most * NEARLY_FULL).then(|| {
        Finding::new(Severity::Warning, "file", "used pages")
            .found(format!("{used} of {most}"), format!("less than {NEARLY_FULL} in 100"))
            .advice(
                "a full file takes no letters, and consumers stop; delete what is resolved for good: dlq delete --status \
                 resolved --until 7d --for-good; or raise the largest size",
            )
    })
}

fn lacks(part: &schema::Part, counts: &str) -> Finding {
    let schema::Part { kind, name, sql } = part;
    // On one line, so that it can be typed.
    let again = || sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let (severity, advice) = match kind.as_str() {
        "index" => (
            Severity::Error,
            format!(
                "whatever it serves reads every letter; somebody has dropped it, create it again: {}",
                again()
            ),
        ),
        "view" => (
            Severity::Warning,
            format!(
                "what people query is gone; somebody has dropped it, create it again: {}",
                again()
            ),
        ),
        _ if name == counts => (
            Severity::Error,
            "no letter is written without it; somebody has dropped it, make it again, which counts all letters: dlq migrate \
             --apply"
                .to_owned(),
        ),
        _ => (
            Severity::Error,
            "the store does not work without it; stop what writes to the file and restore a backup"
                .to_owned(),
        ),
    };
    Finding::new(severity, &format!("{kind} `{name}`"), "existence")
        .found("missing", "there")
        .advice(advice)
}

fn damaged(damage: &str) -> Finding {
    Finding::new(Severity::Error, "file", "integrity").found(damage, "whole").advice(
        "stop what writes to the file, keep a copy of it, and restore a backup or take over what can be read: dlq export",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As quick at many letters as at few.
    #[test]
    fn letters_that_wait_are_found_by_their_index() {
        let names = Names::new("dlq_events").unwrap();
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, &names, |_, _| None).unwrap();
        let plan =
            |query: Query| -> Vec<String> { query.all(&conn, |row| Ok(row.get(3)?)).unwrap() };
        let explain = "EXPLAIN QUERY PLAN ";
        let by = "SEARCH t USING INDEX dlq_events_available_to";
        let range = "(consumer=? AND available_at>? AND available_at<?)";
        assert_eq!(plan(line(explain, &names, "a", 1)), [format!("{by} {range}")]);
        assert_eq!(plan(last(explain, &names, "a")).len(), 1, "it reads one row");
        let next = plan(next_consumer(explain, &names, Some("a")));
        assert!(
            next.len() == 1 && next[0].contains("INDEX dlq_events_available_to (consumer>?)"),
            "{next:?}"
        );
    }
}
