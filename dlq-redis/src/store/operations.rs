//! Operations and their items are read.

use dlq_core::store::{ItemPage, Operation};
use dlq_core::{OperationId, StoreErrorKind};

use super::Inner;
use super::fault::{Fault, Result};
use super::ops::Record;
use super::scripts::{array, bytes};

/// Operations of one call.
const SOME: usize = 100;

impl Inner {
    pub(super) async fn read_operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let found = self.link.operations(&[id]).await?;
        Ok(found.into_iter().find_map(|(_, stored)| Some(stored?.operation)))
    }

    /// The latest, the one started last first.
    pub(super) async fn list_operations(&self, limit: u32) -> Result<Vec<Operation>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&self.link.names.operations).arg(-i64::from(limit)).arg(-1);
        let ids = array(self.link.command(&cmd).await?).into_iter().rev().filter_map(bytes);
        let ids: Vec<OperationId> =
            ids.filter_map(|id| String::from_utf8(id).ok()?.parse().ok()).collect();
        let mut operations = Vec::with_capacity(ids.len());
        for ids in ids.chunks(SOME) {
            let found = self.link.operations(ids).await?;
            operations.extend(found.into_iter().filter_map(|(_, stored)| Some(stored?.operation)));
        }
        Ok(operations)
    }

    pub(super) async fn list_items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage> {
        let Some(operation) = self.read_operation(id).await? else {
            let detail = format!("no operation has the id {id}; list them to see which there are");
            return Err(Fault::new(StoreErrorKind::NotFound, detail));
        };
        // Items have numbers from 0 without gaps.
        let total = operation.progress.total;
        let first = after.min(total);
        let end = first.saturating_add(u64::from(limit.max(1))).min(total);
        let mut items = Vec::new();
        let indexes: Vec<_> = (first..end).collect();
        for some in indexes.chunks(1_000) {
            let fields: Vec<_> = some.iter().map(u64::to_string).collect();
            let records = self.link.fields(&self.link.names.items(id), &fields).await?;
            for (index, record) in some.iter().zip(records) {
                let record = record.ok_or_else(|| {
                    Fault::corrupt(&format!("item {index} of operation {id}"), "it is missing")
                })?;
                items.push(Record::read(&record)?.item(*index)?);
            }
        }
        Ok(ItemPage { items, next: (end < total).then_some(end) })
    }
}
