//! Operations as they are stored.

use dlq_core::store::{Actor, ItemPage, Operation, Progress};
use dlq_core::{OperationId, StoreErrorKind, Timestamp};
use rusqlite::Connection;

use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use crate::columns::{ITEM, read_item};
use crate::error::{Fault, Result};
use crate::values::Take as _;

fn unknown(id: OperationId) -> Fault {
    Fault::new(
        StoreErrorKind::NotFound,
        format!("no operation has the id {id}; list them to see which there are"),
    )
}

fn select(names: &Names) -> Query {
    Query::new(format!(
        "SELECT id, spec, state, who, note, created_at, updated_at, next_release, total, progress FROM {}",
        names.operations
    ))
}

fn read_operation(record: &rusqlite::Row<'_>) -> Result<Operation> {
    let mut fields = Fields::after(record, 0);
    Ok(Operation {
        id: OperationId::from_bytes(fields.next()?),
        spec: fields.json("operation")?,
        state: fields.word("state of an operation")?,
        by: Actor { who: fields.next()?, note: fields.next()? },
        created_at: fields.time()?,
        updated_at: fields.time()?,
        next_release: fields.time()?,
        progress: Progress {
            total: i64::cast_unsigned(fields.next()?),
            by_outcome: fields.json("progress of an operation")?,
        },
    })
}

pub(super) fn load(conn: &Connection, names: &Names, id: OperationId) -> Result<Option<Operation>> {
    select(names).push(" WHERE id = ").bind(id).first(conn, read_operation)
}

/// The newest, at most so many.
pub(super) fn list(conn: &Connection, names: &Names, limit: u32) -> Result<Vec<Operation>> {
    select(names).push(" ORDER BY seq DESC LIMIT ").bind(limit).all(conn, read_operation)
}

/// Returns the operations that may release letters, oldest first.
pub(super) fn active(conn: &Connection, names: &Names) -> Result<Vec<Operation>> {
    select(names)
        .push(" WHERE state IN ('canary', 'running') ORDER BY seq")
        .all(conn, read_operation)
}

/// Operations that do something, or should: those, and what is being prepared.
pub(super) fn under_way(conn: &Connection, names: &Names) -> Result<Vec<Operation>> {
    select(names)
        .push(" WHERE state IN ('preparing', 'canary', 'running') ORDER BY seq")
        .all(conn, read_operation)
}

/// When an operation can release a letter of one of these consumers.
pub(super) fn next_release(
    conn: &Connection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    // An operation of which no letter is queued for these consumers would wake them for nothing.
    let mut earliest = None;
    for operation in active(conn, names)? {
        let next = operation.next_to_handlers(now);
        if next.is_some() && has_queued(conn, names, operation.id, consumers)? {
            earliest = earliest.into_iter().chain(next).min();
        }
    }
    Ok(earliest)
}

fn has_queued(
    conn: &Connection,
    names: &Names,
    id: OperationId,
    consumers: &[String],
) -> Result<bool> {
    let mut query = Query::new(format!(
        "SELECT 1 FROM {} i WHERE i.outcome = 'queued' AND i.operation = ",
        names.items
    ));
    query.add_bind(id);
    if !consumers.is_empty() {
        query.add(" AND i.consumer");
        query.add_any(consumers.iter().map(String::as_str));
    }
    Ok(query.push(" LIMIT 1").first(conn, |_| Ok(()))?.is_some())
}

pub(super) fn items(
    conn: &Connection,
    names: &Names,
    id: OperationId,
    after: u64,
    limit: u32,
) -> Result<ItemPage> {
    let operation = load(conn, names, id)?.ok_or_else(|| unknown(id))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let items = Query::new(format!("SELECT {ITEM} FROM {} i WHERE i.operation = ", names.items))
        .bind(id)
        .push(" AND i.idx >= ")
        .bind(after)
        .push(" ORDER BY i.idx LIMIT ")
        // A page of nothing would never come to an end.
        .bind(limit.max(1))
        .all(conn, |row| read_item(&mut Fields::after(row, 0)))?;
    let next = items.last().map(|last| last.index + 1);
    Ok(ItemPage { items, next: next.filter(|next| *next < operation.progress.total) })
}
