//! How an operation goes on: letters are released to claimers, items get their outcomes, operators steer.

use std::sync::Arc;

use dlq_core::store::{Actor, AuditEntry, Control, ItemOutcome, Operation, rules};
use dlq_core::{LetterId, OperationId, Status, StoreErrorKind, Timestamp};
use dlq_letters::{Changed, Row};
use rusqlite::Connection;

use super::SqliteStore;
use super::binder::Binder;
use super::codec::Fields;
use super::names::Names;
use super::operations::{load, unknown};
use super::query::Query;
use super::unit::Unit;
use super::upkeep::BATCH;
use crate::error::{Fault, Result};
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

    /// Changes the state of an operation, and nothing of its letters. Returns the operation and, unless it had that state,
    /// the number of the entry in the audit.
    pub(super) fn control(
        &mut self,
        id: OperationId,
        control: Control,
        by: &Actor,
        now: Timestamp,
    ) -> Result<(Operation, Option<i64>)> {
        let operation = self.operation_mut(id)?.ok_or_else(|| unknown(id))?;
        let Some(state) = operation.steer(control) else {
            return Err(Fault::new(
                StoreErrorKind::Conflict,
                format!("it is {} and cannot {control}", operation.state),
            ));
        };
        if state == operation.state {
            return Ok((operation.clone(), None));
        }
        operation.state = state;
        operation.updated_at = now;
        operation.state = operation.advance(now, 0).state;
        let operation = operation.clone();
        let entry = self.note_control(id, control, by, 0, now)?;
        Ok((operation, Some(entry)))
    }

    /// Appends to the record of what operators did that one steered an operation. Returns the number of the entry.
    fn note_control(
        &self,
        operation: OperationId,
        control: Control,
        by: &Actor,
        affected: u64,
        now: Timestamp,
    ) -> Result<i64> {
        self.note(&AuditEntry {
            at: now,
            by: by.clone(),
            action: control.to_string(),
            subject: serde_json::json!({ "operation": operation }).to_string(),
            affected,
            operation: Some(operation),
        })?;
        Ok(self.conn().last_insert_rowid())
    }

    /// Takes back those of these letters that the operation holds and that nobody runs; how many.
    fn withdraw(&mut self, id: OperationId, letters: &[LetterId], now: Timestamp) -> Result<u64> {
        let mut withdrawn = 0;
        for letter in letters {
            let Some(mut row) = self.head(*letter)? else { continue };
            let is_held_by_it = row.item.is_some_and(|(operation, _)| operation == id);
            // Others may have worked in between.
            if is_held_by_it && row.is_idle_replay(now) {
                self.end_item(&mut row, ItemOutcome::Skipped, Some("cancelled"), now)?;
                row.void();
                rules::put_back(&mut row.letter, Status::Pending, now);
                self.update(&mut row, Changed::State)?;
                withdrawn += 1;
            }
        }
        Ok(withdrawn)
    }
}

impl SqliteStore {
    /// Cancels an operation: its state first, from which on nothing is released, and then the letters that nobody runs, in
    /// several transactions, so that others can work in between. Where an earlier cancel was cut off, this one goes on.
    pub(super) async fn cancel(
        &self,
        id: OperationId,
        by: Actor,
        now: Timestamp,
    ) -> Result<Operation> {
        let (canceller, by) = (by.clone(), Arc::new(by));
        let steer = move |unit: &mut Unit<'_>| unit.control(id, Control::Cancel, &canceller, now);
        let (_, mut entry) = self.write(steer).await?;
        let open = self.read(move |conn, names| open(conn, names, id, now)).await?;
        for letters in open.chunks(BATCH) {
            let (letters, by) = (letters.to_vec(), Arc::clone(&by));
            let withdraw = move |unit: &mut Unit<'_>| {
                let withdrawn = unit.withdraw(id, &letters, now)?;
                match entry {
                    Some(entry) => unit.add_affected(entry, withdrawn)?,
                    None if withdrawn > 0 => {
                        return unit
                            .note_control(id, Control::Cancel, &by, withdrawn, now)
                            .map(Some);
                    }
                    None => {}
                }
                Ok(entry)
            };
            entry = self.write(withdraw).await?;
        }
        let found = self.read(move |conn, names| load(conn, names, id)).await?;
        found.ok_or_else(|| unknown(id))
    }
}

/// The letters of an operation that nobody runs; those first that somebody could claim.
fn open(
    conn: &Connection,
    names: &Names,
    id: OperationId,
    now: Timestamp,
) -> Result<Vec<LetterId>> {
    let Names { items, letters, .. } = names;
    Query::new(format!(
        "SELECT i.letter_id FROM {items} i JOIN {letters} t ON t.letter_id = i.letter_id \
         WHERE i.outcome IN ('queued', 'released') AND (t.status = 'pending' OR (t.claim_former = 'pending' AND t.claim_until <= "
    ))
    .bind(now)
    .push(")) AND i.operation = ")
    .bind(id)
    .push(" AND t.operation = ")
    .bind(id)
    .push(" ORDER BY i.outcome = 'queued', i.idx")
    .all(conn, |row| Ok(LetterId::from_bytes(row.get(0)?)))
}
