use dlq_core::{CrashMarks, LetterId, StoreError};

use super::SqliteStore;
use super::query::Query;
use super::unit::Unit;
use crate::error::During;

impl CrashMarks for SqliteStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let begin = move |unit: &mut Unit<'_>| {
            // No token tells a repetition from a new run: the answer of the thread is lost only with the process.
            let sql = format!(
                "INSERT INTO {} AS m (letter_id, begun) VALUES (?1, 1) ON CONFLICT DO UPDATE \
                 SET begun = min(m.begun + 1, 4294967295) RETURNING begun - 1",
                unit.names().marks
            );
            let mut statement = unit.conn().prepare_cached(&sql)?;
            Ok(statement.query_row([letter.as_bytes()], |row| row.get(0))?)
        };
        self.write(begin).await.during("mark the beginning of a run")
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let end = move |unit: &mut Unit<'_>| {
            let marks = &unit.names().marks;
            let end = match left {
                0 => Query::new(format!("DELETE FROM {marks}")),
                // It only ever lowers the number, so that an end that is told twice takes away no mark of another run.
                _ => Query::new(format!("UPDATE {marks} SET begun = min(begun, "))
                    .bind(left)
                    .push(")"),
            };
            end.push(" WHERE letter_id = ").bind(letter).run(unit.conn()).map(|_| ())
        };
        self.write(end).await.during("mark the end of a run")
    }
}
