use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Due, ItemPage, Operation, OperationSpec, Plan, ProcessedEvent,
};
use dlq_core::{DeadLetter, Finding, OperationId, StoreError, Timestamp};
use dlq_letters::{Backend, Done, Limits, Verb};

use super::RedisStore;
use super::fault::During as _;

/// Number of letters, and about how many bytes of them, that one script writes: nobody else is served meanwhile.
const STEP: u32 = 100;
const BYTES: u64 = 8 * 1024 * 1024;
/// A string of Redis has at most 512 MiB, and so have headers and history as texts.
const LARGEST: u64 = 256 * 1024 * 1024;

type StoreResult<T> = std::result::Result<T, StoreError>;

impl Backend for RedisStore {
    fn limits(&self) -> Limits {
        let mut limits = Limits::new(STEP);
        // Both bound a script, since the server serves nobody else while it runs.
        limits.bytes = BYTES;
        limits.largest = LARGEST;
        limits
    }

    async fn run<V: Verb>(&self, during: &'static str, verb: V) -> StoreResult<Done<V::Output>> {
        // The future is large, and would otherwise be part of that of each caller.
        Box::pin(self.inner.decide(&verb)).await.during(during)?
    }

    async fn put_new(&self, letters: &[DeadLetter]) -> StoreResult<Vec<bool>> {
        self.inner.put_new(letters).await.during("put letters")
    }

    async fn switch_dedup(&self) -> StoreResult<()> {
        self.inner.switch_dedup_on().await.during("deduplicate")
    }

    async fn next_due(&self, consumers: Vec<String>) -> StoreResult<Option<Timestamp>> {
        self.inner.find_next_due(&consumers).await.during("find the next due letter")
    }

    fn store_identity(&self) -> Option<String> {
        Some(format!("redis letters {}", self.inner.identity))
    }

    async fn plan(&self, spec: OperationSpec) -> StoreResult<Plan> {
        self.inner.plan_replay(&spec).await.during("plan the replay")
    }

    async fn operation(&self, id: OperationId) -> StoreResult<Option<Operation>> {
        self.inner.read_operation(id).await.during("read the operation")
    }

    async fn operations(&self, limit: u32) -> StoreResult<Vec<Operation>> {
        self.inner.list_operations(limit).await.during("list operations")
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> StoreResult<ItemPage> {
        self.inner.list_items(id, after, limit).await.during("list the items")
    }

    async fn audit(&self, before: Option<u64>, limit: u32) -> StoreResult<Vec<AuditEntry>> {
        self.inner.read_audit(before, limit).await.during("read the audit")
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> StoreResult<()> {
        self.inner.write_processed(&events).await.during("write the processing audit")
    }

    async fn processed(&self, limit: u32) -> StoreResult<Vec<ProcessedEvent>> {
        self.inner.read_processed(limit).await.during("read the processing audit")
    }

    async fn check(&self, limits: CheckLimits) -> StoreResult<Vec<Finding>> {
        self.inner.examine(&limits).await.during("check the store")
    }

    async fn due(&self, overdue: Duration) -> StoreResult<Vec<Due>> {
        self.inner.due_by_consumer(overdue).await.during("count what is due")
    }
}
