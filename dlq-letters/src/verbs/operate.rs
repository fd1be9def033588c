//! Operations: they are started, steered and cancelled.

use std::sync::Arc;

use dlq_core::store::{
    Actor, AuditEntry, Control, ItemOutcome, Operation, OperationItem, OperationSpec,
    OperationState, Pace, Progress, rules,
};
use dlq_core::{OperationId, Status, StoreError, StoreErrorKind};

use super::walk::{Page, Walk};
use super::{each, json};
use crate::{Changed, Depth, Needs, Note, Row, Rows, Select, Stop, Verb};

const STEER: &str = "steer the operation";

/// Creates an operation, and freezes the first letters.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) spec: Arc<OperationSpec>,
    pub(crate) by: Actor,
    pub(crate) walk: Walk,
}

/// An operation whose letters are being frozen.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) operation: Operation,
    /// The letters that are to be frozen next; `None` if all are.
    pub(crate) next: Option<Walk>,
}

impl Verb for Start {
    type Output = Begun;
    // A second run would start another operation, over the letters that the first one left.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.operation_number = true;
        self.walk.needs(needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        let number = rows.operation_number()?;
        let id = OperationId::of(&self.by.who, now, number);
        // A walk reads at least one letter, and an operation with the limit 0 freezes none.
        let page = if is_full(&self.spec, 0) { Page::default() } else { self.walk.page(rows)? };
        let next = page.next.filter(|_| !is_full(&self.spec, page.found.len() as u64));
        // While letters are still to be frozen the operation is `preparing` and releases nothing, so that no letter is sent
        // before the set is complete.
        rows.start(Operation {
            id,
            spec: OperationSpec::clone(&self.spec),
            state: if next.is_some() { OperationState::Preparing } else { begun(&self.spec) },
            by: self.by.clone(),
            created_at: now,
            updated_at: now,
            next_release: now,
            progress: Progress::default(),
        });
        let mut total = 0;
        for item in page.found {
            if let Some(row) = rows.take(item.letter, Depth::Head)? {
                freeze(rows, id, total, row);
                total += 1;
            }
        }
        let subject = json(&*self.spec);
        rows.note_action(&self.by, "replay", subject, total, Some(id));
        Ok(Begun { operation: present(rows, id, "start the replay")?, next })
    }
}

/// Freezes further letters of an operation that is being prepared.
#[derive(Debug)]
pub(crate) struct Freeze {
    pub(crate) operation: OperationId,
    pub(crate) spec: Arc<OperationSpec>,
    pub(crate) walk: Walk,
    /// The entry in the record of what operators did.
    pub(crate) entry: Option<i64>,
}

impl Verb for Freeze {
    type Output = Begun;
    // A second run would freeze another page beyond the limit of the operation, which was reckoned without the first.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.operations.insert(self.operation);
        self.walk.needs(needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let operation = present(rows, self.operation, "start the replay")?;
        // Somebody has resumed or cancelled it: it goes on with the letters that it has.
        if !matches!(operation.state, OperationState::Preparing | OperationState::Paused) {
            return Ok(Begun { operation, next: None });
        }
        let page = self.walk.page(rows)?;
        let mut index = operation.progress.total;
        let frozen = page.found.len() as u64;
        for item in page.found {
            if let Some(row) = rows.take(item.letter, Depth::Head)? {
                freeze(rows, self.operation, index, row);
                index += 1;
            }
        }
        let next = page.next.filter(|_| !is_full(&self.spec, operation.progress.total + frozen));
        // An operation that was paused meanwhile stays paused when its set is complete.
        if next.is_none() && operation.state == OperationState::Preparing {
            rows.steer(self.operation, begun(&self.spec));
        }
        grow(rows, self.entry, index - operation.progress.total);
        Ok(Begun { operation: present(rows, self.operation, "start the replay")?, next })
    }
}

/// Changes the state of an operation, and nothing of its letters.
#[derive(Debug)]
pub(crate) struct Steer {
    pub(crate) operation: OperationId,
    pub(crate) control: Control,
    pub(crate) by: Actor,
}

impl Verb for Steer {
    type Output = Operation;
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.operations.insert(self.operation);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let operation = present(rows, self.operation, STEER)?;
        let Some(state) = operation.steer(self.control) else {
            let why = format!("it is {} and cannot {}", operation.state, self.control);
            return Err(StoreError::new(StoreErrorKind::Conflict, STEER).with_detail(why).into());
        };
        // A command that changes nothing, such as a repeated one, gets no entry in the audit.
        if state == operation.state {
            return Ok(operation);
        }
        rows.steer(self.operation, state);
        note_control(rows, self.operation, self.control, &self.by, 0);
        present(rows, self.operation, STEER)
    }
}

/// Sets how fast an operation sends, and nothing of its letters.
#[derive(Debug)]
pub(crate) struct SetPace {
    pub(crate) operation: OperationId,
    pub(crate) pace: Option<Pace>,
    pub(crate) by: Actor,
}

impl SetPace {
    const DURING: &str = "set the rate of the operation";
}

impl Verb for SetPace {
    type Output = Operation;
    // The audit would have two entries.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.operations.insert(self.operation);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let operation = present(rows, self.operation, Self::DURING)?;
        if operation.state.is_final() {
            let why = format!("it is {} and sends nothing any more", operation.state);
            let error = StoreError::new(StoreErrorKind::Conflict, Self::DURING);
            return Err(error.with_detail(why).into());
        }
        if operation.spec.pace == self.pace {
            return Ok(operation);
        }
        let next = operation.next_release_at(self.pace, rows.now());
        let mut spec = operation.spec;
        spec.pace = self.pace;
        rows.respecify(self.operation, spec);
        rows.set_next_release(self.operation, next);
        let rate = self.pace.map_or_else(|| "none".to_owned(), |pace| pace.to_string());
        let subject = serde_json::json!({ "operation": self.operation, "rate": rate });
        rows.note_action(&self.by, "rate", subject.to_string(), 0, Some(self.operation));
        present(rows, self.operation, Self::DURING)
    }
}

/// Takes letters of a cancelled operation back that nobody runs, as many as one step may.
#[derive(Debug)]
pub(crate) struct Withdraw {
    pub(crate) operation: OperationId,
    pub(crate) by: Actor,
    pub(crate) limit: u64,
    /// The entry in the record of what operators did, if there is one.
    pub(crate) entry: Option<i64>,
}

impl Withdraw {
    fn select(&self) -> Select {
        Select::Open { operation: self.operation, limit: self.limit }
    }
}

impl Verb for Withdraw {
    /// True if there may be more.
    type Output = bool;
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.select(self.select(), Depth::Head);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        let found = rows.select(&self.select(), Depth::Head)?;
        let may_have_more = found.len() as u64 == self.limit;
        let taken = each(found, |item| {
            let Some(row) = rows.take(item.letter, Depth::Head)? else { return Ok(false) };
            let is_of_it = row.item.is_some_and(|(operation, _)| operation == self.operation);
            // A letter that somebody runs or sends is left to its holder, who records how it ends.
            let is_open = is_of_it && row.is_idle_replay(now);
            if is_open {
                take_back(rows, row)?;
            }
            Ok(is_open)
        })?;
        let letters = taken.into_iter().filter(|taken| *taken).count() as u64;
        if self.entry.is_some() {
            grow(rows, self.entry, letters);
        } else if letters > 0 {
            note_control(rows, self.operation, Control::Cancel, &self.by, letters);
        }
        // A page of letters that cannot be taken back would come again for ever.
        Ok(may_have_more && letters > 0)
    }
}

/// Takes a letter out of a cancelled operation. It has been checked that nobody runs it.
pub(super) fn take_back(rows: &mut Rows, mut row: Row) -> Result<(), Stop> {
    rows.end_item(&mut row, ItemOutcome::Skipped, Some("cancelled"))?;
    // A claim whose lease has ended is still good for its token, and would let a late owner finish the letter.
    row.void();
    rules::put_back(&mut row.letter, Status::Pending, rows.now());
    rows.update(row, Changed::State);
    Ok(())
}

/// Adds to the number of letters of an entry in the record of what operators did.
pub(super) fn grow(rows: &mut Rows, entry: Option<i64>, by: u64) {
    if let Some(entry) = entry
        && by > 0
    {
        rows.note(Note::Grow { entry, by });
    }
}

/// Adds a letter to an operation. It has been selected as one that is free.
fn freeze(rows: &mut Rows, operation: OperationId, index: u64, mut row: Row) {
    let now = rows.now();
    let item = OperationItem {
        index,
        letter: row.letter.id,
        generation: row.letter.generation,
        outcome: ItemOutcome::Queued,
        why: None,
        at: now,
    };
    rows.append_item(operation, item, row.letter.consumer.clone());
    row.item = Some((operation, index));
    // A letter that was due by the automatic schedule waits for this operation instead.
    row.letter.state.due = None;
    row.letter.state.operation = Some(operation);
    row.letter.state.updated_at = now;
    rows.update(row, Changed::State);
}

/// Returns the state of an operation whose letters are frozen.
fn begun(spec: &OperationSpec) -> OperationState {
    if spec.canary.is_some() { OperationState::Canary } else { OperationState::Running }
}

fn is_full(spec: &OperationSpec, frozen: u64) -> bool {
    spec.limit.is_some_and(|limit| frozen >= limit)
}

fn present(rows: &mut Rows, id: OperationId, during: &'static str) -> Result<Operation, Stop> {
    rows.operation(id)?.ok_or_else(|| unknown(id, during).into())
}

/// Returns the error about an operation that does not exist.
pub(crate) fn unknown(id: OperationId, during: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, during)
        .with_detail(format!("no operation has the id {id}; list them to see which there are"))
}

fn note_control(
    rows: &mut Rows,
    operation: OperationId,
    control: Control,
    by: &Actor,
    affected: u64,
) {
    rows.note(Note::New(AuditEntry {
        number: 0,
        at: rows.now(),
        by: by.clone(),
        action: control.to_string(),
        subject: serde_json::json!({ "operation": operation }).to_string(),
        affected,
        operation: Some(operation),
    }));
}
