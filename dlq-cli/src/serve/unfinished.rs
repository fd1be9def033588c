//! Operations that have not ended, however many were started after them.

use dlq_core::store::Operation;
use dlq_core::{DeadLetters, OperationId, StoreError};

/// Number of operations that a look reads, unless more were started since the look before.
const LATEST: u32 = 100;

/// Knowledge about operations from the look before.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    newest: Option<OperationId>,
    open: Vec<OperationId>,
}

impl Unfinished {
    /// Returns the operations that have not ended, newest first. A look that fails half-way has changed nothing.
    pub(super) async fn look(&mut self, store: &DeadLetters) -> Result<Vec<Operation>, StoreError> {
        let mut limit = LATEST;
        // Back to where the look before began; the first look reads all.
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
            match store.operation(id).await {
                Ok(operation) => open.push(operation),
                // Somebody has deleted it.
                Err(error) if error.kind() == dlq_core::StoreErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        open.retain(|operation| !operation.state.is_final());
        self.open = open.iter().map(|operation| operation.id).collect();
        self.newest = newest;
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::Filter;
    use dlq_core::store::{Actor, OperationSpec};
    use dlq_letters::memory::MemoryStore;
    use dlq_testkit::fixtures::letter;

    use super::*;

    /// Operations over nothing, which end at once.
    async fn idle(store: &DeadLetters, count: u32) {
        for _ in 0..count {
            let spec = OperationSpec::replay(Filter::new().with_consumer("nobody".to_owned()));
            store.replay(spec, Actor::new("ana")).await.unwrap();
        }
    }

    #[tokio::test]
    async fn one_that_has_not_ended_is_seen_however_many_came_after_it() {
        let store = DeadLetters::new(MemoryStore::new());
        store.put(vec![letter(1)]).await.unwrap();
        let all = OperationSpec::replay(Filter::new());
        let id = store.replay(all, Actor::new("ana")).await.unwrap().id;
        let mut watched = Unfinished::default();
        for more in [0, 20, LATEST + 50, 2 * LATEST] {
            idle(&store, more).await;
            // And by one who has just come.
            for unfinished in [&mut watched, &mut Unfinished::default()] {
                let open = unfinished.look(&store).await.unwrap();
                assert_eq!(open.iter().map(|open| open.id).collect::<Vec<_>>(), [id], "{more}");
            }
        }
    }
}
