use dlq_core::store::{Actor, ItemPage, Operation, OperationSpec, Plan, Progress};
use dlq_core::{OperationId, StoreErrorKind, Timestamp};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::call::attempt;
use super::claims::{each_consumer, of_consumer};
use super::codec::Fields;
use super::names::Names;
use super::plan::plan;
use super::query::Query;
use crate::columns::{ITEM, read_item};
use crate::error::{Fault, Result};
use crate::values::Take as _;

impl PostgresStore {
    pub(super) async fn plan_replay(&self, spec: &OperationSpec) -> Result<Plan> {
        attempt!(self, conn => plan(conn, self.names(), spec))
    }

    pub(super) async fn read_operation(&self, id: OperationId) -> Result<Option<Operation>> {
        attempt!(self, conn => load(conn, self.names(), id))
    }

    pub(super) async fn list_operations(&self, limit: u32) -> Result<Vec<Operation>> {
        attempt!(self, conn => {
            let query = select(self.names()).push(" ORDER BY seq DESC LIMIT ").bind(limit);
            query.all(conn, read_operation)
        })
    }

    pub(super) async fn list_items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage> {
        attempt!(self, conn => items(conn, self.names(), id, after, limit))
    }
}

fn unknown(id: OperationId) -> Fault {
    Fault::new(
        StoreErrorKind::NotFound,
        format!("no operation has the id {id}; list them to see which there are"),
    )
}

/// The condition that an operation may release letters; the index of these is small.
pub(super) const ACTIVE: &str = "state IN ('canary', 'running')";

pub(super) fn select(names: &Names) -> Query {
    Query::new(format!(
        "SELECT id, spec, state, who, note, created_at, updated_at, next_release, total, progress FROM {}",
        names.operations
    ))
}

pub(super) fn read_operation(record: &PgRow) -> Result<Operation> {
    let mut fields = Fields::of(record);
    Ok(Operation {
        id: OperationId::from_bytes(fields.id_or_none()?.unwrap_or_default()),
        spec: fields.json("operation")?,
        state: fields.word("state of an operation")?,
        by: Actor { who: fields.text()?, note: fields.text_or_none()? },
        created_at: fields.time()?,
        updated_at: fields.time()?,
        next_release: fields.time()?,
        progress: Progress {
            total: fields.unsigned()?,
            by_outcome: fields.json("progress of an operation")?,
        },
    })
}

async fn load(
    conn: &mut PgConnection,
    names: &Names,
    id: OperationId,
) -> Result<Option<Operation>> {
    select(names).push(" WHERE id = ").bind(id).first(conn, read_operation).await
}

/// Returns the operations that may release letters, oldest first.
pub(super) async fn active(conn: &mut PgConnection, names: &Names) -> Result<Vec<Operation>> {
    select(names).push(&format!(" WHERE {ACTIVE} ORDER BY seq")).all(conn, read_operation).await
}

/// Operations that do something, or should: those, and what is being prepared.
pub(super) async fn under_way(conn: &mut PgConnection, names: &Names) -> Result<Vec<Operation>> {
    let states = " WHERE state IN ('preparing', 'canary', 'running') ORDER BY seq";
    select(names).push(states).all(conn, read_operation).await
}

/// When an operation can release a letter of one of these consumers.
pub(super) async fn next_release(
    conn: &mut PgConnection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let mut earliest = None;
    for operation in active(conn, names).await? {
        let next = operation.next_to_handlers(now);
        // An operation whose letters of these consumers have all gone out would wake them for nothing.
        if next.is_some() && has_queued(conn, names, operation.id, consumers).await? {
            earliest = earliest.into_iter().chain(next).min();
        }
    }
    Ok(earliest)
}

async fn has_queued(
    conn: &mut PgConnection,
    names: &Names,
    id: OperationId,
    consumers: &[String],
) -> Result<bool> {
    let query = each_consumer(Query::new("SELECT true FROM "), consumers).push(&format!(
        "(SELECT FROM {} i WHERE {}i.outcome = 'queued' AND i.operation = ",
        names.items,
        of_consumer("i", consumers)
    ));
    let query = query.bind(id).push(" LIMIT 1) q LIMIT 1");
    Ok(query.first(conn, |_| Ok(())).await?.is_some())
}

async fn items(
    conn: &mut PgConnection,
    names: &Names,
    id: OperationId,
    after: u64,
    limit: u32,
) -> Result<ItemPage> {
    let operation = load(conn, names, id).await?.ok_or_else(|| unknown(id))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let query = Query::new(format!("SELECT {ITEM} FROM {} i WHERE i.operation = ", names.items));
    let query = query.bind(id).push(" AND i.idx >= ").bind(after);
    // A page of nothing would never come to an end.
    let query = query.push(" ORDER BY i.idx LIMIT ").bind(limit.max(1));
    let items = query.all(conn, |record| read_item(&mut Fields::of(record))).await?;
    let next = items.last().map(|last| last.index + 1);
    Ok(ItemPage { items, next: next.filter(|next| *next < operation.progress.total) })
}
