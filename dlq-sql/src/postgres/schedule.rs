//! The automatic schedule: of all processes that look at once, one runs it.

use std::time::Duration;

use dlq_core::store::{ScheduleRun, rules};
use dlq_core::{ErrorClass, LetterId, Timestamp};

use super::codec::Fields;
use super::filter::same;
use super::query::Query;
use super::unit::Unit;
use crate::error::Result;
use crate::row::Changed;
use crate::values::Take as _;

impl Unit<'_> {
    pub(super) async fn run_schedule(&mut self, run: &ScheduleRun) -> Result<(u64, Duration)> {
        let (now, every) = (self.now(), run.schedule.every);
        if let Some(next) = self.last_run(run).await?.map(|last| last.after(every))
            && next > now
        {
            return Ok((0, next.since(now)));
        }
        // Whoever else looks at this moment waits here, and then finds that it has run.
        let taken = Query::new(format!(
            "INSERT INTO {} AS s (consumer, last_run) VALUES (",
            self.names().schedules
        ));
        let taken = taken.bind(run.consumer.as_str()).push(", ").bind(now).push(
            ") ON CONFLICT (md5(consumer)) DO UPDATE SET last_run = excluded.last_run WHERE s.last_run <= ",
        );
        if taken.bind(now.before(every)).run(self.conn()).await? == 0 {
            let last = self.last_run(run).await?.unwrap_or(now);
            return Ok((0, last.after(every).since(now)));
        }
        let eligible = self.eligible(run).await?;
        self.fetch_heads(&eligible).await?;
        let mut count = 0;
        for id in eligible {
            let row = self.head(id).await?.filter(|row| run.schedule.takes(&row.letter));
            if let Some(mut row) = row {
                rules::schedule(&mut row.letter, now);
                self.update(row, Changed::State);
                count += 1;
            }
        }
        Ok((count, every))
    }

    async fn last_run(&mut self, run: &ScheduleRun) -> Result<Option<Timestamp>> {
        let sql =
            format!("SELECT last_run FROM {} WHERE md5(consumer) = md5(", self.names().schedules);
        let query = Query::new(sql).bind(run.consumer.as_str()).push(")");
        query.first(self.conn(), |record| Fields::of(record).time()).await
    }

    /// The oldest that a run may send back. What exactly is eligible, the schedule itself says once they are locked.
    async fn eligible(&mut self, run: &ScheduleRun) -> Result<Vec<LetterId>> {
        let query =
            Query::new(format!("SELECT t.letter_id FROM {} t, (SELECT ", self.names().letters));
        let mut query = query
            .bind(run.consumer.as_str())
            .push(&format!(" AS name) c WHERE {}", same("t.consumer", "c.name")))
            .push(" AND t.status = 'pending' AND t.confirmed AND t.retry_after IS NULL")
            .push(" AND t.operation IS NULL AND t.retry_count < ")
            .bind(run.schedule.max_retries);
        if !run.schedule.all_classes {
            query = query.push(" AND t.class = ").bind(ErrorClass::Transient.as_str());
        }
        let query = query.push(" ORDER BY t.created_at, t.letter_id LIMIT ");
        let query = query.bind(run.schedule.batch);
        query.all(self.conn(), |record| Fields::of(record).letter()).await
    }
}
