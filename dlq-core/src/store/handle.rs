use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::erased::ReadOnly;
use super::{
    Actor, ArchiveFilter, ArchivePage, ArchiveRequest, BoxStore, Cleaned, Cleanup, Control, Edit,
    Group, GroupKey, GroupRecord, GroupUpdate, Health, HealthThresholds, Hours, ItemPage, Letters,
    Maintenance as _, Mark, Marked, Operation, OperationSpec, OperationState, Operations as _,
    Pace, Plan, Presence, Receipt, Selection, Sink as _, Stats, Store, Triage, TriagedGroup,
};
use crate::clock::{SharedClock, SystemClock};
use crate::outbox::{Dispatcher, Outboxes};
use crate::search::{Search, SearchPage, SearchRequest};
use crate::{
    DeadLetter, Filter, LetterId, LetterSummary, OperationId, Order, Page, PageRequest, Status,
    StoreError, StoreErrorKind, Timestamp,
};

/// The dead letters of a deployment: the one handle through which programs use a store. Cheap to clone.
///
/// ```
/// use dlq_core::{DeadLetters, Filter, PageRequest, Store, StoreError};
///
/// async fn look(store: impl Store) -> Result<(), StoreError> {
///     let letters = DeadLetters::new(store);
///     println!("{} letters, the latest of which are:", letters.count(Filter::new()).await?);
///     for letter in letters.list(Filter::new(), PageRequest::new()).await?.letters {
///         println!("{} {}", letter.id, letter.error);
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetters {
    store: BoxStore,
    clock: SharedClock,
}

impl DeadLetters {
    /// The handle of `store`.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        Self { store: BoxStore::new(store), clock: SystemClock::shared() }
    }

    /// The handle of letters that can only be looked at, such as those that were read from a broker's log. Every call that
    /// would change something is `Refused`, and so is one that asks for what only a store knows: operations, the audit and
    /// consumers. Of groups nothing was ever decided.
    #[must_use]
    pub fn read_only(letters: impl Letters) -> Self {
        Self::new(ReadOnly::new(letters))
    }

    /// Sets the clock by which the age of letters is judged. Defaults to the machine's.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// The store underneath.
    #[must_use]
    pub fn store(&self) -> &BoxStore {
        &self.store
    }

    /// Writes letters durably; see [`Sink::put`](super::Sink::put).
    ///
    /// # Errors
    ///
    /// When they are not known to be durable.
    pub async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.store.put(letters).await
    }

    /// The whole letter.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is none; otherwise when the store does not answer.
    pub async fn get(&self, id: LetterId) -> Result<DeadLetter, StoreError> {
        self.store.get(id).await?.ok_or_else(|| {
            StoreError::new(StoreErrorKind::NotFound, "get the letter")
                .with_detail(format!("no letter has the id {id}; list them to see which there are"))
        })
    }

    /// All letters of the message to which its producer gave this id, newest first, one per consumer and subject.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn find(
        &self,
        message_id: impl Into<String>,
    ) -> Result<Vec<LetterSummary>, StoreError> {
        let filter = Filter::new().with_message_id(message_id.into());
        let mut request = PageRequest::new().limit(1000).order(Order::OldestFirst);
        let mut found = Vec::new();
        loop {
            let page = self.store.list(filter.clone(), request).await?;
            found.extend(page.letters);
            if page.next.is_none() {
                break;
            }
            request = request.after(page.next);
        }
        // A record that died between two pages is at the end of the line now: found twice, and not skipped.
        found.reverse();
        let mut seen = HashSet::new();
        found.retain(|letter| seen.insert(letter.id));
        Ok(found)
    }

    /// Returns a page of the letters that match.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.store.list(filter, page).await
    }

    /// Searches a part of the letters that match `filter` for those whose message meets the conditions of `search`. Each is read
    /// whole, so a call reads no more letters than the request says. A search that goes on has a `next`, also where nothing
    /// was found yet.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn search(
        &self,
        search: &Search,
        filter: Filter,
        request: SearchRequest,
    ) -> Result<SearchPage, StoreError> {
        search.page(&self.store, filter, request).await
    }

    /// Returns the number of letters that match.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn count(&self, filter: Filter) -> Result<u64, StoreError> {
        self.store.count(filter).await
    }

    /// The groups of errors among the letters that match, largest first.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn groups(&self, filter: Filter, limit: u32) -> Result<Vec<Group>, StoreError> {
        self.store.groups(filter, limit).await
    }

    /// Returns the groups of errors among the letters that match, with what is known of them: new and regressed ones first,
    /// then growing ones, then by number of letters. At most `limit`, of the 1,000 largest.
    ///
    /// Snoozed and resolved groups are among them, at the end; see [`GroupState::is_open`](super::GroupState::is_open).
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn triaged_groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> Result<Vec<TriagedGroup>, StoreError> {
        // The candidates are more than the groups that are returned, since an urgent group may have few letters.
        const HOUR: Duration = Duration::from_secs(3600);
        /// Number of groups among which urgent ones are looked for.
        const CANDIDATES: u32 = 1_000;
        let groups = self.store.groups(filter.clone(), limit.max(CANDIDATES)).await?;
        let keys: Vec<_> = groups.iter().map(Group::key).collect();
        let records = self.store.group_records(keys.clone()).await?;
        let now = self.clock.now();
        // Two lists of groups count for all groups at once. One call for each group would be up to two thousand.
        let last_hour = self.counts_since(&filter, &groups, now.before(HOUR)).await?;
        let last_day = self.counts_since(&filter, &groups, now.before(HOUR * 24)).await?;
        // A filter that only names groups leaves none of their letters out.
        let mut rest = filter;
        (rest.consumers, rest.fingerprints) = (Vec::new(), Vec::new());
        let is_whole = rest.is_empty();
        let mut triaged = Vec::with_capacity(groups.len());
        for ((group, key), record) in groups.into_iter().zip(keys).zip(records) {
            let has_returned = match (record.triage, record.decided_at) {
                (Triage::Resolved, Some(at)) => {
                    // A death at the very moment of the decision was known to whoever made it.
                    let since = key.filter().died_since(at.after(Duration::from_nanos(1)));
                    self.store.count(since).await? > 0
                }
                _ => false,
            };
            let state = record.state(now, has_returned);
            let count = |of: &HashMap<GroupKey, u64>| of.get(&key).copied().unwrap_or_default();
            let (last_hour, last_day) = (count(&last_hour), count(&last_day));
            triaged.push(TriagedGroup::new(group, record, state, last_hour, last_day));
        }
        triaged.sort_by_cached_key(TriagedGroup::urgency);
        triaged.truncate(limit as usize);
        for TriagedGroup { group, record, .. } in &mut triaged {
            // Only the groups that are returned are looked up, since each of them costs a call.
            if !is_whole && let Some(first) = self.first_stored(&group.key()).await? {
                group.first_seen = first;
            }
            group.first_seen = record.first_seen.unwrap_or(group.first_seen).min(group.first_seen);
        }
        Ok(triaged)
    }

    /// Returns how many letters of each of these groups, which are those that match, were stored since then.
    async fn counts_since(
        &self,
        filter: &Filter,
        groups: &[Group],
        since: Timestamp,
    ) -> Result<HashMap<GroupKey, u64>, StoreError> {
        let count = |group: &Group| (group.key(), group.count);
        // Letters from before are left out already, and to count them once more may take seconds.
        if filter.since.is_some_and(|own| own >= since) {
            return Ok(groups.iter().map(count).collect());
        }
        // The most that every store can count to.
        let groups =
            self.store.groups(filter.clone().since(since), i32::MAX.unsigned_abs()).await?;
        Ok(groups.iter().map(count).collect())
    }

    /// Returns when the first of a group's letters was stored.
    async fn first_stored(&self, key: &GroupKey) -> Result<Option<Timestamp>, StoreError> {
        let first = PageRequest::new().limit(1).order(Order::OldestFirst);
        let page = self.store.list(key.filter(), first).await?;
        Ok(page.letters.first().map(|letter| letter.state.created_at))
    }

    /// Returns the record of a group of errors: what was decided and noted of it.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn group_record(&self, key: GroupKey) -> Result<GroupRecord, StoreError> {
        Ok(self.store.group_records(vec![key]).await?.into_iter().next().unwrap_or_default())
    }

    /// Changes the record of a group of errors, and returns it; its letters stay as they are. See
    /// [`Maintenance::update_group`](super::Maintenance::update_group).
    ///
    /// # Errors
    ///
    /// `Refused` when a text is too long; otherwise when the store does not answer.
    pub async fn update_group(
        &self,
        key: GroupKey,
        update: GroupUpdate,
        by: Actor,
    ) -> Result<GroupRecord, StoreError> {
        self.store.update_group(key, update, by).await
    }

    /// Returns the consumers that were heard of, in the order of their names, and the time by the store's clock; see
    /// [`Presence::is_alive`].
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn consumers(&self) -> Result<(Vec<Presence>, Timestamp), StoreError> {
        self.store.consumers().await
    }

    /// Returns the consumers that letters of this replay would wait for: those of which no process was heard of lately, in
    /// the order of their names. None if it sends letters to a broker.
    ///
    /// A consumer of an earlier version is never heard of, so this is a reason to look, and none to refuse.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn unattended_by(&self, spec: &OperationSpec) -> Result<Vec<String>, StoreError> {
        let mut filter = spec.filter.clone();
        let has_pending = filter.statuses.is_empty() || filter.statuses.contains(&Status::Pending);
        // A replay sends pending letters only, so other letters of the filter wait for nobody.
        if !spec.target.is_handler() || !has_pending {
            return Ok(Vec::new());
        }
        filter.statuses = vec![Status::Pending];
        self.unattended(filter).await
    }

    /// Returns the consumers that letters of this operation wait for, as [`unattended_by`](Self::unattended_by) does. None if
    /// it sends no letters to handlers now.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn unattended_in(&self, operation: &Operation) -> Result<Vec<String>, StoreError> {
        let is_open = matches!(operation.state, OperationState::Canary | OperationState::Running);
        if !is_open || !operation.spec.target.is_handler() {
            return Ok(Vec::new());
        }
        let mut filter = Filter::new();
        filter.operation = Some(operation.id);
        self.unattended(filter).await
    }

    /// Returns the consumers of the unresolved letters that match, without those that were heard of lately.
    async fn unattended(&self, filter: Filter) -> Result<Vec<String>, StoreError> {
        // Many filters without a time are counted without a look at the letters, and most consumers are there.
        let mut of_any_time = filter.clone();
        (of_any_time.since, of_any_time.until) = (None, None);
        let is_exact = of_any_time == filter;
        let consumers = self.store.stats(of_any_time).await?.by_consumer;
        if consumers.is_empty() {
            return Ok(Vec::new());
        }
        let (present, now) = self.store.consumers().await?;
        let alive = present.iter().filter(|it| it.is_alive(now));
        let alive: HashSet<_> = alive.map(|it| it.heartbeat.consumer.as_str()).collect();
        let mut gone = Vec::new();
        for (name, letters) in consumers {
            if letters == 0 || alive.contains(name.as_str()) {
                continue;
            }
            if !is_exact {
                let mut its = filter.clone();
                its.consumers = vec![name.clone()];
                if self.store.list(its, PageRequest::new().limit(1)).await?.letters.is_empty() {
                    continue;
                }
            }
            gone.push(name);
        }
        Ok(gone)
    }

    /// Counts over the letters that match.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.store.stats(filter).await
    }

    /// Counts the letters that match hour by hour, so many hours until now; see [`Letters::hours`](super::Letters::hours).
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn hours(&self, filter: Filter, hours: u32) -> Result<Hours, StoreError> {
        self.store.hours(filter, Hours::ending_at(self.clock.now(), hours), hours).await
    }

    /// Returns what a replay would do, without doing it.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn plan(&self, spec: OperationSpec) -> Result<Plan, StoreError> {
        self.store.plan(spec).await
    }

    /// Freezes the letters that match and sends them back: to the handlers that failed, which claim them, or to brokers, by a
    /// [`dispatcher`](Self::dispatcher).
    ///
    /// # Errors
    ///
    /// `Refused` for a target that the store cannot serve; otherwise when the store does not answer.
    pub async fn replay(&self, spec: OperationSpec, by: Actor) -> Result<Operation, StoreError> {
        self.store.start(spec, by).await
    }

    /// Returns a dispatcher, which sends the letters of operations to brokers through these outboxes.
    ///
    /// ```
    /// use dlq_core::outbox::Outboxes;
    /// use dlq_core::store::{Actor, Cluster, OperationSpec, Target};
    /// use dlq_core::{DeadLetters, Filter, StoreError};
    ///
    /// # async fn send(letters: DeadLetters, outboxes: Outboxes) -> Result<(), StoreError> {
    /// let spec = OperationSpec::replay(Filter::new().with_message_id("evt_abc".to_owned()))
    ///     .target(Target::Origin, [Cluster::new("nats", "default")]);
    /// let operation = letters.replay(spec, Actor::new("ana")).await?;
    /// let sent = letters.dispatcher(outboxes).run(operation.id, std::future::pending(), |_| {}).await?;
    /// println!("{} letters are on their way", sent.confirmed);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn dispatcher(&self, outboxes: Outboxes) -> Dispatcher {
        Dispatcher::new(self.store.clone(), outboxes)
    }

    /// Returns an operation.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is none; otherwise when the store does not answer.
    pub async fn operation(&self, id: OperationId) -> Result<Operation, StoreError> {
        self.store.operation(id).await?.ok_or_else(|| {
            StoreError::new(StoreErrorKind::NotFound, "get the operation")
                .with_detail(format!("no operation has the id {id}"))
        })
    }

    /// The latest operations, newest first.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn operations(&self, limit: u32) -> Result<Vec<Operation>, StoreError> {
        self.store.operations(limit).await
    }

    /// The outcome of each letter of an operation, after `after` items.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation; otherwise when the store does not answer.
    pub async fn items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        self.store.items(id, after, limit).await
    }

    /// Pauses, resumes or cancels an operation.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation, `Conflict` when it has ended.
    pub async fn control(
        &self,
        id: OperationId,
        control: Control,
        by: Actor,
    ) -> Result<Operation, StoreError> {
        self.store.control(id, control, by).await
    }

    /// Sets how fast an operation sends from now on; `None` for no limit.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such operation, `Conflict` when it has ended.
    pub async fn set_pace(
        &self,
        id: OperationId,
        pace: Option<Pace>,
        by: Actor,
    ) -> Result<Operation, StoreError> {
        self.store.set_pace(id, pace, by).await
    }

    /// Sets letters aside until they are released.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn quarantine(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.store.mark(selection, Mark::Quarantined, by).await
    }

    /// Puts letters back to waiting.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn release(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.store.mark(selection, Mark::Pending, by).await
    }

    /// Declares letters done with.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn resolve(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.store.mark(selection, Mark::Resolved, by).await
    }

    /// Moves letters to the archive, from which [`undelete`](Self::undelete) restores them until a
    /// [`cleanup`](Self::cleanup) empties it.
    ///
    /// ```
    /// use dlq_core::store::{Actor, ArchiveFilter, Selection};
    /// use dlq_core::{DeadLetters, LetterId, StoreError};
    ///
    /// # async fn change_ones_mind(letters: DeadLetters, id: LetterId) -> Result<(), StoreError> {
    /// letters.delete(Selection::id(id), Actor::new("ana")).await?;
    /// let restored = letters.undelete(ArchiveFilter::id(id), Actor::new("ana")).await?;
    /// assert_eq!(restored.changed, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn delete(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.store.delete(selection, by).await
    }

    /// Deletes letters without a copy, such as those with personal data that must be gone.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn delete_for_good(
        &self,
        selection: Selection,
        by: Actor,
    ) -> Result<Marked, StoreError> {
        self.store.delete_for_good(selection, by).await
    }

    /// Returns letters that were deleted and can be restored, the one deleted last first.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn archived(&self, request: ArchiveRequest) -> Result<ArchivePage, StoreError> {
        self.store.archived(request).await
    }

    /// Restores letters that were deleted; see [`Maintenance::undelete`](super::Maintenance::undelete).
    ///
    /// # Errors
    ///
    /// As for [`Maintenance::undelete`](super::Maintenance::undelete).
    pub async fn undelete(&self, filter: ArchiveFilter, by: Actor) -> Result<Marked, StoreError> {
        self.store.undelete(filter, by).await
    }

    /// Deletes what is old for good: resolved letters only, unless told otherwise, and what was deleted a week ago. See
    /// [`Maintenance::cleanup`](super::Maintenance::cleanup).
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> Result<Cleaned, StoreError> {
        self.store.cleanup(cleanup, by).await
    }

    /// Collapses letters of one original message; see [`Maintenance::deduplicate`](super::Maintenance::deduplicate).
    ///
    /// # Errors
    ///
    /// As for [`Maintenance::deduplicate`](super::Maintenance::deduplicate).
    pub async fn deduplicate(&self, force: bool) -> Result<u64, StoreError> {
        self.store.deduplicate(force).await
    }

    /// Changes payload or headers of one letter; see [`Maintenance::edit`](super::Maintenance::edit).
    ///
    /// # Errors
    ///
    /// As for [`Maintenance::edit`](super::Maintenance::edit).
    pub async fn edit(
        &self,
        id: LetterId,
        edit: Edit,
        by: Actor,
    ) -> Result<DeadLetter, StoreError> {
        self.store.edit(id, edit, by).await
    }

    /// Writes letters that were read from a store, with their state; see
    /// [`Maintenance::restore`](super::Maintenance::restore).
    ///
    /// # Errors
    ///
    /// When they are not known to be durable.
    pub async fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> Result<Vec<Receipt>, StoreError> {
        self.store.restore(letters, by).await
    }

    /// Returns the health of the store: unhealthy if it does not answer, degraded if letters pile up or grow old.
    pub async fn health(&self, thresholds: HealthThresholds) -> Health {
        match self.store.stats(Filter::new()).await {
            Ok(stats) => Health::of(&stats, thresholds, self.clock.now()),
            Err(error) => Health::unreachable(&error),
        }
    }
}
