//! Erasure: a private mirror of each trait whose methods return boxed futures, and the boxes that implement the
//! traits again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Actor, ArchiveFilter, ArchivePage, ArchiveRequest, AuditEntry, AuditRequest, CheckLimits,
    Claim, ClaimRequest, ClaimToken, Claims, Cleaned, Cleanup, Control, Dispatch, Dispatched, Due,
    Edit, Finish, Finished, Group, GroupKey, GroupRecord, GroupUpdate, Heartbeat, Hours, ItemPage,
    Letters, Maintenance, Mark, Marked, Operation, OperationSpec, Operations, Pace, Plan, Presence,
    ProcessedEvent, Receipt, ScheduleRun, Selection, Sink, Stats, Store, TakeRequest, Takes,
};
use crate::{
    CrashMarks, DeadLetter, Death, DelayedRetry, Filter, Finding, LetterId, OperationId, Page,
    PageRequest, RetryQueue, StoreError, StoreErrorKind, Timestamp,
};

type Erased<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Declares the mirror of a trait, implements it for everything that has the trait, and implements the trait for the
/// named boxes, and for [`ReadOnly`] where the trait is more than reading.
// A trait whose methods are `async` cannot be a trait object. The mirror is one by boxing each future, which costs an
// allocation for each call of a store, far less than the call.
macro_rules! mirror {
    (
        $trait:ident as $mirror:ident for $($box:ident),+ $(; refused by $refusing:ident)?
        { $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+ }
        $(at once { $(fn $now:ident() -> $value:ty;)+ })?
    ) => {
        trait $mirror: std::fmt::Debug + Send + Sync {
            $(fn $name(&self, $($arg: $type),*) -> Erased<'_, $answer>;)+
            $($(fn $now(&self) -> $value;)+)?
        }

        impl<T: $trait> $mirror for T {
            $(fn $name(&self, $($arg: $type),*) -> Erased<'_, $answer> { Box::pin($trait::$name(self, $($arg),*)) })+
            $($(fn $now(&self) -> $value { $trait::$now(self) })+)?
        }

        mirror!(@boxes $trait as $mirror for [$($box),+] [$($($now $value;)+)?] $($name [$($arg: $type),*] $answer;)+);
        mirror!(@refused $trait by [$($refusing)?] $($name [$($arg: $type),*] $answer;)+);
    };
    (@refused $trait:ident by [] $($methods:tt)+) => {};
    (@refused $trait:ident by [$box:ident] $($name:ident [$($arg:ident: $type:ty),*] $answer:ty;)+) => {
        impl $trait for $box {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                mirror!(@answer $name $($arg)*)
            })+
        }
    };
    // Nothing was decided about any group, which is an answer and no refusal.
    (@answer group_records $groups:ident) => { Ok(vec![GroupRecord::default(); $groups.len()]) };
    (@answer $name:ident $($arg:ident)*) => {{
        let _ = ($($arg,)*);
        Err(read_only())
    }};
    (@boxes $trait:ident as $mirror:ident for [$box:ident $(, $more:ident)*] $($methods:tt)+) => {
        mirror!(@box $trait as $mirror for $box $($methods)+);
        mirror!(@boxes $trait as $mirror for [$($more),*] $($methods)+);
    };
    (@boxes $trait:ident as $mirror:ident for [] $($methods:tt)+) => {};
    (
        @box $trait:ident as $mirror:ident for $box:ident
        [$($now:ident $value:ty;)*] $($name:ident [$($arg:ident: $type:ty),*] $answer:ty;)+
    ) => {
        impl $trait for $box {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> { $mirror::$name(&*self.0, $($arg),*).await })+
            $(fn $now(&self) -> $value { $mirror::$now(&*self.0) })*
        }
    };
}

mirror!(Sink as DynSink for BoxStore, BoxSink; refused by ReadOnly {
    fn put(letters: Vec<DeadLetter>) -> Vec<Receipt>;
    fn put_each(letters: Vec<DeadLetter>) -> Vec<Result<Receipt, StoreError>>;
} at once {
    fn writers() -> usize;
});

mirror!(Letters as DynLetters for BoxStore, BoxLetters, ReadOnly {
    fn get(id: LetterId) -> Option<DeadLetter>;
    fn get_all(ids: Vec<LetterId>) -> Vec<DeadLetter>;
    fn with_prefix(digits: String, limit: u32) -> Vec<LetterId>;
    fn list(filter: Filter, page: PageRequest) -> Page;
    fn count(filter: Filter) -> u64;
    fn groups(filter: Filter, limit: u32) -> Vec<Group>;
    fn stats(filter: Filter) -> Stats;
    fn hours(filter: Filter, since: Timestamp, hours: u32) -> Hours;
});

mirror!(Claims as DynClaims for BoxStore; refused by ReadOnly {
    fn claim(request: ClaimRequest) -> Vec<Claim>;
    fn extend(tokens: Vec<ClaimToken>, lease: Duration) -> Vec<bool>;
    fn finish(finishes: Vec<(ClaimToken, Finish)>) -> Vec<Finished>;
    fn next_due(consumers: Vec<String>) -> Option<Timestamp>;
    fn due_elsewhere(consumers: Vec<String>, heard: u64) -> u64;
    fn run_schedule(run: ScheduleRun) -> (u64, Duration);
} at once {
    fn store_identity() -> Option<String>;
});

mirror!(Operations as DynOperations for BoxStore; refused by ReadOnly {
    fn plan(spec: OperationSpec) -> Plan;
    fn start(spec: OperationSpec, by: Actor) -> Operation;
    fn operation(id: OperationId) -> Option<Operation>;
    fn operations(limit: u32) -> Vec<Operation>;
    fn items(id: OperationId, after: u64, limit: u32) -> ItemPage;
    fn control(id: OperationId, control: Control, by: Actor) -> Operation;
    fn set_pace(id: OperationId, pace: Option<Pace>, by: Actor) -> Operation;
});

mirror!(Dispatch as DynDispatch for BoxStore; refused by ReadOnly {
    fn take(request: TakeRequest) -> Takes;
    fn record(dispatched: Vec<(ClaimToken, Dispatched)>) -> Vec<Finished>;
    fn succeeded(deaths: Vec<Death>) -> u64;
});

mirror!(Maintenance as DynMaintenance for BoxStore; refused by ReadOnly {
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
});

mirror!(RetryQueue as DynRetryQueue for BoxStore; refused by ReadOnly {
    fn enqueue(delayed_retry: DelayedRetry) -> ();
});

trait DynStore:
    DynSink + DynLetters + DynClaims + DynOperations + DynDispatch + DynMaintenance + DynRetryQueue
{
}

impl<S: Store> DynStore for S {}

/// Any store, erased. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxStore(Arc<dyn DynStore>);

impl BoxStore {
    /// Erases `store`.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

/// Any sink, erased. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxSink(Arc<dyn DynSink>);

impl BoxSink {
    /// Erases `sink`.
    #[must_use]
    pub fn new(sink: impl Sink) -> Self {
        Self(Arc::new(sink))
    }
}

/// Letters of any kind, erased: of a store, or of a broker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BoxLetters(Arc<dyn DynLetters>);

impl BoxLetters {
    /// Erases `letters`.
    #[must_use]
    pub fn new(letters: impl Letters) -> Self {
        Self(Arc::new(letters))
    }
}

/// Letters as a store that can only be looked at; see [`DeadLetters::read_only`](super::DeadLetters::read_only).
#[derive(Clone, Debug)]
pub(super) struct ReadOnly(Arc<dyn DynLetters>);

impl ReadOnly {
    pub(super) fn new(letters: impl Letters) -> Self {
        Self(Arc::new(letters))
    }
}

impl CrashMarks for ReadOnly {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        let _ = letter;
        Err(read_only())
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        let _ = (letter, left);
        Err(read_only())
    }
}

/// Returns the error of every call that needs more than letters.
fn read_only() -> StoreError {
    StoreError::new(StoreErrorKind::Refused, "do that with letters that can only be read")
        .with_detail("they are in no store; ingest them into one, which keeps what is done to them")
}
