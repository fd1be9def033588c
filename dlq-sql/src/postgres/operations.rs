use dlq_core::OperationId;
use dlq_core::store::{Actor, Operation, Progress};
use sqlx::postgres::PgRow;

use super::codec::Fields;
use super::names::Names;
use super::query::Query;
use crate::columns::Take as _;
use crate::error::Result;

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
