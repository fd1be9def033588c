use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{
    AuditEntry, CheckLimits, Due, ItemPage, Operation, OperationSpec, Plan, ProcessedEvent,
};
use dlq_core::{DeadLetter, Finding, OperationId, Order, StoreError, StoreErrorKind, Timestamp};

use super::MemoryStore;
use super::load::{Seen, is_free};
use super::world::{DueKey, World};
use crate::verbs::unknown;
use crate::{Backend, Done, Needs, Rows, Verb};

/// The most times that a verb may lack something. Each answers for one thing it lacked before.
const ROUNDS: u32 = 10_000;

impl Backend for MemoryStore {
    async fn run<V: Verb>(
        &self,
        during: &'static str,
        verb: V,
    ) -> Result<Done<V::Output>, StoreError> {
        if let Some(conflicts) = &self.conflicts {
            return self.run_optimistically(conflicts, verb).await;
        }
        let (mut rows, mut needs) = (Rows::new(self.now()), Needs::default());
        verb.needs(&mut needs);
        // The lock is held from the first read to the commit, and nothing awaits in between, so no conflict can arise.
        let mut world = self.world();
        for _ in 0..ROUNDS {
            world.load(&needs, &mut rows, &mut Seen::default());
            if let Some(answer) = rows.attempt(&verb)? {
                let note = world.commit(&rows);
                return Ok(Done { answer, note });
            }
            needs = rows.missing().clone();
        }
        Err(StoreError::new(StoreErrorKind::Unexpected, during)
            .with_detail(format!("the call never has what it needs: {needs:?}")))
    }

    async fn switch_dedup(&self) -> Result<(), StoreError> {
        self.world().set_dedup(true);
        Ok(())
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        Ok(self.world().next_due(&consumers, now))
    }

    fn store_identity(&self) -> Option<String> {
        // Clones share this address, and nobody else has it while one of them lives.
        Some(format!("memory letters {:p}", Arc::as_ptr(&self.world)))
    }

    async fn plan(&self, spec: OperationSpec) -> Result<Plan, StoreError> {
        Ok(self.world().plan(&spec))
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        Ok(self.world().campaign(id).map(|campaign| campaign.operation.clone()))
    }

    async fn operations(&self, limit: u32) -> Result<Vec<Operation>, StoreError> {
        let world = self.world();
        let newest_first = world.campaigns.iter().rev().take(limit as usize);
        Ok(newest_first.map(|campaign| campaign.operation.clone()).collect())
    }

    async fn items(&self, id: OperationId, after: u64, limit: u32) -> Result<ItemPage, StoreError> {
        let world = self.world();
        let campaign = world.campaign(id).ok_or_else(|| unknown(id, "list the items"))?;
        let items = &campaign.items;
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(items.len());
        let to = from.saturating_add(limit.max(1) as usize).min(items.len());
        let next = (to < items.len()).then_some(to as u64);
        Ok(ItemPage { items: items[from..to].to_vec(), next })
    }

    async fn audit(&self, before: Option<u64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let world = self.world();
        let entries = world.audit.iter().rev();
        let entries = entries.filter(|entry| before.is_none_or(|before| entry.number < before));
        Ok(entries.take(limit as usize).cloned().collect())
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> Result<(), StoreError> {
        self.world().processed.extend(events);
        Ok(())
    }

    async fn processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>, StoreError> {
        Ok(self.world().processed.iter().rev().take(limit as usize).cloned().collect())
    }

    async fn check(&self, limits: CheckLimits) -> Result<Vec<Finding>, StoreError> {
        let now = self.now();
        Ok(self.world().vitals(now).findings(&limits))
    }

    async fn due(&self, overdue: Duration) -> Result<Vec<Due>, StoreError> {
        let now = self.now();
        Ok(self.world().due_by_consumer(now, now.before(overdue)))
    }
}

impl World {
    fn next_due(&self, consumers: &[String], now: Timestamp) -> Option<Timestamp> {
        let first = |line: &BTreeSet<DueKey>| line.first().map(|(at, ..)| *at);
        let due = if consumers.is_empty() {
            self.lines.values().filter_map(first).min()
        } else {
            consumers.iter().filter_map(|name| self.lines.get(name)).filter_map(first).min()
        };
        let release = self
            .campaigns
            .iter()
            // An operation whose letters are all of other consumers must not wake these.
            .filter(|campaign| campaign.has_queued(consumers))
            .filter_map(|campaign| campaign.next_release(now))
            .min();
        due.into_iter().chain(release).min()
    }

    fn plan(&self, spec: &OperationSpec) -> Plan {
        let mut plan = Plan::default();
        let mut add = |letter: &DeadLetter| {
            plan.count += 1;
            plan.past_cap += u64::from(spec.is_past_cap(letter.state.replays));
            if plan.sample.len() < 10 {
                plan.sample.push(letter.summary());
            }
        };
        let limit =
            spec.limit.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let free = self.matching(&spec.filter).filter(|letter| is_free(letter));
        match spec.order {
            Order::OldestFirst => free.take(limit).for_each(&mut add),
            Order::NewestFirst => free.rev().take(limit).for_each(&mut add),
        }
        for letter in self.matching(&spec.filter).filter(|letter| !is_free(letter)) {
            *plan.ineligible.entry(letter.state.status).or_default() += 1;
        }
        plan
    }
}
