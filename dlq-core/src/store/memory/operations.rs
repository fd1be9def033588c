use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    Actor, AuditEntry, Control, ItemOutcome, ItemPage, Operation, OperationItem, OperationSpec,
    OperationState, Operations, Plan, Progress, Target,
};
use super::MemoryStore;
use super::campaign::Campaign;
use super::row::Row;
use super::world::World;
use crate::store::rules;
use crate::{
    DeadLetter, Filter, LetterId, OperationId, Order, Status, StoreError, StoreErrorKind, Timestamp,
};

impl crate::store::Dispatch for MemoryStore {}

impl Operations for MemoryStore {
    async fn plan(&self, spec: OperationSpec) -> Result<Plan, StoreError> {
        serve(&spec, "plan the replay")?;
        Ok(self.world().plan(&spec))
    }

    async fn start(&self, spec: OperationSpec, by: Actor) -> Result<Operation, StoreError> {
        serve(&spec, "start the replay")?;
        let now = self.now();
        Ok(self.world().start(spec, by, now))
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        let world = self.world();
        let index = world.campaign_index.get(&id);
        Ok(index.map(|index| world.campaigns[*index].operation.clone()))
    }

    async fn operations(&self, limit: u32) -> Result<Vec<Operation>, StoreError> {
        let world = self.world();
        let newest_first = world.campaigns.iter().rev().take(limit as usize);
        Ok(newest_first.map(|campaign| campaign.operation.clone()).collect())
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> Result<ItemPage, StoreError> {
        let world = self.world();
        let items = &world.campaigns[world.campaign(id, "list the items")?].items;
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(items.len());
        let to = from.saturating_add(limit.max(1) as usize).min(items.len());
        let next = (to < items.len()).then_some(to as u64);
        Ok(ItemPage { items: items[from..to].to_vec(), next })
    }

    async fn control(
        &self,
        id: OperationId,
        control: Control,
        by: Actor,
    ) -> Result<Operation, StoreError> {
        let now = self.now();
        self.world().control(id, control, by, now)
    }
}

fn serve(spec: &OperationSpec, operation: &'static str) -> Result<(), StoreError> {
    if spec.target == Target::Handler {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Refused, operation)
        .with_detail("the store sends letters back to their own handler only; use that target"))
}

fn is_free(letter: &DeadLetter) -> bool {
    letter.state.status == Status::Pending && letter.state.operation.is_none()
}

impl World {
    fn campaign(&self, id: OperationId, operation: &'static str) -> Result<usize, StoreError> {
        self.campaign_index.get(&id).copied().ok_or_else(|| {
            StoreError::new(StoreErrorKind::NotFound, operation).with_detail(format!(
                "no operation has the id {id}; list them to see which there are"
            ))
        })
    }

    fn frozen<'a>(
        &'a self,
        spec: &'a OperationSpec,
    ) -> Box<dyn Iterator<Item = &'a DeadLetter> + 'a> {
        let limit =
            spec.limit.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let free = self.matching(&spec.filter).filter(|letter| is_free(letter));
        match spec.order {
            Order::OldestFirst => Box::new(free.take(limit)),
            Order::NewestFirst => Box::new(free.rev().take(limit)),
        }
    }

    fn plan(&self, spec: &OperationSpec) -> Plan {
        let mut plan = Plan::default();
        for letter in self.frozen(spec) {
            plan.count += 1;
            plan.past_cap += u64::from(spec.is_past_cap(letter.state.replays));
            if plan.sample.len() < 10 {
                plan.sample.push(letter.summary());
            }
        }
        for letter in self.matching(&spec.filter).filter(|letter| !is_free(letter)) {
            *plan.ineligible.entry(letter.state.status).or_default() += 1;
        }
        plan
    }

    fn start(&mut self, spec: OperationSpec, by: Actor, now: Timestamp) -> Operation {
        let id = OperationId::of(&by.who, now, self.campaigns.len() as u64);
        let letters: Vec<_> = self.frozen(&spec).map(|letter| letter.id).collect();
        let mut items = Vec::with_capacity(letters.len());
        let mut queued: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (index, letter) in letters.into_iter().enumerate() {
            self.change(letter, |_, row| {
                row.item = Some((id, index));
                row.letter.state.due = None;
                row.letter.state.operation = Some(id);
                row.letter.state.updated_at = now;
                queued.entry(row.letter.consumer.clone()).or_default().insert(index);
                items.push(OperationItem {
                    index: index as u64,
                    letter,
                    generation: row.letter.generation,
                    outcome: ItemOutcome::Queued,
                    why: None,
                    at: now,
                });
            });
        }
        let total = items.len() as u64;
        let by_outcome = (total > 0).then_some((ItemOutcome::Queued, total)).into_iter().collect();
        let state =
            if spec.canary.is_some() { OperationState::Canary } else { OperationState::Running };
        let subject = json(&spec);
        let mut operation = Operation {
            id,
            spec,
            state,
            by: by.clone(),
            created_at: now,
            updated_at: now,
            next_release: now,
            progress: Progress { total, by_outcome },
        };
        operation.state = operation.advance(now, 0).state;
        self.campaign_index.insert(id, self.campaigns.len());
        self.campaigns.push(Campaign { operation: operation.clone(), items, queued });
        let action = "replay".to_owned();
        let entry =
            AuditEntry { at: now, by, action, subject, affected: total, operation: Some(id) };
        self.audit.push(entry);
        operation
    }

    /// Lets running operations release letters that match, `room` at most; whether it changed anything.
    pub(super) fn release(&mut self, filter: &Filter, mut room: usize, now: Timestamp) -> bool {
        let mut changed = false;
        for number in 0..self.campaigns.len() {
            let before = &self.campaigns[number].operation;
            let advance = before.advance(now, room as u64);
            if advance.release == 0 {
                continue;
            }
            let before = before.clone();
            let mut released = 0;
            let mut from = 0;
            self.campaigns[number].operation.state = advance.state;
            while released < advance.release
                && let Some(index) = self.campaigns[number].next_queued(&filter.consumers, from)
            {
                from = index + 1;
                let letter = self.campaigns[number].items[index].letter;
                if !self.rows.get(&letter).is_some_and(|row| filter.matches(&row.letter)) {
                    continue;
                }
                changed = true;
                released += u64::from(self.release_one(&before, letter, now));
            }
            self.campaigns[number].operation.next_release =
                before.advance(now, released).next_release;
            room -= usize::try_from(released).unwrap_or(room).min(room);
            if room == 0 {
                break;
            }
        }
        changed
    }

    /// Makes one letter due; `false` when it was set aside instead.
    fn release_one(&mut self, operation: &Operation, letter: LetterId, now: Timestamp) -> bool {
        let released = self.change(letter, |world, row| {
            let replays = row.letter.state.replays;
            if operation.spec.is_past_cap(replays) {
                let why = format!("sent back {replays} times, which is the cap");
                world.end_item(row, ItemOutcome::Skipped, Some(&why), now);
                row.void();
                rules::set_aside(&mut row.letter, now);
                return false;
            }
            world.set_item(row, ItemOutcome::Released, None, now);
            rules::release(&mut row.letter, now);
            true
        });
        released == Some(true)
    }

    fn control(
        &mut self,
        id: OperationId,
        control: Control,
        by: Actor,
        now: Timestamp,
    ) -> Result<Operation, StoreError> {
        let number = self.campaign(id, "steer the operation")?;
        let operation = &mut self.campaigns[number].operation;
        let Some(state) = operation.steer(control) else {
            return Err(StoreError::new(StoreErrorKind::Conflict, "steer the operation")
                .with_detail(format!("it is {} and cannot {control}", operation.state)));
        };
        let is_news = state != operation.state;
        if is_news {
            operation.state = state;
            operation.updated_at = now;
        }
        let affected = if control == Control::Cancel { self.withdraw(number, now) } else { 0 };
        if !is_news && affected == 0 {
            return Ok(self.campaigns[number].operation.clone());
        }
        self.audit.push(AuditEntry {
            at: now,
            by,
            action: control.to_string(),
            subject: serde_json::json!({ "operation": id }).to_string(),
            affected,
            operation: Some(id),
        });
        let operation = &mut self.campaigns[number].operation;
        operation.state = operation.advance(now, 0).state;
        Ok(operation.clone())
    }

    /// Takes back what nobody runs: queued letters, and released ones that nobody has claimed or whose lease has ended.
    fn withdraw(&mut self, number: usize, now: Timestamp) -> u64 {
        let items = &self.campaigns[number].items;
        let open = |item: &&OperationItem| {
            let row = self.rows.get(&item.letter);
            match item.outcome {
                ItemOutcome::Queued => true,
                ItemOutcome::Released => row.is_some_and(|row| row.is_idle_replay(now)),
                _ => false,
            }
        };
        let letters: Vec<_> = items.iter().filter(open).map(|item| item.letter).collect();
        for letter in &letters {
            self.take_back(*letter, now);
        }
        letters.len() as u64
    }

    fn take_back(&mut self, letter: LetterId, now: Timestamp) {
        self.change(letter, |world, row| {
            world.end_item(row, ItemOutcome::Skipped, Some("cancelled"), now);
            row.void();
            rules::put_back(&mut row.letter, Status::Pending, now);
        });
    }

    /// Takes back those of these letters that a cancelled operation had sent and that nobody runs any more. Returns
    /// whether there were any.
    pub(super) fn take_back_cancelled(&mut self, due: &[LetterId], now: Timestamp) -> bool {
        let is_cancelled = |id: &&LetterId| {
            let Some(row) = self.rows.get(id).filter(|row| row.is_idle_replay(now)) else {
                return false;
            };
            let number = row.item.and_then(|(operation, _)| self.campaign_index.get(&operation));
            number.is_some_and(|number| {
                self.campaigns[*number].operation.state == OperationState::Cancelled
            })
        };
        let cancelled: Vec<_> = due.iter().filter(is_cancelled).copied().collect();
        for letter in &cancelled {
            self.take_back(*letter, now);
        }
        !cancelled.is_empty()
    }

    pub(super) fn outcome(&self, id: OperationId, index: usize) -> Option<ItemOutcome> {
        let campaign = &self.campaigns[*self.campaign_index.get(&id)?];
        Some(campaign.items.get(index)?.outcome)
    }

    fn set_item(&mut self, row: &Row, outcome: ItemOutcome, why: Option<&str>, now: Timestamp) {
        if let Some((id, index)) = row.item
            && let Some(number) = self.campaign_index.get(&id)
        {
            let consumer = &row.letter.consumer;
            self.campaigns[*number].set_outcome(index, consumer, outcome, why, now);
        }
    }

    /// The letter leaves its operation with this outcome.
    pub(super) fn end_item(
        &mut self,
        row: &mut Row,
        outcome: ItemOutcome,
        why: Option<&str>,
        now: Timestamp,
    ) {
        self.set_item(row, outcome, why, now);
        row.item = None;
        row.letter.state.operation = None;
    }
}

pub(super) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("the types have no map with keys other than text")
}
