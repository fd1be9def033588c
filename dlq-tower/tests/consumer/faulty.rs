//! A store in memory whose calls can be made to fail, and are counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlq_core::store::memory::MemoryStore;
use dlq_core::store::{
    Actor, AuditEntry, CheckLimits, Claim, ClaimRequest, ClaimToken, Claims, Cleanup, Control, Due,
    Edit, Finish, Finished, Group, ItemPage, Letters, Mark, Marked, Operation, OperationSpec,
    Operations, Plan, ProcessedEvent, Receipt, ScheduleRun, Selection, Sink, Stats, Upkeep,
};
use dlq_core::{
    CrashMarks, DeadLetter, Escalation, Filter, Finding, LetterId, OperationId, Page, PageRequest,
    Position, RetryLane, SharedClock, Status, StoreError, StoreErrorKind, Timestamp,
};

use crate::support::clock;

/// Clones are the same store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) inner: MemoryStore,
    pub(crate) clock: SharedClock,
    faults: Arc<Mutex<HashMap<&'static str, (u32, StoreErrorKind)>>>,
    calls: Arc<Mutex<HashMap<&'static str, u32>>>,
    latency: Arc<AtomicU64>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let clock = clock();
        Self {
            inner: MemoryStore::new().with_clock(Arc::clone(&clock)),
            clock,
            faults: Arc::default(),
            calls: Arc::default(),
            latency: Arc::default(),
        }
    }

    /// The next `times` calls of `method` fail.
    pub(crate) fn fail(&self, method: &'static str, times: u32, kind: StoreErrorKind) {
        self.faults.lock().unwrap().insert(method, (times, kind));
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
            Position::Offset(offset) => offset,
            Position::Pair(..) => u64::MAX,
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
    Claims {
        fn claim(request: ClaimRequest) -> Vec<Claim>;
        fn extend(tokens: Vec<ClaimToken>, lease: Duration) -> Vec<bool>;
        fn finish(finishes: Vec<(ClaimToken, Finish)>) -> Vec<Finished>;
        fn next_due(consumers: Vec<String>) -> Option<Timestamp>;
        fn run_schedule(run: ScheduleRun) -> (u64, Duration);
    }
    Operations {
        fn plan(spec: OperationSpec) -> Plan;
        fn start(spec: OperationSpec, by: Actor) -> Operation;
        fn operation(id: OperationId) -> Option<Operation>;
        fn operations(limit: u32) -> Vec<Operation>;
        fn items(id: OperationId, after: u64, limit: u32) -> ItemPage;
        fn control(id: OperationId, control: Control, by: Actor) -> Operation;
    }
    Upkeep {
        fn mark(selection: Selection, mark: Mark, by: Actor) -> Marked;
        fn delete(selection: Selection, by: Actor) -> Marked;
        fn cleanup(cleanup: Cleanup, by: Actor) -> u64;
        fn edit(id: LetterId, edit: Edit, by: Actor) -> DeadLetter;
        fn restore(letters: Vec<DeadLetter>, by: Actor) -> Vec<Receipt>;
        fn audit(limit: u32) -> Vec<AuditEntry>;
        fn record_processed(events: Vec<ProcessedEvent>) -> ();
        fn processed(limit: u32) -> Vec<ProcessedEvent>;
        fn deduplicate(force: bool) -> u64;
        fn check(limits: CheckLimits) -> Vec<Finding>;
        fn due(overdue: Duration) -> Vec<Due>;
    }
    RetryLane { fn escalate(escalation: Escalation) -> (); }
    CrashMarks {
        fn begin(letter: LetterId) -> u32;
        fn end(letter: LetterId, left: u32) -> ();
        fn explain(letter: LetterId) -> ();
        fn explained(letter: LetterId) -> u32;
        fn forget_explained(letter: LetterId) -> ();
    }
}
