//! Count of letters that wait to be claimed.

use std::time::Duration;

use dlq_core::StoreError;
use dlq_core::store::Due;

use super::PostgresStore;
use super::call::attempt;
use super::codec::Fields;
use super::query::Query;
use crate::error::During;
use crate::values::Take as _;

impl PostgresStore {
    /// Counted along the index of what can be claimed, no further than [`Due::MOST`].
    pub(super) async fn due_by_consumer(&self, overdue: Duration) -> Result<Vec<Due>, StoreError> {
        let (letters, given) = (&self.names().letters, self.given_time());
        attempt!(self, conn => Query::new("SELECT d.consumer, count(*), count(*) FILTER (WHERE d.available_at <= ")
            .before(given, overdue)
            .push(&format!(
                "), min(d.available_at) FROM (SELECT t.consumer, t.available_at FROM {letters} t \
                 WHERE t.available_at IS NOT NULL AND t.available_at <= "
            ))
            .now(given)
            .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
            .bind(Due::MOST)
            .push(") d GROUP BY d.consumer ORDER BY d.consumer COLLATE \"C\"")
            .all(conn, |record| {
                let mut fields = Fields::of(record);
                Ok(Due {
                    consumer: fields.text()?,
                    letters: fields.unsigned()?,
                    overdue: fields.unsigned()?,
                    since: fields.time()?,
                })
            }))
        .during("count what is due")
    }
}
