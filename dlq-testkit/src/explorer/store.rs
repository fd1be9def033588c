use std::time::Duration;

use dlq_core::memory::MemorySink;
use dlq_core::store::memory::MemoryStore;
use dlq_core::store::{
    Actor, AuditEntry, CheckLimits, Claim, ClaimRequest, ClaimToken, Claims, Cleanup, Control, Due,
    Edit, Finish, Finished, Group, ItemPage, Letters, Mark, Marked, Operation, OperationSpec,
    Operations, Plan, ProcessedEvent, Receipt, ScheduleRun, Selection, Stats, Upkeep,
};
use dlq_core::{
    CrashMarks, DeadLetter, Escalation, Filter, Finding, LetterId, OperationId, Page, PageRequest,
    RetryLane, Sink, StoreError, Timestamp,
};

use super::flaw::Flaw;
use super::gate::Process;
use super::transport::store_down;

/// The answer of a sink, unless the sink is one that confirms what it has not written.
fn confirmed(
    process: &Process,
    letters: usize,
    answer: Result<Vec<Receipt>, StoreError>,
) -> Result<Vec<Receipt>, StoreError> {
    match answer {
        Err(_) if process.world.flaw == Some(Flaw::ConfirmsUnwrittenLetters) => {
            Ok(vec![Receipt::Stored; letters])
        }
        answer => answer,
    }
}

/// A stream of dead letters in memory whose every write is a step.
#[derive(Clone, Debug)]
pub struct SteppedSink {
    process: Process,
    inner: MemorySink,
}

impl SteppedSink {
    pub(super) fn new(process: Process, inner: MemorySink) -> Self {
        Self { process, inner }
    }
}

impl Sink for SteppedSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let count = letters.len();
        let answer = self.process.call("put", || self.inner.put(letters), store_down).await;
        confirmed(&self.process, count, answer)
    }
}

/// A store in memory whose every call that a consumer makes is a step.
#[derive(Clone, Debug)]
pub struct SteppedStore {
    process: Process,
    inner: MemoryStore,
}

impl SteppedStore {
    pub(super) fn new(process: Process, inner: MemoryStore) -> Self {
        Self { process, inner }
    }

    /// What [`Flaw::IgnoresFence`] is: a death is recorded whoever has the letter now.
    async fn force(&self, finish: Finish) -> Result<Finished, StoreError> {
        let Finish::Dead(mut letter) = finish else { return Ok(Finished::Stale) };
        if let Some(there) = self.inner.get(letter.id).await? {
            letter.generation = there.generation.saturating_add(1);
            self.inner.put(vec![*letter]).await?;
        }
        Ok(Finished::Applied)
    }
}

impl Sink for SteppedStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let count = letters.len();
        let answer = self.process.call("put", || self.inner.put(letters), store_down).await;
        confirmed(&self.process, count, answer)
    }
}

impl RetryLane for SteppedStore {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        let effect = || self.inner.escalate(escalation);
        match self.process.call("escalate", effect, store_down).await {
            Err(_) if self.process.world.flaw == Some(Flaw::ConfirmsUnwrittenRecords) => Ok(()),
            answer => answer,
        }
    }
}

impl Claims for SteppedStore {
    /// A step only when there is something to claim: else a case would be made of idle questions.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let due = self.inner.next_due(request.filter.consumers.clone()).await?;
        if due.is_none_or(|due| due > self.process.world.now()) {
            return Ok(Vec::new());
        }
        let mut claims =
            self.process.call("claim", || self.inner.claim(request), store_down).await?;
        if self.process.world.flaw == Some(Flaw::HandsOutTwice) {
            claims.extend(claims.clone());
        }
        Ok(claims)
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let effect = || self.inner.extend(tokens, lease);
        self.process.call("extend claims", effect, store_down).await
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> Result<Vec<Finished>, StoreError> {
        let effect = || async {
            let mut answers = self.inner.finish(finishes.clone()).await?;
            if self.process.world.flaw == Some(Flaw::IgnoresFence) {
                for (answer, (_, finish)) in answers.iter_mut().zip(finishes) {
                    if *answer == Finished::Stale {
                        *answer = self.force(finish).await?;
                    }
                }
            }
            Ok(answers)
        };
        self.process.call("finish", effect, store_down).await
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        self.inner.next_due(consumers).await
    }

    async fn run_schedule(&self, run: ScheduleRun) -> Result<(u64, Duration), StoreError> {
        self.process.call("schedule", || self.inner.run_schedule(run), store_down).await
    }
}

impl CrashMarks for SteppedStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        self.process.call("mark", || self.inner.begin(letter), store_down).await
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        self.process.call("unmark", || self.inner.end(letter, left), store_down).await
    }
}

/// What consumers do not call is passed on as it is.
macro_rules! passed_on {
    ($trait:ident: $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl $trait for SteppedStore {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.inner.$name($($arg),*).await
            })+
        }
    };
}

passed_on! { Letters:
    get(id: LetterId) -> Option<DeadLetter>;
    get_all(ids: Vec<LetterId>) -> Vec<DeadLetter>;
    with_prefix(digits: String, limit: u32) -> Vec<LetterId>;
    list(filter: Filter, page: PageRequest) -> Page;
    count(filter: Filter) -> u64;
    groups(filter: Filter, limit: u32) -> Vec<Group>;
    stats(filter: Filter) -> Stats;
}

passed_on! { Operations:
    plan(spec: OperationSpec) -> Plan;
    start(spec: OperationSpec, by: Actor) -> Operation;
    operation(id: OperationId) -> Option<Operation>;
    operations(limit: u32) -> Vec<Operation>;
    items(id: OperationId, after: u64, limit: u32) -> ItemPage;
    control(id: OperationId, control: Control, by: Actor) -> Operation;
}

passed_on! { Upkeep:
    mark(selection: Selection, mark: Mark, by: Actor) -> Marked;
    delete(selection: Selection, by: Actor) -> Marked;
    cleanup(cleanup: Cleanup, by: Actor) -> u64;
    edit(id: LetterId, edit: Edit, by: Actor) -> DeadLetter;
    restore(letters: Vec<DeadLetter>, by: Actor) -> Vec<Receipt>;
    audit(limit: u32) -> Vec<AuditEntry>;
    record_processed(events: Vec<ProcessedEvent>) -> ();
    processed(limit: u32) -> Vec<ProcessedEvent>;
    deduplicate(force: bool) -> u64;
    check(limits: CheckLimits) -> Vec<Finding>;
    due(overdue: Duration) -> Vec<Due>;
}
