use dlq_core::store::{Receipt, Sink};
use dlq_core::{DeadLetter, Escalation, RetryLane, StoreError};
use dlq_letters::engine;

use super::SqliteStore;

impl Sink for SqliteStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        engine::put(self, letters).await
    }
}

impl RetryLane for SqliteStore {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        engine::escalate(self, escalation).await
    }
}
