//! The record of what operators did, and the processing audit.

use dlq_core::OperationId;
use dlq_core::store::{Actor, AuditEntry, ProcessedEvent};
use rusqlite::Connection;

use super::binder::Binder;
use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use crate::error::Result;
use crate::values::{self, Take as _};

/// The last entries of what operators did, before the one of this number.
pub(super) fn audit(
    conn: &Connection,
    names: &Names,
    before: Option<u64>,
    limit: u32,
) -> Result<Vec<AuditEntry>> {
    Query::new(format!(
        "SELECT seq, at, who, note, action, subject, affected, operation FROM {} WHERE seq < ",
        names.audit
    ))
    .bind(before.map_or(i64::MAX, values::signed))
    .push(" ORDER BY seq DESC LIMIT ")
    .bind(limit)
    .all(conn, read_entry)
}

/// The last entries of the processing audit.
pub(super) fn processed(
    conn: &Connection,
    names: &Names,
    limit: u32,
) -> Result<Vec<ProcessedEvent>> {
    Query::new(format!(
        "SELECT event_id, subject, consumer, status, attempt, duration_ns, at, error \
         FROM {} ORDER BY seq DESC LIMIT ",
        names.processed
    ))
    .bind(limit)
    .all(conn, read_processed)
}

/// Adds to the processing audit.
pub(super) fn record_processed(
    conn: &Connection,
    names: &Names,
    events: &[ProcessedEvent],
) -> Result<()> {
    let sql = format!(
        "INSERT INTO {} (event_id, subject, consumer, status, attempt, duration_ns, at, error) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        names.processed
    );
    // All rows are in the transaction of the call, so that they cost one flush.
    let mut statement = conn.prepare_cached(&sql)?;
    for event in events {
        let nanos = u64::try_from(event.duration.as_nanos()).unwrap_or(u64::MAX);
        Binder::new(&mut statement)
            .bind(&event.event_id)?
            .bind(&event.subject)?
            .bind(&event.consumer)?
            .bind(event.status.as_str())?
            .bind(event.attempt)?
            .bind(values::signed(nanos))?
            .bind(event.at.as_nanos())?
            .bind(event.error.as_deref())?;
        statement.raw_execute()?;
    }
    Ok(())
}

fn read_entry(record: &rusqlite::Row<'_>) -> Result<AuditEntry> {
    let mut fields = Fields::after(record, 0);
    Ok(AuditEntry {
        number: i64::cast_unsigned(fields.next()?),
        at: fields.time()?,
        by: Actor { who: fields.next()?, note: fields.next()? },
        action: fields.next()?,
        subject: fields.next()?,
        affected: i64::cast_unsigned(fields.next()?),
        operation: fields.next::<Option<[u8; 16]>>()?.map(OperationId::from_bytes),
    })
}

fn read_processed(record: &rusqlite::Row<'_>) -> Result<ProcessedEvent> {
    let mut fields = Fields::after(record, 0);
    Ok(ProcessedEvent {
        event_id: fields.next()?,
        subject: fields.next()?,
        consumer: fields.next()?,
        status: fields.word("processing status")?,
        attempt: fields.next()?,
        duration: std::time::Duration::from_nanos(i64::cast_unsigned(fields.next()?)),
        at: fields.time()?,
        error: fields.next()?,
    })
}
