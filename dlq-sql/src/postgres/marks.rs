use dlq_core::{CrashMarks, LetterId, StoreError};

use super::PostgresStore;
use super::call::attempt;
use super::codec::Fields;
use super::query::{DURABLE, Query};
use crate::error::During;
use crate::values::Take as _;

impl CrashMarks for PostgresStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        attempt!(self, conn => async {
            // It is one statement, so that of two runs at once the second sees the first.
            let sql = format!("INSERT INTO {} AS m (letter_id, begun) SELECT ", self.names().marks);
            let begin = Query::new(sql).bind(letter).push(&format!(
                ", 1 WHERE {DURABLE} ON CONFLICT (letter_id) DO UPDATE SET begun = least(m.begun + 1, 4294967295) \
                 RETURNING begun - 1"
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
