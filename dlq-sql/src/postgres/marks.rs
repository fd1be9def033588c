use dlq_core::{CrashMarks, LetterId, StoreError};

use super::PostgresStore;
use super::call::{attempt, new_call_id};
use super::codec::Fields;
use super::query::{DURABLE, Query};
use crate::error::During;
use crate::values::Take as _;

impl CrashMarks for PostgresStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        // The same for all tries: a mark whose answer was lost is not written once more (G3).
        let call = new_call_id();
        attempt!(self, conn => async {
            // It is one statement, so that of two runs at once the second sees the first.
            let sql = format!("INSERT INTO {} AS m (letter_id, begun, call) SELECT ", self.names().marks);
            let begin = Query::new(sql).bind(letter).push(", 1, ").bind(&call[..]).push(&format!(
                " WHERE {DURABLE} ON CONFLICT (letter_id) DO UPDATE SET \
                 begun = CASE WHEN m.call = excluded.call THEN m.begun ELSE least(m.begun + 1, 4294967295) END, \
                 call = excluded.call RETURNING begun - 1"
            ));
            Ok(begin.first(conn, |row| Fields::of(row).count()).await?.unwrap_or(0))
        })
        .during("mark the beginning of a run")
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        attempt!(self, conn => async {
            let marks = &self.names().marks;
            let end = match left {
                0 => Query::new(format!("DELETE FROM {marks}")),
                _ => Query::new(format!("UPDATE {marks} SET begun = least(begun, "))
                    .bind(i64::from(left))
                    .push(")"),
            };
            let end = end.push(&format!(" WHERE {DURABLE} AND letter_id = ")).bind(letter);
            end.run(conn).await.map(|_| ())
        })
        .during("mark the end of a run")
    }
}
