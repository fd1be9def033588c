use std::collections::HashSet;

use super::{
    Actor, BoxStore, Cleanup, Control, Edit, Group, Health, HealthThresholds, ItemPage,
    Letters as _, Maintenance as _, Mark, Marked, Operation, OperationSpec, Operations as _, Plan,
    Receipt, Selection, Sink as _, Stats, Store,
};
use crate::clock::{SharedClock, SystemClock};
use crate::outbox::{Dispatcher, Outboxes};
use crate::{
    DeadLetter, Filter, LetterId, LetterSummary, OperationId, Order, Page, PageRequest, StoreError,
    StoreErrorKind,
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

    /// Counts over the letters that match.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn stats(&self, filter: Filter) -> Result<Stats, StoreError> {
        self.store.stats(filter).await
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

    /// Deletes letters.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn delete(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        self.store.delete(selection, by).await
    }

    /// Deletes what is old; resolved letters only, unless told otherwise.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> Result<u64, StoreError> {
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
