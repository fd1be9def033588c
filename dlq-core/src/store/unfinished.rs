//! [`Unfinished`]: operations that have not ended, however many were started after them.

use super::{ItemOutcome, Operation, Operations};
use crate::{OperationId, StoreError};

/// Number of operations that a look reads, unless more were started since the look before.
const LATEST: u32 = 100;

/// Finds the operations of a store that have not ended, look after look. Remembers those that it has found, so that only
/// the first look reads all operations.
#[derive(Debug, Default)]
pub struct Unfinished {
    newest: Option<OperationId>,
    open: Vec<OperationId>,
}

impl Unfinished {
    /// Returns the operations that have not ended, the one started last first. An operation that was cancelled has ended
    /// once none of its letters is on its way.
    ///
    /// # Errors
    ///
    /// The store's. A look that fails changes nothing.
    pub async fn look(&mut self, store: &impl Operations) -> Result<Vec<Operation>, StoreError> {
        let mut limit = LATEST;
        // The look goes back to where the one before began; the first look reads all.
        let latest = loop {
            let latest = store.operations(limit).await?;
            let is_all = u32::try_from(latest.len()).is_ok_and(|count| count < limit);
            if is_all || latest.iter().any(|operation| Some(operation.id) == self.newest) {
                break latest;
            }
            limit = limit.saturating_mul(10);
        };
        let newest = latest.first().map(|operation| operation.id);
        // An operation that still runs may have been started before all of the latest.
        let older = self.open.iter().filter(|id| latest.iter().all(|latest| latest.id != **id));
        let older: Vec<_> = older.copied().collect();
        let mut open = latest;
        for id in older {
            // One that somebody has deleted is not found.
            open.extend(store.operation(id).await?);
        }
        open.retain(|operation| {
            let is_on_its_way = operation.progress.with_outcome(ItemOutcome::Sending) > 0;
            !operation.state.is_final() || is_on_its_way
        });
        self.open = open.iter().map(|operation| operation.id).collect();
        self.newest = newest;
        Ok(open)
    }
}
