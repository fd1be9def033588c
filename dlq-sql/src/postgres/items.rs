//! Letters of operations: each is an item, whose outcome is recorded in the transaction that changes the letter.

use std::collections::BTreeSet;

use dlq_core::store::{ItemOutcome, Operation};
use dlq_core::{DeadLetter, OperationId};

use super::batch::Batch;
use super::codec::Fields;
use super::operations;
use super::query::Query;
use super::unit::{Item, Unit};
use crate::error::Result;
use crate::row::Row;
use crate::values::{self, Put as _, Take as _};

impl Unit<'_> {
    /// The operation as this call has left it, locked; it is written when the call is done.
    pub(super) async fn operation_mut(
        &mut self,
        id: OperationId,
    ) -> Result<Option<&mut Operation>> {
        if !self.operations.contains_key(&id) {
            self.fetch_operations(std::iter::once(id)).await?;
        }
        Ok(self.operations.get_mut(&id))
    }

    /// Writes what changes of an operation.
    pub(super) async fn write_operation(&mut self, operation: &Operation) -> Result<()> {
        Query::new(format!("UPDATE {} SET state = ", self.names().operations))
            .bind(operation.state.as_str())
            .push(", updated_at = ")
            .bind(operation.updated_at)
            .push(", next_release = ")
            .bind(operation.next_release)
            .push(", progress = ")
            .bind(values::json(&operation.progress.by_outcome).as_str())
            .push(", total = ")
            .bind(values::signed(operation.progress.total))
            .push(" WHERE id = ")
            .bind(operation.id)
            .run(self.conn())
            .await?;
        Ok(())
    }

    /// Locks these operations, in the order in which everybody does.
    async fn fetch_operations(&mut self, ids: impl Iterator<Item = OperationId>) -> Result<()> {
        let missing: BTreeSet<_> = ids.filter(|id| !self.operations.contains_key(id)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<_> = missing.iter().map(|id| id.as_bytes().to_vec()).collect();
        let query = operations::select(self.names()).push(" WHERE id = ANY(").bind(missing);
        let query = query.push(") ORDER BY seq FOR UPDATE");
        let found = query.all(self.conn(), operations::read_operation).await?;
        self.operations.extend(found.into_iter().map(|operation| (operation.id, operation)));
        Ok(())
    }

    /// Locks the operations that hold these rows, and reads the outcomes of their items, all at once.
    pub(super) async fn fetch_items(&mut self, rows: &[&Row]) -> Result<()> {
        let places = rows.iter().filter_map(|row| row.item);
        let missing: Vec<_> = places.filter(|place| !self.items.contains_key(place)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.fetch_operations(missing.iter().map(|(id, _)| *id)).await?;
        let mut batch = Batch::default();
        for (operation, index) in &missing {
            let row = batch.row();
            row.bytes(Some(operation.as_bytes()))?;
            row.int(Some(values::signed(*index)))?;
        }
        let sql =
            format!("SELECT i.operation, i.idx, i.outcome FROM {} i JOIN ", self.names().items);
        let query =
            Query::new(sql).batch(batch)?.push(" AS u (operation, idx) USING (operation, idx)");
        let found = query.all(self.conn(), |record| {
            let mut fields = Fields::of(record);
            let id = fields.id_or_none()?.unwrap_or_default();
            let place = (OperationId::from_bytes(id), fields.unsigned()?);
            let outcome = fields.word("outcome")?;
            Ok((place, Item { outcome, why: None, is_changed: false }))
        });
        let found = found.await?;
        self.items.extend(found);
        Ok(())
    }

    pub(super) async fn item_outcome(&mut self, row: &Row) -> Result<Option<ItemOutcome>> {
        self.fetch_items(&[row]).await?;
        Ok(row.item.and_then(|place| self.items.get(&place)).map(|item| item.outcome))
    }

    /// Records the outcome of the item that the row is.
    pub(super) async fn set_item(
        &mut self,
        row: &Row,
        outcome: ItemOutcome,
        why: Option<&str>,
    ) -> Result<()> {
        let Some(before) = self.item_outcome(row).await? else { return Ok(()) };
        let Some(place) = row.item else { return Ok(()) };
        let why = why.map(str::to_owned);
        self.items.insert(place, Item { outcome, why, is_changed: true });
        let now = self.now();
        let Some(operation) = self.operation_mut(place.0).await? else { return Ok(()) };
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

    /// The letter leaves the operation that holds it, which learns of the outcome.
    pub(super) async fn end_item(
        &mut self,
        row: &mut Row,
        outcome: ItemOutcome,
        why: Option<&str>,
    ) -> Result<()> {
        self.set_item(row, outcome, why).await?;
        row.item = None;
        row.letter.state.operation = None;
        Ok(())
    }

    /// The operation that holds the letter learns that it died anew, and of what.
    pub(super) async fn died_anew(&mut self, row: &mut Row, death: &DeadLetter) -> Result<()> {
        if self.item_outcome(row).await? == Some(ItemOutcome::Queued) {
            let why = Some("died again before it was sent");
            return self.end_item(row, ItemOutcome::Skipped, why).await;
        }
        self.end_item(row, ItemOutcome::FailedAgain, Some(&death.error())).await
    }

    /// Writes the outcomes that have changed.
    pub(super) async fn write_items(&mut self) -> Result<()> {
        let (mut batch, mut is_empty) = (Batch::default(), true);
        let now = self.now();
        let mut items = std::mem::take(&mut self.items);
        for ((operation, index), item) in items.iter().filter(|(_, item)| item.is_changed) {
            is_empty = false;
            let row = batch.row();
            row.bytes(Some(operation.as_bytes()))?;
            row.int(Some(values::signed(*index)))?;
            row.word(item.outcome.as_str())?;
            row.text(item.why.as_deref().map(Into::into))?;
        }
        if !is_empty {
            let sql = format!(
                "UPDATE {} i SET outcome = u.outcome, why = u.why, at = ",
                self.names().items
            );
            let update = Query::new(sql).bind(now).push(" FROM ").batch(batch)?.push(
                " AS u (operation, idx, outcome, why) WHERE i.operation = u.operation AND i.idx = u.idx",
            );
            update.run(self.conn()).await?;
        }
        for item in items.values_mut() {
            item.is_changed = false;
        }
        self.items = items;
        Ok(())
    }
}
