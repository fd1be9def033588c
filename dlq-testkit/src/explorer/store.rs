use std::time::Duration;

use dlq_core::memory::MemorySink;
use dlq_core::store::{
    Actor, ArchiveFilter, ArchivePage, ArchiveRequest, AuditEntry, AuditRequest, CheckLimits,
    Claim, ClaimRequest, ClaimToken, Claims, Cleaned, Cleanup, Control, Dispatch, Dispatched, Due,
    Edit, Finish, Finished, Group, GroupKey, GroupRecord, GroupUpdate, Heartbeat, ItemPage,
    Letters, Maintenance, Mark, Marked, Operation, OperationSpec, Operations, Pace, Plan, Presence,
    ProcessedEvent, Receipt, ScheduleRun, Selection, Stats, TakeRequest, Takes,
};
use dlq_core::{
    CrashMarks, DeadLetter, Death, DelayedRetry, Filter, Finding, LetterId, OperationId, Page,
    PageRequest, RetryQueue, Sink, StoreError, StoreErrorKind, Timestamp,
};
use dlq_letters::memory::MemoryStore;

use super::flaw::Flaw;
use super::gate::Process;
use super::headers::over_the_stream;
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
    is_feed: bool,
}

impl SteppedSink {
    pub(super) fn new(process: Process, inner: MemorySink) -> Self {
        Self { process, inner, is_feed: false }
    }

    /// A second one, that gets copies.
    pub(super) fn feed(process: Process, inner: MemorySink) -> Self {
        Self { process, inner, is_feed: true }
    }
}

impl Sink for SteppedSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let (count, world) = (letters.len(), &self.process.world);
        if self.is_feed {
            let effect = || async {
                match world.feed_fails() {
                    true => Err(store_down("copy", StoreErrorKind::Unavailable)),
                    false => self.inner.put(letters).await,
                }
            };
            return self.process.call("copy", effect, store_down).await;
        }
        let effect = || async {
            world.takes(&letters)?;
            // What the headers cannot carry is lost here, as it is at a real broker.
            let read = letters.into_iter().map(over_the_stream).collect::<Result<_, _>>()?;
            self.inner.put(read).await
        };
        let answer = self.process.call("put", effect, store_down).await;
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

    /// Fails as a store does that is gone for good.
    fn is_there(&self) -> Result<(), StoreError> {
        match self.process.world.gate.lost_store() {
            Some(kind) => Err(store_down("ask the store", kind)),
            None => Ok(()),
        }
    }

    /// Records a death whoever has the letter now: [`Flaw::IgnoresFence`].
    async fn force(&self, finish: Finish) -> Result<Finished, StoreError> {
        // Any outcome but a death stays stale: the flaw breaks one promise only.
        let Finish::Dead(mut letter) = finish else { return Ok(Finished::Stale) };
        if let Some(there) = self.inner.get(letter.id).await? {
            // A later death is never ignored, so this one voids the claim of the owner.
            letter.generation = there.generation.saturating_add(1);
            self.inner.put(vec![*letter]).await?;
        }
        Ok(Finished::Applied)
    }
}

impl Sink for SteppedStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let count = letters.len();
        let effect = || async {
            self.process.world.takes(&letters)?;
            self.inner.put(letters).await
        };
        let answer = self.process.call("put", effect, store_down).await;
        confirmed(&self.process, count, answer)
    }
}

impl RetryQueue for SteppedStore {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let effect = || self.inner.enqueue(delayed_retry);
        match self.process.call("enqueue", effect, store_down).await {
            Err(_) if self.process.world.flaw == Some(Flaw::ConfirmsUnwrittenRecords) => Ok(()),
            answer => answer,
        }
    }
}

impl Claims for SteppedStore {
    /// A step only when there is something to claim: else a case would be made of idle questions.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        // Questions that are no steps have to fail, too, once the store is gone.
        self.is_there()?;
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
        self.is_there()?;
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

impl Letters for SteppedStore {
    /// A consumer asks it whether a message that was handled has a letter.
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.process.call("look for a letter", || self.inner.get(id), store_down).await
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.get_all(ids).await
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        self.inner.with_prefix(digits, limit).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.inner.list(filter, page).await
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.inner.count(filter).await
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        self.inner.groups(filter, limit).await
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.inner.stats(filter).await
    }
}

/// Passes on calls that consumers do not make.
macro_rules! passed_on {
    ($trait:ident: $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl $trait for SteppedStore {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.inner.$name($($arg),*).await
            })+
        }
    };
}

passed_on! { Operations:
    plan(spec: OperationSpec) -> Plan;
    start(spec: OperationSpec, by: Actor) -> Operation;
    operation(id: OperationId) -> Option<Operation>;
    operations(limit: u32) -> Vec<Operation>;
    items(id: OperationId, after: u64, limit: u32) -> ItemPage;
    control(id: OperationId, control: Control, by: Actor) -> Operation;
    set_pace(id: OperationId, pace: Option<Pace>, by: Actor) -> Operation;
}

passed_on! { Dispatch:
    take(request: TakeRequest) -> Takes;
    record(dispatched: Vec<(ClaimToken, Dispatched)>) -> Vec<Finished>;
    succeeded(deaths: Vec<Death>) -> u64;
}

impl Maintenance for SteppedStore {
    /// A consumer resolves the letter of a message that was handled.
    async fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> Result<Marked, StoreError> {
        let effect = || self.inner.mark(selection, mark, by);
        self.process.call("resolve a letter", effect, store_down).await
    }

    async fn delete(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.inner.delete(selection, by).await
    }

    async fn delete_for_good(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.inner.delete_for_good(selection, by).await
    }

    async fn archived(&self, request: ArchiveRequest) -> Result<ArchivePage, StoreError> {
        self.inner.archived(request).await
    }

    async fn undelete(&self, filter: ArchiveFilter, by: Actor) -> Result<Marked, StoreError> {
        self.inner.undelete(filter, by).await
    }

    async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> Result<Cleaned, StoreError> {
        self.inner.cleanup(cleanup, by).await
    }

    async fn edit(&self, id: LetterId, edit: Edit, by: Actor) -> Result<DeadLetter, StoreError> {
        self.inner.edit(id, edit, by).await
    }

    async fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> Result<Vec<Receipt>, StoreError> {
        self.inner.restore(letters, by).await
    }

    async fn audit(&self, request: AuditRequest) -> Result<Vec<AuditEntry>, StoreError> {
        self.inner.audit(request).await
    }

    async fn group_records(&self, groups: Vec<GroupKey>) -> Result<Vec<GroupRecord>, StoreError> {
        self.inner.group_records(groups).await
    }

    async fn update_group(
        &self,
        group: GroupKey,
        update: GroupUpdate,
        by: Actor,
    ) -> Result<GroupRecord, StoreError> {
        self.inner.update_group(group, update, by).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), StoreError> {
        self.inner.heartbeat(heartbeat).await
    }

    async fn sign_off(&self, heartbeat: Heartbeat) -> Result<(), StoreError> {
        self.inner.sign_off(heartbeat).await
    }

    async fn consumers(&self) -> Result<(Vec<Presence>, Timestamp), StoreError> {
        self.inner.consumers().await
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> Result<(), StoreError> {
        self.inner.record_processed(events).await
    }

    async fn processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>, StoreError> {
        self.inner.processed(limit).await
    }

    async fn deduplicate(&self, force: bool) -> Result<u64, StoreError> {
        self.inner.deduplicate(force).await
    }

    async fn check(&self, limits: CheckLimits) -> Result<Vec<Finding>, StoreError> {
        self.inner.check(limits).await
    }

    async fn due(&self, overdue: Duration) -> Result<Vec<Due>, StoreError> {
        self.inner.due(overdue).await
    }
}
