//! How an operation goes on: letters are released to claimers, items get their outcomes, operators steer.

use dlq_core::store::{ItemOutcome, Operation};
use dlq_core::{OperationId, Timestamp};
use dlq_letters::Row;

use super::binder::Binder;
use super::codec::Fields;
use super::operations::load;
use super::query::Query;
use super::unit::Unit;
use crate::error::Result;
use crate::values::{self, Take as _};

impl Unit<'_> {
    /// Writes what changes of an operation.
    pub(super) fn write_operation(&self, operation: &Operation) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET state = ?, updated_at = ?, next_release = ?, total = ?, progress = ? WHERE id = ?",
            self.names().operations
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .put(operation.state.as_str())?
            .put(operation.updated_at.as_nanos())?
            .put(operation.next_release.as_nanos())?
            .put(values::signed(operation.progress.total))?
            .put(values::json(&operation.progress.by_outcome))?
            .put(operation.id.as_bytes())?;
        statement.raw_execute()?;
        Ok(())
    }

    /// The operation as this call has left it; it is written when the call is done.
    pub(super) fn operation_mut(&mut self, id: OperationId) -> Result<Option<&mut Operation>> {
        if !self.operations.contains_key(&id) {
            let Some(operation) = load(self.conn(), self.names(), id)? else { return Ok(None) };
            self.operations.insert(id, operation);
        }
        Ok(self.operations.get_mut(&id))
    }

    pub(super) fn item_outcome(&self, id: OperationId, index: u64) -> Result<Option<ItemOutcome>> {
        Query::new(format!("SELECT outcome FROM {} WHERE operation = ", self.names().items))
            .bind(id)
            .push(" AND idx = ")
            .bind(values::signed(index))
            .first(self.conn(), |row| Fields::after(row, 0).word("outcome"))
    }

    /// Records the outcome of the item that the row is.
    pub(super) fn set_item(
        &mut self,
        row: &Row,
        outcome: ItemOutcome,
        why: Option<&str>,
        now: Timestamp,
    ) -> Result<()> {
        let Some((id, index)) = row.item else { return Ok(()) };
        let Some(before) = self.item_outcome(id, index)? else { return Ok(()) };
        let sql = format!(
            "UPDATE {} SET outcome = ?1, why = ?2, at = ?3 WHERE operation = ?4 AND idx = ?5",
            self.names().items
        );
        let binds = (outcome.as_str(), why, now.as_nanos(), id.as_bytes(), values::signed(index));
        self.conn().prepare_cached(&sql)?.execute(binds)?;
        let Some(operation) = self.operation_mut(id)? else { return Ok(()) };
        let counts = &mut operation.progress.by_outcome;
        if let Some(count) = counts.get_mut(&before) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&before);
            }
        }
        *counts.entry(outcome).or_default() += 1;
        operation.state = operation.advance(now, 0).state;
        operation.updated_at = now;
        Ok(())
    }
}
