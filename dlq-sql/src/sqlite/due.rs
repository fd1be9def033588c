//! Count of letters that wait to be claimed, and the time at which the next will.

use std::time::Duration;

use dlq_core::store::Due;
use dlq_core::{StoreError, Timestamp};
use rusqlite::Connection;

use super::SqliteStore;
use super::codec::Fields;
use super::names::Names;
use super::operations;
use super::query::Query;
use crate::error::{During, Result};
use crate::values::Take as _;

impl SqliteStore {
    /// Counted along the index of what can be claimed, no further than [`Due::MOST`].
    pub(super) async fn due_by_consumer(
        &self,
        overdue: Duration,
    ) -> std::result::Result<Vec<Due>, StoreError> {
        let now = self.now();
        let latest = now.before(overdue);
        self.read(move |conn, names| {
            counts("", names, now.as_nanos(), latest.as_nanos()).all(conn, |record| {
                let mut fields = Fields::after(record, 0);
                Ok(Due {
                    consumer: fields.text()?,
                    letters: fields.unsigned()?,
                    overdue: fields.unsigned()?,
                    since: fields.time()?,
                })
            })
        })
        .await
        .during("count what is due")
    }
}

fn counts(explain: &str, names: &Names, now: i64, latest: i64) -> Query {
    Query::new(format!("{explain}SELECT d.consumer, count(*), sum(d.available_at <= "))
        .bind(latest)
        .push(&format!(
            "), min(d.available_at) FROM (SELECT t.consumer, t.available_at FROM {} t \
             WHERE t.available_at IS NOT NULL AND t.available_at <= ",
            names.letters
        ))
        .bind(now)
        // The limit stands inside of the grouping, so that counting ends there however many letters are due.
        .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
        .bind(Due::MOST)
        .push(") d GROUP BY d.consumer ORDER BY d.consumer")
}

/// When the next letter of these consumers can be claimed, or released by an operation.
pub(super) fn next_due(
    conn: &Connection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let first = |name: Option<&str>| -> Result<Option<Timestamp>> {
        let query =
            Query::new(format!("SELECT available_at FROM {0} INDEXED BY {0}", names.letters));
        // The index is named, so that the first entry answers and nothing is sorted.
        let query = match name {
            Some(name) => query.push("_available_to WHERE consumer = ").bind(name),
            None => query.push("_available WHERE 1"),
        };
        query
            .push(" AND available_at IS NOT NULL ORDER BY available_at LIMIT 1")
            .first(conn, |row| Fields::after(row, 0).time())
    };
    // Each consumer is asked for alone: its first letter is the first entry of its part of the index.
    let mut next = if consumers.is_empty() { first(None)? } else { None };
    for name in consumers {
        next = next.into_iter().chain(first(Some(name))?).min();
    }
    let release = operations::next_release(conn, names, consumers, now)?;
    Ok(next.into_iter().chain(release).min())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    /// As quick at many letters as at few.
    #[test]
    fn letters_that_wait_are_counted_by_their_index() {
        let names = Names::new("dlq_events").unwrap();
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, &names, |_, _| None).unwrap();
        let plan = counts("EXPLAIN QUERY PLAN ", &names, 1, 1).all(&conn, |row| Ok(row.get(3)?));
        let plan: Vec<String> = plan.unwrap();
        let line = "SEARCH t USING INDEX dlq_events_available (available_at>? AND available_at<?)";
        assert!(plan.iter().any(|step| step == line), "{plan:?}");
        assert!(!plan.iter().any(|step| step.starts_with("SCAN t")), "{plan:?}");
    }
}
