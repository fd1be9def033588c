//! How many letters wait to be claimed.

use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::store::Due;

use super::SqliteStore;
use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use crate::error::During;
use crate::values::Take as _;

impl SqliteStore {
    /// Counted along the index of what can be claimed, no further than [`Due::MOST`].
    pub(super) async fn due_by_consumer(&self, overdue: Duration) -> Result<Vec<Due>, StoreError> {
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
        .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
        .bind(Due::MOST)
        .push(") d GROUP BY d.consumer ORDER BY d.consumer")
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

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
