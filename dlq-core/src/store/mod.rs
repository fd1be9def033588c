//! The store: where dead letters rest, are looked at, claimed and sent back.
//!
//! A store is made of small traits, one power each: [`Sink`] takes letters durably, [`Letters`] lists and reads them,
//! [`Claims`] hands them out one owner at a time, [`Operations`] sends many back under control, [`Maintenance`] is what an
//! operator and a janitor need. A store is all of them ([`Store`]); the dead letters of a broker are the first two.
//! Programs use a store through one handle, [`DeadLetters`].
//!
//! Every store gives the same answers; the conformance suite of `dlq-testkit` holds them to it. The engine that most of
//! them share, and a store in memory, are in `dlq-letters`.
//!
//! # Cancel safety
//!
//! Dropping the future of a call that changes something leaves it open whether the change happened. Every such call
//! may be repeated: writing the same death, finishing the same claim or cancelling the same operation again changes
//! nothing. Dropping the future of a call that only reads changes nothing.
//!
//! # Errors
//!
//! Every call fails when the store does not answer (`Unavailable`), when its data is damaged (`Corrupt`), or when it is of a
//! newer format (`Incompatible`). The docs of a method name further errors only. After `Unavailable` it is open whether a
//! change happened, since only the answer may have been lost: repeat the call, as after a dropped future.

mod alert;
mod archive;
mod audit;
mod check;
mod claim;
mod dispatch;
mod due;
mod edit;
mod erased;
mod handle;
mod hours;
mod maintenance;
mod migration;
mod operation;
mod presence;
mod quarantine;
pub mod reading;
pub mod rules;
mod schedule;
mod selection;
mod stats;
mod triage;
mod unfinished;

pub use alert::{AlertClaim, AlertKind, AlertUpdate, GroupAlert};
pub use archive::{ArchiveFilter, ArchivePage, ArchiveRequest, Archived};
pub use audit::{Actor, AuditEntry, AuditRequest, Processed, ProcessedEvent};
pub use check::{CheckLimits, Vitals, Waiting};
pub use claim::{Claim, ClaimRequest, ClaimToken, Finish, Finished};
pub use dispatch::{Dispatch, Dispatched, FormerSender, TakeRequest, Taken, Takes};
pub use due::Due;
pub use edit::{Amended, Edit, EditError, Hands};
pub use erased::{BoxLetters, BoxSink, BoxStore};
pub use handle::DeadLetters;
pub use hours::Hours;
pub use maintenance::{Cleaned, Cleanup, Mark, Marked};
pub use migration::{Migration, MigrationStep};
pub use operation::{
    Cluster, Control, ItemOutcome, ItemPage, Operation, OperationItem, OperationSpec,
    OperationState, Pace, Plan, Progress, Target,
};
pub use presence::{Heartbeat, Presence};
pub use quarantine::{DLQ_MESSAGES_QUARANTINED_TOTAL, count_quarantined};
pub use schedule::{Schedule, ScheduleRun};
pub use selection::{EmptyFilter, Selection};
pub use stats::{Group, Health, HealthState, HealthThresholds, Stats};
pub use triage::{GroupKey, GroupRecord, GroupState, GroupUpdate, Triage, TriagedGroup};
pub use unfinished::Unfinished;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::{
    CrashMarks, DeadLetter, Filter, Finding, LetterId, Page, PageRequest, RetryQueue, StoreError,
    Timestamp,
};

/// Result of putting a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Receipt {
    /// It is a new letter.
    Stored,
    /// The same death was written before; nothing changed.
    Unchanged,
    /// A letter of a lower generation (or a retry record) existed; it is pending again with this death.
    Reopened,
    /// A letter (or retry record) of a higher generation exists; this one is out of date and was ignored.
    Superseded,
    /// The letter is another message: it has bytes that this death never had, or claims an absurd number of deaths. Both are
    /// kept: this one under the id given here. Raise an alarm.
    Conflicting(LetterId),
    /// The store deduplicates by original id: an existing letter, whose id is given here, took over this death's error
    /// and payload, now or when the same death was put before.
    Merged(LetterId),
}

/// Takes letters durably.
pub trait Sink: fmt::Debug + Send + Sync + 'static {
    /// Writes letters and returns once all of them are durable; receipts come in the order of the letters.
    ///
    /// One letter per death (G2): the same death changes nothing, whatever became of the letter; a higher generation
    /// reopens the letter; a lower one is ignored. A death with a payload or key that the letter never had becomes a second
    /// letter at any generation, under [`LetterId::conflicting`](crate::LetterId::conflicting). The first death of a retry record has the
    /// record's generation and reopens it. Letters are taken in order, so that a batch may hold several deaths of one.
    ///
    /// A letter that is reopened takes over everything of the new death, is `pending`, belongs to no operation, and is
    /// in nobody's hands: a claim of it is void. When it died first and how often it was sent back stay. That goes
    /// for quarantined and resolved letters too: the new death is news.
    ///
    /// A store decides the [`LetterState`](crate::LetterState) itself and ignores what the writer put there, except that
    /// it was sent back before, or may have been and is quarantined ([`rules::put`]). No letter is refused for its content
    /// (G8).
    ///
    /// # Deduplication
    ///
    /// A store that deduplicates keeps one letter per [original message](rules::DedupKey). A death of a letter that it
    /// does not have is then merged into the one of the same original: that one is seen once more, takes over the new
    /// death and is pending again (a quarantined one stays so). The same death again changes nothing. Retry records
    /// are not merged, and neither are letters without an original id.
    ///
    /// # Errors
    ///
    /// When the letters are not known to be durable. Either all were written or it is open which were; write them
    /// again. `Refused` is of one of these letters, e.g. for its size: another letter may be taken. Any other kind is of
    /// the store.
    fn put(
        &self,
        letters: Vec<DeadLetter>,
    ) -> impl Future<Output = Result<Vec<Receipt>, StoreError>> + Send;

    /// Writes letters as [`put`](Self::put) does, and says of each whether it is durable, where that can be told apart: an
    /// inner error is of its letter alone. Here one is of all.
    ///
    /// # Errors
    ///
    /// When that is not known of any of them; write all of them again.
    fn put_each(
        &self,
        letters: Vec<DeadLetter>,
    ) -> impl Future<Output = Result<Vec<Result<Receipt, StoreError>>, StoreError>> + Send {
        async { Ok(self.put(letters).await?.into_iter().map(Ok).collect()) }
    }

    /// Returns the number of calls that may write at the same time. Defaults to 2, which is right where letters that are
    /// written together cost less: one call gathers them while the other is under way. More where each is sent by itself,
    /// as to a broker, so that none waits for the answer to another.
    fn writers(&self) -> usize {
        2
    }
}

/// Lists and reads letters, of a store or of the dead letters at a broker. Changes nothing.
pub trait Letters: fmt::Debug + Send + Sync + 'static {
    /// The whole letter, payload and history included; `None` when there is none.
    fn get(
        &self,
        id: LetterId,
    ) -> impl Future<Output = Result<Option<DeadLetter>, StoreError>> + Send;

    /// Returns those of these letters that exist, whole, in the order of the request. All of them are in memory at
    /// once, and cost about as much as one page of a list and their payloads.
    fn get_all(
        &self,
        ids: Vec<LetterId>,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send;

    /// The ids that begin with these hexadecimal digits (upper or lower case), at most `limit` of them, in order. Text
    /// that is not hexadecimal begins no id.
    fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<LetterId>, StoreError>> + Send;

    /// Returns a page of the letters that match, without payloads. The cost does not depend on how deep the page lies.
    /// The page has no successor exactly when nothing more matches.
    ///
    /// A walk follows the cursors until no page is left. A letter that matches through the whole walk is in it at least once, in
    /// either order, even if it moves: a retry record that dies is as old as its death, so that it moves to the newest letters.
    /// A walk from the oldest has them before it. A walk from the newest ends with what was stored or has moved since it
    /// began, oldest first. A letter that moves behind one page and before another is in both; nothing else is listed twice.
    ///
    /// Places are told apart by the store's time. A death that is written in the same instant as the newest letter there
    /// is, or by a transaction that began before that letter was stored and is not yet seen, can be missed.
    fn list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Returns the number of letters that match. Never capped.
    fn count(&self, filter: Filter) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// The groups of errors among the letters that match, one per fingerprint and consumer, largest first (then by
    /// fingerprint, then by consumer), at most `limit`.
    fn groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Group>, StoreError>> + Send;

    /// Counts by status, subject, reason, cause, class and consumer of the letters that match.
    fn stats(&self, filter: Filter) -> impl Future<Output = Result<Stats, StoreError>> + Send;

    /// Counts the letters that match hour by hour, by when they were stored, and by when those that are resolved came to be so.
    /// `since` begins the first of so many hours, of which at most [`Hours::MOST`] are counted.
    ///
    /// A letter that was resolved and is deleted, or has come back, counts as resolved no more. By default letters are listed
    /// for it; a store that can count answers sooner.
    fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> impl Future<Output = Result<Hours, StoreError>> + Send {
        hours::walk(self, filter, since, hours)
    }
}

/// Hands letters out, one owner at a time.
///
/// A claim is a lease with a fencing token. While it lasts nobody else is given the letter. When it ends unfinished the
/// letter can be claimed again, which counts one crash; the former owner's token is worthless from then on.
pub trait Claims: fmt::Debug + Send + Sync + 'static {
    /// Claims up to `request.limit` letters that are due, oldest due first, and makes them `replaying`.
    ///
    /// Letters whose lease ended are claimed again; the filter sees them as `replaying`. Letters due at the same time
    /// come oldest first. The store's time counts, not the caller's.
    ///
    /// Room that due letters leave is filled by running operations, as far as their rate and canary allow, with
    /// letters that match the filter, in the operation's order. Such a letter is due now, and counted as sent back
    /// (`retry_count` and `replays`); one that has reached the operation's cap is quarantined with the reason
    /// `max_replays` instead (G7) and uses up none of the rate. Nothing is released before somebody is there to take
    /// it, so that pausing and cancelling stop at once.
    ///
    /// Claiming sets `last_retry_at` and raises no count, but for the crash that a lease that ended unfinished is.
    fn claim(
        &self,
        request: ClaimRequest,
    ) -> impl Future<Output = Result<Vec<Claim>, StoreError>> + Send;

    /// Extends leases to `lease` from now. The answer says for each token whether it was still valid; it is, also after
    /// its lease ended, until somebody claims the letter again.
    fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: std::time::Duration,
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Ends claims, each conditional on its token, and records the outcome on the letter and its operation in one
    /// step. A token is good, also after its lease ended, until somebody claims the letter again.
    fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> impl Future<Output = Result<Vec<Finished>, StoreError>> + Send;

    /// When the next letter of these consumers (of any, when none is named) can be claimed: the earliest due time or
    /// end of a lease; now or earlier when an operation can release one, later when its rate says so. `None` when there
    /// is nothing to wait for.
    fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;

    /// Waits until letters of these consumers (of any, when none is named) may have become due through another process,
    /// or an operation may have begun to release them. Says how far it has heard: `heard` is what the last call said, 0
    /// at first, and what happened since then ends the next call at once. So nothing is missed by who asks
    /// [`next_due`](Self::next_due) in between.
    ///
    /// It may end for nothing. It may also not end where something became due: while its connection is broken, or where
    /// a store cannot know, as here, where it never ends. So ask for letters now and then all the same.
    ///
    /// # Errors
    ///
    /// None is needed for what is not heard; a store that is reached through another may have some.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; the next call with the same `heard` waits for the same.
    fn due_elsewhere(
        &self,
        consumers: Vec<String>,
        heard: u64,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (consumers, heard);
        std::future::pending()
    }

    /// Text that two handles have in common if what one writes is read through the other, as far as this process can
    /// tell: clones, and handles that were opened for one file or one table. By it two handlers are told apart that would
    /// share letters from two of one name that share nothing. Defaults to `None`, for a store that cannot tell.
    fn store_identity(&self) -> Option<String> {
        None
    }

    /// Runs the automatic schedule if it is time to (once per interval and consumer, whoever asks first; at once, when
    /// it has never run): makes the oldest [eligible](Schedule::takes) letters due and raises their `retry_count`.
    /// Returns how many it made due and how long it will be until it is time again, by the store's clock; a schedule that
    /// is not enabled never runs ([`Duration::MAX`]).
    fn run_schedule(
        &self,
        run: ScheduleRun,
    ) -> impl Future<Output = Result<(u64, Duration), StoreError>> + Send;
}

/// Sends many letters back, as a durable object that can be watched, paused and cancelled.
pub trait Operations: fmt::Debug + Send + Sync + 'static {
    /// Returns what [`Operations::start`] would do, without doing it.
    ///
    /// # Errors
    ///
    /// `Refused` for a target that the store cannot serve.
    fn plan(&self, spec: OperationSpec) -> impl Future<Output = Result<Plan, StoreError>> + Send;

    /// Freezes the set of letters and starts sending them back. Letters that arrive later are not part of it.
    ///
    /// Frozen are the letters that match, are pending and belong to no other operation, so that two operations never
    /// send the same letter (G6). One that is due by the schedule waits for the operation from now on. An operation
    /// without letters is complete at once.
    ///
    /// Many letters are frozen in several steps. Meanwhile the operation is [preparing](OperationState::Preparing), and sends
    /// nothing. If the process dies it stays so, with the letters that were frozen until then, until it is resumed or
    /// cancelled.
    ///
    /// A letter leaves the operation with its outcome: it succeeded, died again, or was skipped because it was marked,
    /// merged or deleted, or died anew before its turn.
    ///
    /// # Errors
    ///
    /// `Refused` for a target that the store cannot serve.
    fn start(
        &self,
        spec: OperationSpec,
        by: Actor,
    ) -> impl Future<Output = Result<Operation, StoreError>> + Send;

    /// Returns an operation; `None` if it does not exist.
    fn operation(
        &self,
        id: crate::OperationId,
    ) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// The latest operations, the one started last first, at most `limit`.
    fn operations(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Operation>, StoreError>> + Send;

    /// The outcome of each letter of an operation, in the frozen order, after `after` items; a `limit` of 0 is read as 1.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation.
    fn items(
        &self,
        id: crate::OperationId,
        after: u64,
        limit: u32,
    ) -> impl Future<Output = Result<ItemPage, StoreError>> + Send;

    /// Pauses, resumes or cancels. What was not released stays untouched; what runs goes on to its end, and so does
    /// what waits for a retry. Cancelling also takes back letters that were released and that nobody has claimed, or whose
    /// lease has ended; a lease that ends later makes its letter pending, and nobody is given it. Asking for the state it
    /// has changes nothing, but that a cancel which was cut off goes on.
    ///
    /// The state is written first: from then on no letter is released, and the others of the operation are taken back in
    /// bounded batches, so that claims go on meanwhile.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation; `Conflict` when it has ended (but cancelling twice is fine).
    fn control(
        &self,
        id: crate::OperationId,
        control: Control,
        by: Actor,
    ) -> impl Future<Output = Result<Operation, StoreError>> + Send;

    /// Sets how fast an operation sends from now on; `None` for no limit. Whoever sends its letters keeps to it from the next
    /// letters that it takes. The same rate again changes nothing, and gets no entry in the audit.
    ///
    /// The rate is written in one step, together with the time of the next release.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation; `Conflict` when it has ended.
    fn set_pace(
        &self,
        id: crate::OperationId,
        pace: Option<Pace>,
        by: Actor,
    ) -> impl Future<Output = Result<Operation, StoreError>> + Send;
}

/// Calls for operators and maintenance jobs. Each action of an operator has an entry in the [audit](Self::audit).
pub trait Maintenance: fmt::Debug + Send + Sync + 'static {
    /// Marks the selected letters, each in one step, in bounded batches that are one entry in the audit. Letters that
    /// somebody holds a live claim on are skipped and counted; a claim whose lease has ended is void. Whatever was arranged
    /// for a letter is cancelled, and its operation skips it. Letters that arrive meanwhile are left alone.
    fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> impl Future<Output = Result<Marked, StoreError>> + Send;

    /// Moves the selected letters to the archive, in bounded batches: each letter leaves the store in the step that writes
    /// its copy. Letters under a live claim are skipped and counted. The same death put again later is a new letter.
    fn delete(
        &self,
        selection: Selection,
        by: Actor,
    ) -> impl Future<Output = Result<Marked, StoreError>> + Send;

    /// Like [`delete`](Self::delete), but keeps no copy. Copies that were archived before stay.
    fn delete_for_good(
        &self,
        selection: Selection,
        by: Actor,
    ) -> impl Future<Output = Result<Marked, StoreError>> + Send;

    /// Returns letters of the archive, the one deleted last first. A letter that was deleted several times is there as often.
    fn archived(
        &self,
        request: ArchiveRequest,
    ) -> impl Future<Output = Result<ArchivePage, StoreError>> + Send;

    /// Restores deleted letters from the archive, the one deleted last first, in bounded batches: each copy leaves the archive
    /// in the step that writes its letter. Letters that were deleted after the call began are left alone.
    ///
    /// A letter is as it was before it was deleted, but that nobody holds it: a run that was going on is forgotten, and so is
    /// its operation. Its last change is now. A letter whose id is there again, or whose original message another letter has
    /// where the store deduplicates, stays in the archive and is counted as skipped.
    ///
    /// # Errors
    ///
    /// `Corrupt` when a copy cannot be read; what was restored before stays restored.
    fn undelete(
        &self,
        filter: ArchiveFilter,
        by: Actor,
    ) -> impl Future<Output = Result<Marked, StoreError>> + Send;

    /// Deletes what is old, in bounded batches: resolved letters only, unless told otherwise, and never those under a
    /// live claim. They are not moved to the archive. Then empties the archive of what was deleted
    /// [long enough ago](Cleanup::archived_for), by whatever filter the letters were selected.
    fn cleanup(
        &self,
        cleanup: Cleanup,
        by: Actor,
    ) -> impl Future<Output = Result<Cleaned, StoreError>> + Send;

    /// Changes payload or headers of one letter, which stays the letter of the same death; see [`Edit`] for what that
    /// means to deaths that arrive later. Returns the letter as it is then. A replay sends what was edited. A claim
    /// whose lease has ended is void, and the letter pending and due.
    ///
    /// An edit that finds nothing to change changes nothing, not even a time. What changed is kept in the audit, of
    /// large payloads the beginning.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such letter; `Conflict` when somebody holds a live claim on it, when it is a retry
    /// record, or when its bytes are not those that the edit expects; `Refused` when the payload was valid JSON and
    /// would not be any more.
    fn edit(
        &self,
        id: LetterId,
        edit: Edit,
        by: Actor,
    ) -> impl Future<Output = Result<DeadLetter, StoreError>> + Send;

    /// Writes letters that were read from a store, with their [state](rules::restored), and returns once all of them
    /// are durable; receipts come in the order of the letters.
    ///
    /// A letter whose id is there follows the rules of [`Sink::put`] (one that is `retrying`, those of retry records):
    /// one that is known changes nothing, so that restoring may be repeated. One of a later death that is resolved stays
    /// so. Claims and operations are not restored. Whoever waits for what is due now is woken, as far as the store can.
    /// Many letters may be restored in several steps, each of them with an entry in the audit.
    ///
    /// # Errors
    ///
    /// When the letters are not known to be durable. Restore them again.
    fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> impl Future<Output = Result<Vec<Receipt>, StoreError>> + Send;

    /// Returns actions of operators, newest first. Every call that was carried out has an entry, also if it found nothing to
    /// change; steering an operation to the state it already has is none.
    ///
    /// The entries are looked through from the newest on, until enough are found; the last one's number is where the
    /// [next page](AuditRequest::before) begins.
    fn audit(
        &self,
        request: AuditRequest,
    ) -> impl Future<Output = Result<Vec<AuditEntry>, StoreError>> + Send;

    /// Returns the records of these groups of errors, in this order; an empty record for a group of which nothing was ever
    /// noted.
    fn group_records(
        &self,
        groups: Vec<GroupKey>,
    ) -> impl Future<Output = Result<Vec<GroupRecord>, StoreError>> + Send;

    /// Changes the record of a group of errors, and returns it. Its letters stay as they are. A group needs no letters. The
    /// audit has it, unless it is a step of an alert alone.
    ///
    /// # Errors
    ///
    /// `Refused` when a text is too long.
    fn update_group(
        &self,
        group: GroupKey,
        update: GroupUpdate,
        by: Actor,
    ) -> impl Future<Output = Result<GroupRecord, StoreError>> + Send;

    /// Records that a consumer is there. Called every [`Presence::INTERVAL`] by consumers that have this store.
    ///
    /// A process that says nothing for [`Presence::SILENCE`] counts as gone, and is forgotten after [`Presence::KEPT`].
    fn heartbeat(
        &self,
        heartbeat: Heartbeat,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records that a consumer has stopped on purpose: it is forgotten at once.
    fn sign_off(&self, heartbeat: Heartbeat)
    -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the consumers that were heard of, in the order of their names, and the time by the store's clock.
    fn consumers(
        &self,
    ) -> impl Future<Output = Result<(Vec<Presence>, Timestamp), StoreError>> + Send;

    /// Appends to the processing audit: one row per event that was handled, failed or dead-lettered.
    fn record_processed(
        &self,
        events: Vec<ProcessedEvent>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The latest rows of the processing audit, newest first, at most `limit`.
    fn processed(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<ProcessedEvent>, StoreError>> + Send;

    /// Collapses letters of the same [original message](rules::DedupKey) into one, and keeps it so from now on. Keeps
    /// the newest, sums the counts, keeps the earliest first sight and a quarantine. Letters that are `retrying` or
    /// under a live claim are left alone. Returns how many were removed.
    ///
    /// # Errors
    ///
    /// `Refused` when more than half of all letters would go and `force` is not set; nothing has changed then.
    fn deduplicate(&self, force: bool) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Looks for what is wrong with a deployment: letters that nobody takes, operations that do not move, letters that
    /// grow old, clocks that differ, and what is wrong with the store itself. Empty when all is well. Changes nothing,
    /// and reads no letters unless [`CheckLimits::is_deep`] says so.
    ///
    /// Stores gather [`Vitals`] and let them say what is wrong, so that all of them judge alike.
    fn check(
        &self,
        limits: CheckLimits,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;

    /// Returns the number of letters that wait to be claimed, by consumer in the order of their names, and the number
    /// that have waited for at least `overdue`. At most [`Due::MOST`] letters are counted, those that have waited
    /// longest, so that the answer is as quick however many letters there are.
    fn due(&self, overdue: Duration) -> impl Future<Output = Result<Vec<Due>, StoreError>> + Send;
}

/// All the powers of a store in one bound. Implemented for everything that has them.
pub trait Store:
    Sink + Letters + Claims + Operations + Dispatch + Maintenance + RetryQueue + CrashMarks
{
}

impl<S: Sink + Letters + Claims + Operations + Dispatch + Maintenance + RetryQueue + CrashMarks>
    Store for S
{
}
