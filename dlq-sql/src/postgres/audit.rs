//! Audit of operators' actions, and the processing audit.

use dlq_core::store::{Actor, AuditEntry, ProcessedEvent};
use dlq_core::{OperationId, Timestamp};
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::batch::Batch;
use super::call::{attempt, on_connection};
use super::codec::Fields;
use super::doubt::ended_before;
use super::query::Query;
use super::step::Step;
use crate::error::Result;
use crate::values::{self, Put as _, Take as _};

impl PostgresStore {
    pub(super) async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        attempt!(self, conn => async {
            Query::new(format!(
                "SELECT seq, at, who, note, action, subject, affected, operation FROM {} WHERE seq < ",
                self.names().audit
            ))
            .bind(before.map_or(i64::MAX, values::signed))
            .push(" ORDER BY seq DESC LIMIT ")
            .bind(limit)
            .all(conn, read_entry)
            .await
        })
    }

    pub(super) async fn write_processed(&self, events: &[ProcessedEvent]) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        // Nothing tells a row that is written again from another one, so that the database is asked what became of the
        // first try.
        let mut doubt = None;
        on_connection!(self, conn => async {
            let mut step = Step::begin(conn, &self.inner, self.given_time()).await?;
            if ended_before(step.conn(), &mut doubt).await?.is_some() {
                return Ok(());
            }
            let sql = format!(
                "INSERT INTO {} (event_id, subject, consumer, status, attempt, duration_ns, at, at_ns, error) SELECT * FROM ",
                self.names().processed
            );
            let insert = Query::new(sql).batch(processed(events)?)?;
            let insert = insert.push(" RETURNING pg_current_xact_id()::text");
            let number = insert.first(step.conn(), |row| Fields::of(row).text()).await;
            step.close_once(number, &mut doubt).await
        })
    }

    pub(super) async fn read_processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>> {
        attempt!(self, conn => async {
            Query::new(format!(
                "SELECT event_id, subject, consumer, status, attempt, duration_ns, at_ns, error \
                 FROM {} ORDER BY seq DESC LIMIT ",
                self.names().processed
            ))
            .bind(limit)
            .all(conn, read_processed)
            .await
        })
    }
}

fn processed(events: &[ProcessedEvent]) -> Result<Batch<'_>> {
    let mut batch = Batch::default();
    for event in events {
        let nanos = u64::try_from(event.duration.as_nanos()).unwrap_or(u64::MAX);
        let row = batch.row();
        row.word(&event.event_id)?;
        row.word(&event.subject)?;
        row.word(&event.consumer)?;
        row.word(event.status.as_str())?;
        row.count(event.attempt)?;
        row.int(Some(values::signed(nanos)))?;
        row.time(Some(event.at))?;
        // Postgres keeps the time itself to the microsecond only.
        row.nanos(Some(event.at))?;
        row.text(event.error.as_deref().map(Into::into))?;
    }
    Ok(batch)
}

fn read_entry(record: &PgRow) -> Result<AuditEntry> {
    let mut fields = Fields::of(record);
    Ok(AuditEntry {
        number: fields.unsigned()?,
        at: fields.time()?,
        by: Actor { who: fields.text()?, note: fields.text_or_none()? },
        action: fields.text()?,
        subject: fields.text()?,
        affected: fields.unsigned()?,
        operation: fields.id_or_none()?.map(OperationId::from_bytes),
    })
}

fn read_processed(record: &PgRow) -> Result<ProcessedEvent> {
    let mut fields = Fields::of(record);
    Ok(ProcessedEvent {
        event_id: fields.text()?,
        subject: fields.text()?,
        consumer: fields.text()?,
        status: fields.word("processing status")?,
        attempt: fields.count()?,
        duration: std::time::Duration::from_nanos(fields.unsigned()?),
        at: Timestamp::from_nanos(fields.int()?),
        error: fields.text_or_none()?,
    })
}
