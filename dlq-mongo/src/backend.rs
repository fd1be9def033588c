use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Claim, ClaimRequest, ClaimToken, Due, Finish, Finished, ItemPage,
    Operation, OperationSpec, Plan, ProcessedEvent,
};
use dlq_core::{DeadLetter, Finding, OperationId, StoreError, Timestamp};
use dlq_letters::{Backend, Done, Limits, Verb};

use crate::MongoStore;
use crate::error::During;

/// Letters, and about how many bytes of them, that one step writes.
const LETTERS: u32 = 100;
const BYTES: u64 = 8 * 1024 * 1024;

type StoreResult<T> = std::result::Result<T, StoreError>;

impl Backend for MongoStore {
    fn limits(&self) -> Limits {
        // A commit has in it all that it writes, and keeps its locks for several round trips, so a step is smaller than
        // that of a store with transactions.
        let mut limits = Limits::new(LETTERS);
        limits.bytes = BYTES;
        limits
    }

    async fn run<V: Verb>(&self, during: &'static str, verb: V) -> StoreResult<Done<V::Output>> {
        self.db().run(&verb).await.during(during)?
    }

    async fn put_new(&self, letters: &[DeadLetter]) -> StoreResult<Vec<bool>> {
        self.db().insert_new(letters).await.during("put letters")
    }

    async fn claim_due(&self, request: &ClaimRequest) -> StoreResult<Option<Vec<Claim>>> {
        const DURING: &str = "claim letters";
        // Claims pass over locked letters, so that nobody else would come across what a dead process has locked.
        self.sweep_now_and_then().await.during(DURING)?;
        self.db().claim_plainly(request).await.during(DURING)
    }

    async fn extend_held(
        &self,
        tokens: &[ClaimToken],
        lease: Duration,
    ) -> StoreResult<Option<Vec<bool>>> {
        self.db().extend_plainly(tokens, lease).await.during("extend claims")
    }

    async fn finish_plain(
        &self,
        finishes: &[(ClaimToken, Finish)],
    ) -> StoreResult<Vec<Option<Finished>>> {
        self.db().end_plainly(finishes).await.during("finish claims")
    }

    async fn switch_dedup(&self) -> StoreResult<()> {
        self.db().switch_dedup_on().await.during("deduplicate")
    }

    async fn next_due(&self, consumers: Vec<String>) -> StoreResult<Option<Timestamp>> {
        self.db().find_next_due(&consumers).await.during("find the next due letter")
    }

    fn store_identity(&self) -> Option<String> {
        Some(format!("{} letters", self.identity()))
    }

    async fn plan(&self, spec: OperationSpec) -> StoreResult<Plan> {
        self.db().plan_replay(&spec).await.during("plan the replay")
    }

    async fn operation(&self, id: OperationId) -> StoreResult<Option<Operation>> {
        self.db().read_operation(id).await.during("read the operation")
    }

    async fn operations(&self, limit: u32) -> StoreResult<Vec<Operation>> {
        self.db().list_operations(limit).await.during("list operations")
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> StoreResult<ItemPage> {
        self.db().list_items(id, after, limit).await.during("list the items")
    }

    async fn audit(&self, before: Option<u64>, limit: u32) -> StoreResult<Vec<AuditEntry>> {
        self.db().read_audit(before, limit).await.during("read the audit")
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> StoreResult<()> {
        self.db().write_processed(&events).await.during("write the processing audit")
    }

    async fn processed(&self, limit: u32) -> StoreResult<Vec<ProcessedEvent>> {
        self.db().read_processed(limit).await.during("read the processing audit")
    }

    async fn check(&self, limits: CheckLimits) -> StoreResult<Vec<Finding>> {
        const DURING: &str = "check the store";
        // What processes left behind that died is put right first, or the check would find it amiss.
        self.db().sweep_commits().await.during(DURING)?;
        self.db().examine(limits).await.during(DURING)
    }

    async fn due(&self, overdue: Duration) -> StoreResult<Vec<Due>> {
        self.db().due_by_consumer(overdue).await.during("count due letters")
    }
}

dlq_letters::store!(MongoStore);
