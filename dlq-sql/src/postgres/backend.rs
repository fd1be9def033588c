use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Claim, ClaimRequest, ClaimToken, Due, Finish, Finished, ItemPage,
    Operation, OperationSpec, Plan, ProcessedEvent,
};
use dlq_core::{DeadLetter, Finding, OperationId, StoreError, Timestamp};
use dlq_letters::{Backend, Done, Limits, Verb};

use super::PostgresStore;
use crate::error::During;

/// Number of letters, and about how many bytes of them, that one step writes.
const LETTERS: u32 = 1_000;
const BYTES: u64 = 8 * 1024 * 1024;

type StoreResult<T> = std::result::Result<T, StoreError>;

impl Backend for PostgresStore {
    fn limits(&self) -> Limits {
        // Many letters share the flush of one commit, and yet the locks on them are not held for long.
        let mut limits = Limits::new(LETTERS);
        limits.bytes = BYTES;
        limits.largest = self.inner.largest as u64;
        limits
    }

    async fn run<V: Verb>(&self, during: &'static str, verb: V) -> StoreResult<Done<V::Output>> {
        self.decide(&verb).await.during(during)?
    }

    async fn put_new(&self, letters: &[DeadLetter]) -> StoreResult<Vec<bool>> {
        self.insert_new(letters).await.during("put letters")
    }

    async fn claim_due(&self, request: &ClaimRequest) -> StoreResult<Option<Vec<Claim>>> {
        self.claim_plainly(request).await.during("claim letters")
    }

    async fn extend_held(
        &self,
        tokens: &[ClaimToken],
        lease: Duration,
    ) -> StoreResult<Option<Vec<bool>>> {
        self.extend_claims(tokens, lease).await.map(Some).during("extend claims")
    }

    async fn finish_plain(
        &self,
        finishes: &[(ClaimToken, Finish)],
    ) -> StoreResult<Vec<Option<Finished>>> {
        self.end_plainly(finishes).await.during("finish claims")
    }

    async fn switch_dedup(&self) -> StoreResult<()> {
        // It waits for everybody who writes, and then looks at every letter.
        self.for_long_work().give_all_keys().await.during("deduplicate")
    }

    async fn next_due(&self, consumers: Vec<String>) -> StoreResult<Option<Timestamp>> {
        self.find_next_due(&consumers).await.during("find the next due letter")
    }

    async fn due_elsewhere(&self, consumers: Vec<String>, heard: u64) -> StoreResult<u64> {
        Ok(self.heard(&consumers, heard).await)
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn plan(&self, spec: OperationSpec) -> StoreResult<Plan> {
        self.plan_replay(&spec).await.during("plan the replay")
    }

    async fn operation(&self, id: OperationId) -> StoreResult<Option<Operation>> {
        self.read_operation(id).await.during("read the operation")
    }

    async fn operations(&self, limit: u32) -> StoreResult<Vec<Operation>> {
        self.list_operations(limit).await.during("list operations")
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> StoreResult<ItemPage> {
        self.list_items(id, after, limit).await.during("list the items")
    }

    async fn audit(&self, before: Option<u64>, limit: u32) -> StoreResult<Vec<AuditEntry>> {
        self.read_audit(before, limit).await.during("read the audit")
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> StoreResult<()> {
        self.write_processed(&events).await.during("write the processing audit")
    }

    async fn processed(&self, limit: u32) -> StoreResult<Vec<ProcessedEvent>> {
        self.read_processed(limit).await.during("read the processing audit")
    }

    async fn check(&self, limits: CheckLimits) -> StoreResult<Vec<Finding>> {
        self.examine(limits).await
    }

    async fn due(&self, overdue: Duration) -> StoreResult<Vec<Due>> {
        self.due_by_consumer(overdue).await
    }
}
