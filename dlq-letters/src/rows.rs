//! [`Rows`]: what a verb decides over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dlq_core::store::rules::DedupKey;
use dlq_core::store::{
    AuditEntry, ItemOutcome, Operation, OperationItem, OperationSpec, OperationState,
};
use dlq_core::{DeadLetter, LetterId, OperationId, StoreError, StoreErrorKind, Timestamp};

use crate::groups::Left;
use crate::{
    Alias, Changed, Depth, DocumentChange, DocumentKey, DocumentKind, DocumentRange, ItemChange,
    LetterChange, Needs, Note, OperationChange, Row, Select, Selected, Stop, Verb,
};

/// Rows that were loaded, and what a verb changes of them.
///
/// A verb reads and changes; a read of something that was not loaded is [`Stop::Missing`], and noted. A backend supplies,
/// calls [`attempt`](Self::attempt), loads what is [`missing`](Self::missing), and writes the changes once there is an
/// answer.
#[derive(Debug)]
pub struct Rows {
    now: Timestamp,
    known: Known,
    pending: Pending,
    missing: Needs,
}

#[derive(Debug, Default)]
struct Known {
    letters: BTreeMap<LetterId, (Option<Row>, Depth)>,
    selects: Vec<(Select, Depth, Vec<Selected>)>,
    items: BTreeMap<(OperationId, u64), Option<ItemOutcome>>,
    operations: BTreeMap<OperationId, Option<Operation>>,
    states: BTreeMap<OperationId, Option<OperationState>>,
    active: Option<Vec<OperationId>>,
    owners: BTreeMap<DedupKey, Option<LetterId>>,
    aliases: BTreeMap<LetterId, Option<Alias>>,
    aliases_of: BTreeMap<LetterId, Vec<(LetterId, Alias)>>,
    dedup: Option<bool>,
    schedules: BTreeMap<String, Option<Timestamp>>,
    documents: BTreeMap<DocumentKey, Option<String>>,
    glimpses: BTreeMap<DocumentKey, Option<String>>,
    listed: BTreeMap<DocumentKind, Vec<(DocumentKey, String)>>,
    ranges: BTreeMap<DocumentRange, Vec<String>>,
    fences: Vec<Range<u64>>,
    operation_number: Option<u64>,
}

#[derive(Debug, Default)]
struct Pending {
    letters: BTreeMap<LetterId, (Option<Row>, Changed)>,
    items: BTreeMap<(OperationId, u64), ItemChange>,
    started: Vec<Operation>,
    operations: BTreeMap<OperationId, OperationChange>,
    owners: BTreeMap<DedupKey, Option<LetterId>>,
    aliases: BTreeMap<LetterId, Alias>,
    schedules: BTreeSet<String>,
    documents: BTreeMap<DocumentKey, Option<String>>,
    fences: u64,
    notes: Vec<Note>,
}

/// Access of a verb: reads and changes.
impl Rows {
    /// The time of the call, by the store's clock.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns a letter's row; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded to this depth.
    pub fn letter(&mut self, id: LetterId, depth: Depth) -> Result<Option<&Row>, Stop> {
        // Changes of this attempt come first, so that the second item of a batch knows of the first.
        if let Some((row, _)) = self.pending.letters.get(&id) {
            let known = self.known.letters.get(&id).map(|(_, depth)| *depth);
            // A row that was written whole is whole, however it was loaded.
            let is_deep = known.is_none_or(|known| known >= depth)
                || self.pending.letters.get(&id).is_some_and(|(_, it)| *it == Changed::All);
            if is_deep || row.is_none() {
                return Ok(self.pending.letters.get(&id).and_then(|(row, _)| row.as_ref()));
            }
        } else if self
            .known
            .letters
            .get(&id)
            .is_some_and(|(row, known)| row.is_none() || *known >= depth)
        {
            return Ok(self.known.letters.get(&id).and_then(|(row, _)| row.as_ref()));
        }
        self.missing.letter(id, depth);
        Err(Stop::Missing)
    }

    /// Returns a copy of a letter's row to be changed, for [`update`](Self::update).
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded to this depth.
    pub fn take(&mut self, id: LetterId, depth: Depth) -> Result<Option<Row>, Stop> {
        Ok(self.letter(id, depth)?.cloned())
    }

    /// Writes a row whose id was looked up and is free.
    pub fn insert(&mut self, row: Row) {
        self.pending.letters.insert(row.letter.id, (Some(row), Changed::All));
    }

    /// Writes a row that was [taken](Self::take).
    pub fn update(&mut self, row: Row, changed: Changed) {
        let before = self.pending.letters.get(&row.letter.id).map(|(_, before)| *before);
        // A backend writes each row once, so the widest of its changes counts.
        let changed = before.map_or(changed, |before| before.max(changed));
        self.pending.letters.insert(row.letter.id, (Some(row), changed));
    }

    /// Deletes a row, its key, and the aliases that point at it.
    pub fn remove(&mut self, row: &Row) {
        if let Some(key) = &row.key {
            // The key is free at once, so that another letter of the same step can take it.
            self.pending.owners.insert(key.clone(), None);
        }
        self.pending.letters.insert(row.letter.id, (None, Changed::All));
    }

    /// Returns the letters or items that `select` selects, without the changes of this call.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if they are not loaded to this depth.
    pub fn select(&mut self, select: &Select, depth: Depth) -> Result<Vec<Selected>, Stop> {
        let known = self.known.selects.iter().find(|(it, deep, _)| it == select && *deep >= depth);
        if let Some((_, _, found)) = known {
            return Ok(found.clone());
        }
        self.missing.select(select.clone(), depth);
        Err(Stop::Missing)
    }

    /// Returns the outcome of an item; `None` if there is no such item.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn item(
        &mut self,
        operation: OperationId,
        index: u64,
    ) -> Result<Option<ItemOutcome>, Stop> {
        match self.pending.items.get(&(operation, index)) {
            Some(ItemChange::Append { item, .. }) => return Ok(Some(item.outcome)),
            Some(ItemChange::Outcome { outcome, .. }) => return Ok(Some(*outcome)),
            None => {}
        }
        if let Some(known) = self.known.items.get(&(operation, index)) {
            return Ok(*known);
        }
        self.missing.items.insert((operation, index));
        Err(Stop::Missing)
    }

    /// Appends an item to an operation, and counts it.
    pub fn append_item(&mut self, operation: OperationId, item: OperationItem, consumer: String) {
        let change = self.pending.operations.entry(operation).or_default();
        change.total += 1;
        change.count(item.outcome, 1);
        let place = (operation, item.index);
        self.pending.items.insert(place, ItemChange::Append { item, consumer });
    }

    /// Sets the outcome of an item, and counts it. An item that does not exist is left alone, and so is one that was sent,
    /// unless it is known what became of it.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if the item is not loaded.
    pub fn set_outcome(
        &mut self,
        operation: OperationId,
        index: u64,
        outcome: ItemOutcome,
        why: Option<&str>,
    ) -> Result<(), Stop> {
        let Some(before) = self.item(operation, index)? else { return Ok(()) };
        let is_evidence = matches!(outcome, ItemOutcome::Succeeded | ItemOutcome::FailedAgain);
        // A message that was sent is on its way whatever becomes of its letter here. Only evidence says how it ended.
        if before == ItemOutcome::Sent && !is_evidence {
            return Ok(());
        }
        let (now, why) = (self.now, why.map(str::to_owned));
        match self.pending.items.get_mut(&(operation, index)) {
            Some(ItemChange::Append { item, .. }) => {
                (item.outcome, item.why, item.at) = (outcome, why, now);
            }
            _ => {
                let change = ItemChange::Outcome { outcome, why, at: now };
                self.pending.items.insert((operation, index), change);
            }
        }
        let change = self.pending.operations.entry(operation).or_default();
        change.count(before, -1);
        change.count(outcome, 1);
        Ok(())
    }

    /// Ends the item that `row` is, if it is one, and takes the letter out of the operation.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if the item is not loaded.
    pub fn end_item(
        &mut self,
        row: &mut Row,
        outcome: ItemOutcome,
        why: Option<&str>,
    ) -> Result<(), Stop> {
        if let Some((operation, index)) = row.item {
            self.set_outcome(operation, index, outcome, why)?;
            row.item = None;
            row.letter.state.operation = None;
        }
        Ok(())
    }

    /// Tells the operation that holds the letter that it died anew, and of what. One that was being sent has been sent then,
    /// and is counted so.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if the item is not loaded.
    pub fn died_anew(&mut self, row: &mut Row, death: &DeadLetter) -> Result<(), Stop> {
        let Some((operation, index)) = row.item else { return Ok(()) };
        let before = self.item(operation, index)?;
        if before == Some(ItemOutcome::Sending) {
            row.count_sent();
        }
        // The operation has not sent a queued letter, so its death is no failure of the operation.
        if before == Some(ItemOutcome::Queued) {
            let why = "died again before it was sent";
            self.end_item(row, ItemOutcome::Skipped, Some(why))
        } else {
            self.end_item(row, ItemOutcome::FailedAgain, Some(&death.error()))
        }
    }

    /// Returns an operation, with the changes of this call; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn operation(&mut self, id: OperationId) -> Result<Option<Operation>, Stop> {
        let started = self.pending.started.iter().find(|operation| operation.id == id);
        let stored = match (started, self.known.operations.get(&id)) {
            (Some(started), _) => Some(started),
            (None, Some(known)) => known.as_ref(),
            (None, None) => {
                self.missing.operations.insert(id);
                return Err(Stop::Missing);
            }
        };
        let Some(mut operation) = stored.cloned() else { return Ok(None) };
        if let Some(change) = self.pending.operations.get(&id) {
            change.apply(&mut operation, self.now);
        }
        Ok(Some(operation))
    }

    /// Returns the state of an operation as it was stored; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn operation_state(&mut self, id: OperationId) -> Result<Option<OperationState>, Stop> {
        if let Some(known) = self.known.operations.get(&id) {
            return Ok(known.as_ref().map(|operation| operation.state));
        }
        if let Some(known) = self.known.states.get(&id) {
            return Ok(*known);
        }
        self.missing.states.insert(id);
        Err(Stop::Missing)
    }

    /// Returns the operations that may release letters, the one started first first, with the changes of this call.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if they are not loaded.
    pub fn active(&mut self) -> Result<Vec<Operation>, Stop> {
        let Some(active) = self.known.active.clone() else {
            self.missing.active = true;
            return Err(Stop::Missing);
        };
        let mut operations = Vec::with_capacity(active.len());
        for id in active {
            operations.extend(self.operation(id)?);
        }
        Ok(operations)
    }

    /// Steers an operation that was read by [`operation`](Self::operation) or [`active`](Self::active).
    pub fn steer(&mut self, id: OperationId, state: OperationState) {
        self.pending.operations.entry(id).or_default().state = Some(state);
    }

    /// Sets the time of the next release of an operation that was read.
    pub fn set_next_release(&mut self, id: OperationId, next: Timestamp) {
        self.pending.operations.entry(id).or_default().next_release = Some(next);
    }

    /// Changes the specification of an operation that was read.
    pub fn respecify(&mut self, id: OperationId, spec: OperationSpec) {
        self.pending.operations.entry(id).or_default().spec = Some(spec);
    }

    /// Starts an operation, whose id was made from [`operation_number`](Self::operation_number). It has no items yet.
    pub fn start(&mut self, operation: Operation) {
        self.pending.operations.entry(operation.id).or_default();
        self.pending.started.push(operation);
    }

    /// Returns the number of operations ever started.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn operation_number(&mut self) -> Result<u64, Stop> {
        self.known.operation_number.ok_or_else(|| {
            self.missing.operation_number = true;
            Stop::Missing
        })
    }

    /// Returns true if the store keeps one letter per original message.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn is_dedup(&mut self) -> Result<bool, Stop> {
        self.known.dedup.ok_or_else(|| {
            self.missing.dedup = true;
            Stop::Missing
        })
    }

    /// Returns the letter that has the key of an original message.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn owner(&mut self, key: &DedupKey) -> Result<Option<LetterId>, Stop> {
        if let Some(owner) = self.pending.owners.get(key).or_else(|| self.known.owners.get(key)) {
            return Ok(*owner);
        }
        self.missing.owners.insert(key.clone());
        Err(Stop::Missing)
    }

    /// Gives `row`, which has just taken over a death, the key of its original message, unless another row has it. Does
    /// nothing where the store does not deduplicate.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if something is not loaded.
    pub fn take_key(&mut self, row: &mut Row) -> Result<(), Stop> {
        if !self.is_dedup()? {
            return Ok(());
        }
        let key = DedupKey::of(&row.letter);
        if row.key == key {
            return Ok(());
        }
        // A key has one row. If another row has it, this one goes without, and new letters of the original are merged into
        // the other one.
        let is_free = match &key {
            Some(key) => self.owner(key)?.is_none(),
            None => false,
        };
        if let Some(former) = row.key.take() {
            self.pending.owners.insert(former, None);
        }
        if let Some(key) = key.filter(|_| is_free) {
            self.pending.owners.insert(key.clone(), Some(row.letter.id));
            row.key = Some(key);
        }
        Ok(())
    }

    /// Returns the letter that a former letter was merged into.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn alias(&mut self, id: LetterId) -> Result<Option<Alias>, Stop> {
        if let Some(alias) = self.pending.aliases.get(&id) {
            return Ok(Some(*alias));
        }
        if let Some(known) = self.known.aliases.get(&id) {
            return Ok(*known);
        }
        self.missing.aliases.insert(id);
        Err(Stop::Missing)
    }

    /// Returns the former letters that were merged into this one.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if they are not loaded.
    pub fn aliases_of(&mut self, id: LetterId) -> Result<Vec<(LetterId, Alias)>, Stop> {
        let Some(stored) = self.known.aliases_of.get(&id) else {
            self.missing.aliases_of.insert(id);
            return Err(Stop::Missing);
        };
        let mut all: BTreeMap<_, _> = stored.iter().copied().collect();
        all.extend(self.pending.aliases.iter().map(|(id, alias)| (*id, *alias)));
        // An alias that this attempt has moved to another letter is stored under this one still, and drops out here.
        all.retain(|_, alias| alias.row == id);
        Ok(all.into_iter().collect())
    }

    /// Lets a former letter point at the one that it was merged into.
    pub fn set_alias(&mut self, id: LetterId, alias: Alias) {
        self.pending.aliases.insert(id, alias);
    }

    /// Returns when the automatic schedule of a consumer ran last.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn last_run(&mut self, consumer: &str) -> Result<Option<Timestamp>, Stop> {
        if let Some(known) = self.known.schedules.get(consumer) {
            return Ok(*known);
        }
        self.missing.schedules.insert(consumer.to_owned());
        Err(Stop::Missing)
    }

    /// Records that the automatic schedule of a consumer runs now.
    pub fn set_last_run(&mut self, consumer: &str) {
        self.pending.schedules.insert(consumer.to_owned());
    }

    /// Returns a document, with the changes of this call; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn document(&mut self, key: &DocumentKey) -> Result<Option<&str>, Stop> {
        if !self.known.documents.contains_key(key) {
            self.missing.documents.insert(key.clone());
            return Err(Stop::Missing);
        }
        let found = self.pending.documents.get(key).or_else(|| self.known.documents.get(key));
        Ok(found.and_then(Option::as_deref))
    }

    /// Returns a document as it was a moment ago; others may change it meanwhile. `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn glimpse(&mut self, key: &DocumentKey) -> Result<Option<&str>, Stop> {
        if !self.known.glimpses.contains_key(key) {
            self.missing.glimpses.insert(key.clone());
            return Err(Stop::Missing);
        }
        Ok(self.known.glimpses.get(key).and_then(Option::as_deref))
    }

    /// Writes a document that was [read](Self::document), or takes it away. One that was not read must be new: no other call
    /// writes a document of its name.
    pub fn set_document(&mut self, key: DocumentKey, text: Option<String>) {
        self.pending.documents.insert(key, text);
    }

    /// Returns all documents of a kind, in the order of their keys and without the changes of this call. Others may change them
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if they are not loaded.
    pub fn documents(&mut self, kind: DocumentKind) -> Result<&[(DocumentKey, String)], Stop> {
        if !self.known.listed.contains_key(&kind) {
            self.missing.listed.insert(kind);
            return Err(Stop::Missing);
        }
        Ok(self.known.listed.get(&kind).map_or(&[], Vec::as_slice))
    }

    /// Returns a page of the names of documents, without the changes of this call. Others may change them meanwhile.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if it is not loaded.
    pub fn document_names(&mut self, range: &DocumentRange) -> Result<Vec<String>, Stop> {
        let Some(names) = self.known.ranges.get(range) else {
            self.missing.ranges.insert(range.clone());
            return Err(Stop::Missing);
        };
        Ok(names.clone())
    }

    /// Returns `count` fencing tokens that nobody has been given, in growing order.
    ///
    /// # Errors
    ///
    /// [`Stop::Missing`] if fewer are reserved.
    pub fn fences(&mut self, count: u64) -> Result<Vec<u64>, Stop> {
        // Each attempt begins with the first reserved token again: nobody was told of those that an earlier one took.
        let from = self.pending.fences;
        let all = self.known.fences.iter().cloned().flatten();
        let fences: Vec<_> = all
            .skip(usize::try_from(from).unwrap_or(usize::MAX))
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .collect();
        let lacking = count - fences.len() as u64;
        if lacking > 0 {
            self.missing.fences += lacking;
            return Err(Stop::Missing);
        }
        self.pending.fences += count;
        Ok(fences)
    }

    /// Adds to the record of what operators did.
    pub fn note(&mut self, note: Note) {
        self.pending.notes.push(note);
    }

    /// Adds an entry of the present time to the record of what operators did.
    pub fn note_action(
        &mut self,
        by: &dlq_core::store::Actor,
        action: &str,
        subject: String,
        affected: u64,
        operation: Option<OperationId>,
    ) {
        self.note(Note::New(AuditEntry {
            number: 0,
            at: self.now,
            by: by.clone(),
            action: action.to_owned(),
            subject,
            affected,
            operation,
        }));
    }
}

/// Access of a backend.
impl Rows {
    /// Rows of a call at `now`, by the store's clock; nothing is known yet.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            known: Known::default(),
            pending: Pending::default(),
            missing: Needs::default(),
        }
    }

    /// Lets `verb` decide. `None` if something is [missing](Self::missing): load it, and try again.
    ///
    /// # Errors
    ///
    /// The error of the verb; nothing is to be written then.
    pub fn attempt<V: Verb>(&mut self, verb: &V) -> Result<Option<V::Output>, StoreError> {
        self.pending = Pending::default();
        self.missing = Needs::default();
        let decided = verb.decide(self).and_then(|answer| {
            // Here for all verbs: whoever adds one need not think of it.
            Left::by(self.letters()).remember(self)?;
            Ok(answer)
        });
        // While rows are missing neither an answer nor an error counts, since both may rest on what is not loaded.
        if !self.missing.is_empty() {
            return Ok(None);
        }
        match decided {
            Ok(answer) => Ok(Some(answer)),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Missing) => Err(StoreError::new(StoreErrorKind::Unexpected, "decide")
                .with_detail("a verb stopped without saying what it lacks")),
        }
    }

    /// Returns what the last attempt lacked.
    #[must_use]
    pub const fn missing(&self) -> &Needs {
        &self.missing
    }

    /// Supplies a letter's row.
    pub fn supply_letter(&mut self, id: LetterId, row: Option<Row>, depth: Depth) {
        // A head must not replace a whole row: the verb has asked for its payload and history before.
        let is_deeper = |(_, known): &(Option<Row>, Depth)| *known > depth;
        if !self.known.letters.get(&id).is_some_and(is_deeper) {
            self.known.letters.insert(id, (row, depth));
        }
    }

    /// Supplies what a selection selected. The rows of its letters are supplied beside it, to this depth. Items that were
    /// selected because they are queued need not be.
    pub fn supply_select(&mut self, select: Select, depth: Depth, found: Vec<Selected>) {
        if let Select::Queued { operation, .. } | Select::Orphans { operation, .. } = &select {
            for item in &found {
                let queued = Some(ItemOutcome::Queued);
                self.known.items.entry((*operation, item.index)).or_insert(queued);
            }
        }
        self.known.selects.retain(|(it, ..)| *it != select);
        self.known.selects.push((select, depth, found));
    }

    /// Supplies an item of an operation.
    pub fn supply_item(
        &mut self,
        operation: OperationId,
        index: u64,
        outcome: Option<ItemOutcome>,
    ) {
        self.known.items.insert((operation, index), outcome);
    }

    /// Supplies an operation.
    pub fn supply_operation(&mut self, id: OperationId, operation: Option<Operation>) {
        self.known.operations.insert(id, operation);
    }

    /// Supplies the state of an operation.
    pub fn supply_state(&mut self, id: OperationId, state: Option<OperationState>) {
        self.known.states.insert(id, state);
    }

    /// Supplies the operations that may release letters, the one started first first.
    pub fn supply_active(&mut self, operations: Vec<Operation>) {
        self.known.active = Some(operations.iter().map(|operation| operation.id).collect());
        for operation in operations {
            self.known.operations.insert(operation.id, Some(operation));
        }
    }

    /// Supplies the owner of an original message.
    pub fn supply_owner(&mut self, key: DedupKey, owner: Option<LetterId>) {
        self.known.owners.insert(key, owner);
    }

    /// Supplies an alias.
    pub fn supply_alias(&mut self, id: LetterId, alias: Option<Alias>) {
        self.known.aliases.insert(id, alias);
    }

    /// Supplies the aliases that point at a letter.
    pub fn supply_aliases_of(&mut self, id: LetterId, aliases: Vec<(LetterId, Alias)>) {
        self.known.aliases_of.insert(id, aliases);
    }

    /// Supplies whether the store deduplicates.
    pub fn supply_dedup(&mut self, is_dedup: bool) {
        self.known.dedup = Some(is_dedup);
    }

    /// Supplies the last run of a schedule.
    pub fn supply_schedule(&mut self, consumer: String, last: Option<Timestamp>) {
        self.known.schedules.insert(consumer, last);
    }

    /// Supplies a document.
    pub fn supply_document(&mut self, key: DocumentKey, text: Option<String>) {
        self.known.documents.insert(key, text);
    }

    /// Supplies a document that is only looked at.
    pub fn supply_glimpse(&mut self, key: DocumentKey, text: Option<String>) {
        self.known.glimpses.insert(key, text);
    }

    /// Supplies all documents of a kind.
    pub fn supply_documents(
        &mut self,
        kind: DocumentKind,
        mut documents: Vec<(DocumentKey, String)>,
    ) {
        documents.sort_unstable();
        self.known.listed.insert(kind, documents);
    }

    /// Supplies a page of the names of documents, in its order.
    pub fn supply_document_names(&mut self, range: DocumentRange, names: Vec<String>) {
        self.known.ranges.insert(range, names);
    }

    /// Supplies fencing tokens that were reserved, in addition to those before.
    pub fn supply_fences(&mut self, fences: Range<u64>) {
        self.known.fences.push(fences);
    }

    /// Supplies the number of operations ever started.
    pub fn supply_operation_number(&mut self, number: u64) {
        self.known.operation_number = Some(number);
    }

    /// Returns the letters that were changed, in the order of their ids.
    pub fn letters(&self) -> impl Iterator<Item = LetterChange<'_>> {
        self.pending.letters.iter().filter_map(|(id, (after, changed))| {
            let before = self.known.letters.get(id).and_then(|(row, _)| row.as_ref());
            let changed = if before.is_none() { Changed::All } else { *changed };
            // A row that was inserted and removed in one call leaves nothing to write.
            let change = LetterChange { id: *id, before, after: after.as_ref(), changed };
            (before.is_some() || after.is_some()).then_some(change)
        })
    }

    /// Returns the items that were changed, in order.
    pub fn items(&self) -> impl Iterator<Item = (OperationId, u64, &ItemChange)> {
        self.pending.items.iter().map(|((id, index), change)| (*id, *index, change))
    }

    /// Returns the operations that were started, without their [changes](Self::operations).
    #[must_use]
    pub fn started(&self) -> &[Operation] {
        &self.pending.started
    }

    /// Returns the changes of operations, started ones too, in the order of their ids.
    pub fn operations(&self) -> impl Iterator<Item = (OperationId, &OperationChange)> {
        self.pending.operations.iter().map(|(id, change)| (*id, change))
    }

    /// Returns the aliases that were set.
    pub fn aliases(&self) -> impl Iterator<Item = (LetterId, Alias)> {
        self.pending.aliases.iter().map(|(id, alias)| (*id, *alias))
    }

    /// Returns the consumers whose automatic schedule runs now.
    pub fn schedules(&self) -> impl Iterator<Item = &str> {
        self.pending.schedules.iter().map(String::as_str)
    }

    /// Returns the documents that were changed, in the order of their keys.
    pub fn changed_documents(&self) -> impl Iterator<Item = DocumentChange<'_>> {
        self.pending.documents.iter().filter_map(|(key, after)| {
            let before = self.known.documents.get(key).and_then(Option::as_deref);
            let after = after.as_deref();
            (before != after).then_some(DocumentChange { key, before, after })
        })
    }

    /// Returns the greatest of the fencing tokens that were given out.
    #[must_use]
    pub fn last_fence(&self) -> Option<u64> {
        let all = self.known.fences.iter().cloned().flatten();
        all.take(usize::try_from(self.pending.fences).unwrap_or(usize::MAX)).last()
    }

    /// Returns the additions to the record of what operators did.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.pending.notes
    }

    /// Returns true if there is nothing to write.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        // Owners and fences are left out: neither needs to be written without a row that has changed.
        let Pending { letters, items, started, operations, aliases, schedules, notes, .. } =
            &self.pending;
        let has_documents = self.changed_documents().next().is_some();
        letters.is_empty()
            && items.is_empty()
            && started.is_empty()
            && operations.is_empty()
            && aliases.is_empty()
            && schedules.is_empty()
            && !has_documents
            && notes.is_empty()
    }

    /// Returns the consumers whose letters may have become due; an empty name means every consumer.
    #[must_use]
    pub fn woken(&self) -> BTreeSet<String> {
        let due = self.letters().filter_map(|change| {
            let row = change.after?;
            // A claimed row wakes nobody, since it becomes available only when its lease ends.
            let is_due = row.claim.is_none() && row.available_at().is_some();
            is_due.then(|| row.letter.consumer.clone())
        });
        let mut woken: BTreeSet<_> = due.collect();
        let may_release = |state| matches!(state, OperationState::Canary | OperationState::Running);
        if self.pending.started.iter().any(|it| may_release(it.state))
            || self.pending.operations.values().any(|it| {
                // At another rate letters may go earlier than whoever waits for them expects.
                it.state.is_some_and(may_release) || it.spec.is_some()
            })
        {
            // The letters of an operation may belong to any consumer.
            woken.insert(String::new());
        }
        woken
    }
}
