use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    PageRequest, RetryQueue, Store, StoreError, StoreErrorKind, Timestamp,
};

/// The promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every n-th letter is confirmed and not written.
    LosesEveryNth(u64),
    /// Deaths of a known letter are taken for the one that is known.
    HidesNewDeaths,
    /// Any former owner of a claim may end the claim of another.
    ForgetsFences,
    /// A claimed letter is handed to the next claimer too.
    HandsOutTwice,
    /// Letters with a NUL in payload or error are refused.
    RefusesNul,
    /// A page begins after the time, not after the letter, that the one before ended with.
    PagesByTime,
    /// No count exceeds this.
    CapsCounts(u64),
    /// A cancelled operation says so and goes on.
    IgnoresCancel,
    /// Success is confirmed and not recorded.
    ForgetsSuccess,
    /// Retry records are confirmed and not written.
    LosesRecords,
    /// Deleted letters are gone.
    KeepsNoArchive,
    /// Letters that are there are overwritten by what is restored from the archive.
    RestoresOver,
    /// A cleanup leaves the archive as it is.
    KeepsTheArchive,
}

/// A store that breaks one promise; see [`Fault`]. Clones share what is remembered of earlier calls.
#[derive(Clone, Debug)]
pub struct FaultyStore<S> {
    inner: S,
    fault: Fault,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Debug, Default)]
struct Memory {
    letters: u64,
    tokens: HashMap<LetterId, ClaimToken>,
    claims: Vec<Claim>,
}

impl<S> FaultyStore<S> {
    /// Breaks one promise of `inner`.
    #[must_use]
    pub fn new(inner: S, fault: Fault) -> Self {
        Self { inner, fault, memory: Arc::default() }
    }

    /// The store underneath.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loses(&self) -> bool {
        let Fault::LosesEveryNth(n) = self.fault else { return false };
        let mut memory = self.memory();
        memory.letters += 1;
        n != 0 && memory.letters.is_multiple_of(n)
    }

    /// The token that was given out last for the letter, whoever asks.
    fn latest(&self, token: ClaimToken) -> ClaimToken {
        if self.fault != Fault::ForgetsFences {
            return token;
        }
        // The newest token takes the place of the given one, so that a former owner acts as the owner.
        self.memory().tokens.get(&token.letter).copied().unwrap_or(token)
    }
}

fn has_nul(letter: &DeadLetter) -> bool {
    letter.message.payload().is_some_and(|payload| payload.contains(&0))
        || letter.error().contains('\0')
}

impl<S: Store> Sink for FaultyStore<S> {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let mut receipts = Vec::new();
        // Letters go in one by one, so that a fault concerns single letters of a batch.
        for letter in letters {
            if self.fault == Fault::RefusesNul && has_nul(&letter) {
                return Err(StoreError::new(StoreErrorKind::Refused, "write the letter"));
            }
            let hidden =
                self.fault == Fault::HidesNewDeaths && self.inner.get(letter.id).await?.is_some();
            if hidden {
                receipts.push(Receipt::Unchanged);
            } else if self.loses() {
                // The receipt is that of a written letter: only reading the store shows the loss.
                receipts.push(Receipt::Stored);
            } else {
                receipts.extend(self.inner.put(vec![letter]).await?);
            }
        }
        Ok(receipts)
    }
}

impl<S: Store> RetryQueue for FaultyStore<S> {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        if self.fault == Fault::LosesRecords {
            return Ok(());
        }
        self.inner.enqueue(delayed_retry).await
    }
}

impl<S: Store> Letters for FaultyStore<S> {
    async fn get(&self, id: LetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.inner.get(id).await
    }

    async fn get_all(&self, ids: Vec<LetterId>) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.get_all(ids).await
    }

    async fn with_prefix(&self, digits: String, limit: u32) -> Result<Vec<LetterId>, StoreError> {
        self.inner.with_prefix(digits, limit).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        let mut found = self.inner.list(filter, page).await?;
        // Letters with the time of the cursor are dropped, as by a cursor that has no id.
        if let Some(after) = page.after.filter(|_| self.fault == Fault::PagesByTime) {
            found.letters.retain(|letter| letter.state.created_at != after.created_at);
        }
        Ok(found)
    }

    async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        let count = self.inner.count(filter).await?;
        Ok(if let Fault::CapsCounts(cap) = self.fault { count.min(cap) } else { count })
    }

    async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        self.inner.groups(filter, limit).await
    }

    async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.inner.stats(filter).await
    }
}

impl<S: Store> Claims for FaultyStore<S> {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let mut claims = self.inner.claim(request).await?;
        let mut memory = self.memory();
        for claim in &claims {
            memory.tokens.insert(claim.token.letter, claim.token);
        }
        if self.fault == Fault::HandsOutTwice {
            // The claims of the call before go out once more, with tokens that may still be good.
            let again = std::mem::replace(&mut memory.claims, claims.clone());
            claims.extend(again);
        }
        Ok(claims)
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let tokens = tokens.into_iter().map(|token| self.latest(token)).collect();
        self.inner.extend(tokens, lease).await
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> Result<Vec<Finished>, StoreError> {
        let mut finished = Vec::new();
        for (token, finish) in finishes {
            // The claim stays open underneath, so the letter runs again when its lease has ended.
            if self.fault == Fault::ForgetsSuccess && matches!(finish, Finish::Resolved(_)) {
                finished.push(Finished::Applied);
            } else {
                finished.extend(self.inner.finish(vec![(self.latest(token), finish)]).await?);
            }
        }
        Ok(finished)
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        self.inner.next_due(consumers).await
    }

    async fn due_elsewhere(&self, consumers: Vec<String>, heard: u64) -> Result<u64, StoreError> {
        self.inner.due_elsewhere(consumers, heard).await
    }

    async fn run_schedule(&self, run: ScheduleRun) -> Result<(u64, Duration), StoreError> {
        self.inner.run_schedule(run).await
    }
}

impl<S: Store> Operations for FaultyStore<S> {
    async fn plan(&self, spec: OperationSpec) -> Result<Plan, StoreError> {
        self.inner.plan(spec).await
    }

    async fn start(&self, spec: OperationSpec, by: Actor) -> Result<Operation, StoreError> {
        self.inner.start(spec, by).await
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        self.inner.operation(id).await
    }

    async fn operations(&self, limit: u32) -> Result<Vec<Operation>, StoreError> {
        self.inner.operations(limit).await
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> Result<ItemPage, StoreError> {
        self.inner.items(id, after, limit).await
    }

    async fn control(
        &self,
        id: OperationId,
        control: Control,
        by: Actor,
    ) -> Result<Operation, StoreError> {
        if self.fault == Fault::IgnoresCancel
            && control == Control::Cancel
            && let Some(mut operation) = self.inner.operation(id).await?
        {
            // The answer alone is cancelled: the store underneath goes on.
            operation.state = dlq_core::store::OperationState::Cancelled;
            return Ok(operation);
        }
        self.inner.control(id, control, by).await
    }

    async fn set_pace(
        &self,
        id: OperationId,
        pace: Option<Pace>,
        by: Actor,
    ) -> Result<Operation, StoreError> {
        self.inner.set_pace(id, pace, by).await
    }
}

impl<S: Store> Dispatch for FaultyStore<S> {
    async fn take(&self, request: TakeRequest) -> Result<Takes, StoreError> {
        self.inner.take(request).await
    }

    async fn record(
        &self,
        dispatched: Vec<(ClaimToken, Dispatched)>,
    ) -> Result<Vec<Finished>, StoreError> {
        self.inner.record(dispatched).await
    }

    async fn succeeded(&self, deaths: Vec<Death>) -> Result<u64, StoreError> {
        self.inner.succeeded(deaths).await
    }
}

impl<S: Store> Maintenance for FaultyStore<S> {
    async fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> Result<Marked, StoreError> {
        self.inner.mark(selection, mark, by).await
    }

    async fn delete(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        match self.fault {
            Fault::KeepsNoArchive => self.inner.delete_for_good(selection, by).await,
            _ => self.inner.delete(selection, by).await,
        }
    }

    async fn delete_for_good(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.inner.delete_for_good(selection, by).await
    }

    async fn archived(&self, request: ArchiveRequest) -> Result<ArchivePage, StoreError> {
        self.inner.archived(request).await
    }

    async fn undelete(&self, filter: ArchiveFilter, by: Actor) -> Result<Marked, StoreError> {
        if self.fault == Fault::RestoresOver
            && let Ok(there) = Selection::matching(filter.letters.clone())
        {
            // What is there has to go first, or what is restored would be skipped.
            self.inner.delete_for_good(there, by.clone()).await?;
        }
        self.inner.undelete(filter, by).await
    }

    async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> Result<Cleaned, StoreError> {
        let cleanup = match self.fault {
            Fault::KeepsTheArchive => cleanup.archived_for(Duration::MAX),
            _ => cleanup,
        };
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

impl<S: CrashMarks> CrashMarks for FaultyStore<S> {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        self.inner.begin(letter).await
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        self.inner.end(letter, left).await
    }
}
