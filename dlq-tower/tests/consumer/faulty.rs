//! A store in memory whose calls can be made to fail, and are counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::store::{
    Actor, ArchiveFilter, ArchivePage, ArchiveRequest, AuditEntry, AuditRequest, CheckLimits,
    Claim, ClaimRequest, ClaimToken, Claims, Cleaned, Cleanup, Control, Dispatch, Dispatched, Due,
    Edit, Finish, Finished, Group, GroupKey, GroupRecord, GroupUpdate, Heartbeat, ItemPage,
    Letters, Maintenance, Mark, Marked, Operation, OperationSpec, Operations, Pace, Plan, Presence,
    ProcessedEvent, Receipt, ScheduleRun, Selection, Sink, Stats, TakeRequest, Takes,
};
use dlq_core::{
    CrashMarks, DeadLetter, Death, DelayedRetry, Filter, Finding, LetterId, OperationId, Page,
    PageRequest, Position, RetryQueue, SharedClock, Status, StoreError, StoreErrorKind, Timestamp,
};
use dlq_letters::memory::MemoryStore;

use crate::support::clock;

/// Clones are the same store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) inner: MemoryStore,
    pub(crate) clock: SharedClock,
    faults: Arc<Mutex<HashMap<&'static str, (u32, StoreErrorKind)>>>,
    calls: Arc<Mutex<HashMap<&'static str, u32>>>,
    latency: Arc<AtomicU64>,
    outcomes: Arc<Mutex<Option<StoreErrorKind>>>,
    panics: Arc<Mutex<Option<&'static str>>>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let clock = clock();
        Self {
            inner: MemoryStore::new().clock(Arc::clone(&clock)),
            clock,
            faults: Arc::default(),
            calls: Arc::default(),
            latency: Arc::default(),
            outcomes: Arc::default(),
            panics: Arc::default(),
        }
    }

    /// The next `times` calls of `method` fail.
    pub(crate) fn fail(&self, method: &'static str, times: u32, kind: StoreErrorKind) {
        self.faults.lock().unwrap().insert(method, (times, kind));
    }

    /// From now on this method panics.
    pub(crate) fn panic(&self, method: &'static str) {
        *self.panics.lock().unwrap() = Some(method);
    }

    /// With a kind, no claim can be ended but by giving it back.
    pub(crate) fn refuse_outcomes(&self, kind: Option<StoreErrorKind>) {
        *self.outcomes.lock().unwrap() = kind;
    }

    fn take_outcomes(&self, finishes: &[(ClaimToken, Finish)]) -> Result<(), StoreError> {
        let gives_back = |(_, finish): &(_, Finish)| matches!(finish, Finish::Released { .. });
        match *self.outcomes.lock().unwrap() {
            Some(kind) if !finishes.iter().all(gives_back) => Err(StoreError::new(kind, "finish")),
            _ => Ok(()),
        }
    }

    /// How long each call takes from now on.
    pub(crate) fn slow(&self, latency: Duration) {
        self.latency.store(u64::try_from(latency.as_millis()).unwrap(), Ordering::Relaxed);
    }

    pub(crate) fn calls(&self, method: &'static str) -> u32 {
        self.calls.lock().unwrap().get(method).copied().unwrap_or(0)
    }

    async fn enter(&self, method: &'static str) -> Result<(), StoreError> {
        *self.calls.lock().unwrap().entry(method).or_default() += 1;
        let latency = self.latency.load(Ordering::Relaxed);
        if latency > 0 {
            tokio::time::sleep(Duration::from_millis(latency)).await;
        }
        let panics = *self.panics.lock().unwrap();
        assert!(panics != Some(method), "the store panics");
        match self.faults.lock().unwrap().get_mut(method) {
            Some((times, kind)) if *times > 0 => {
                *times -= 1;
                Err(StoreError::new(*kind, method))
            }
            _ => Ok(()),
        }
    }

    /// All letters and retry records, oldest position first.
    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        let listed = self.inner.list(Filter::new(), PageRequest::default()).await.unwrap();
        let mut letters = Vec::new();
        for summary in listed.letters {
            letters.push(self.inner.get(summary.id).await.unwrap().unwrap());
        }
        letters.sort_by_key(|letter| match letter.origin.position() {
            Position::Offset(offset) => *offset,
            _ => u64::MAX,
        });
        letters
    }

    /// The status of each.
    pub(crate) async fn statuses(&self) -> Vec<Status> {
        self.letters().await.iter().map(|letter| letter.state.status).collect()
    }

    /// Sends all pending letters back.
    pub(crate) async fn replay(&self) -> Operation {
        let filter = Filter::new().with_status(Status::Pending);
        let spec = OperationSpec::replay(filter);
        self.inner.start(spec, Actor::new("ana")).await.unwrap()
    }
}

macro_rules! delegate {
    ($($trait:ident { $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+ })+) => {
        $(impl $trait for Store {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.enter(stringify!($name)).await?;
                $trait::$name(&self.inner, $($arg),*).await
            })+
        })+
    };
}

impl Claims for Store {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.enter("claim").await?;
        self.inner.claim(request).await
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        self.enter("extend").await?;
        self.inner.extend(tokens, lease).await
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> Result<Vec<Finished>, StoreError> {
        self.enter("finish").await?;
        self.take_outcomes(&finishes)?;
        self.inner.finish(finishes).await
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        self.enter("next_due").await?;
        self.inner.next_due(consumers).await
    }

    async fn run_schedule(&self, run: ScheduleRun) -> Result<(u64, Duration), StoreError> {
        self.enter("run_schedule").await?;
        self.inner.run_schedule(run).await
    }
}

delegate! {
    Sink { fn put(letters: Vec<DeadLetter>) -> Vec<Receipt>; }
    Letters {
        fn get(id: LetterId) -> Option<DeadLetter>;
        fn get_all(ids: Vec<LetterId>) -> Vec<DeadLetter>;
        fn with_prefix(digits: String, limit: u32) -> Vec<LetterId>;
        fn list(filter: Filter, page: PageRequest) -> Page;
        fn count(filter: Filter) -> u64;
        fn groups(filter: Filter, limit: u32) -> Vec<Group>;
        fn stats(filter: Filter) -> Stats;
    }
    Operations {
        fn plan(spec: OperationSpec) -> Plan;
        fn start(spec: OperationSpec, by: Actor) -> Operation;
        fn operation(id: OperationId) -> Option<Operation>;
        fn operations(limit: u32) -> Vec<Operation>;
        fn items(id: OperationId, after: u64, limit: u32) -> ItemPage;
        fn control(id: OperationId, control: Control, by: Actor) -> Operation;
        fn set_pace(id: OperationId, pace: Option<Pace>, by: Actor) -> Operation;
    }
    Dispatch {
        fn take(request: TakeRequest) -> Takes;
        fn record(dispatched: Vec<(ClaimToken, Dispatched)>) -> Vec<Finished>;
        fn succeeded(deaths: Vec<Death>) -> u64;
    }
    Maintenance {
        fn mark(selection: Selection, mark: Mark, by: Actor) -> Marked;
        fn delete(selection: Selection, by: Actor) -> Marked;
        fn delete_for_good(selection: Selection, by: Actor) -> Marked;
        fn archived(request: ArchiveRequest) -> ArchivePage;
        fn undelete(filter: ArchiveFilter, by: Actor) -> Marked;
        fn cleanup(cleanup: Cleanup, by: Actor) -> Cleaned;
        fn edit(id: LetterId, edit: Edit, by: Actor) -> DeadLetter;
        fn restore(letters: Vec<DeadLetter>, by: Actor) -> Vec<Receipt>;
        fn audit(request: AuditRequest) -> Vec<AuditEntry>;
        fn group_records(groups: Vec<GroupKey>) -> Vec<GroupRecord>;
        fn update_group(group: GroupKey, update: GroupUpdate, by: Actor) -> GroupRecord;
        fn heartbeat(heartbeat: Heartbeat) -> ();
        fn sign_off(heartbeat: Heartbeat) -> ();
        fn consumers() -> (Vec<Presence>, Timestamp);
        fn record_processed(events: Vec<ProcessedEvent>) -> ();
        fn processed(limit: u32) -> Vec<ProcessedEvent>;
        fn deduplicate(force: bool) -> u64;
        fn check(limits: CheckLimits) -> Vec<Finding>;
        fn due(overdue: Duration) -> Vec<Due>;
    }
    RetryQueue { fn enqueue(delayed_retry: DelayedRetry) -> (); }
    CrashMarks {
        fn begin(letter: LetterId) -> u32;
        fn end(letter: LetterId, left: u32) -> ();
        fn explain(letter: LetterId) -> ();
        fn explained(letter: LetterId) -> u32;
        fn forget_explained(letter: LetterId) -> ();
    }
}
