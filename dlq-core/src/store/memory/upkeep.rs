use std::time::Duration;

use super::super::{
    Actor, AuditEntry, CheckLimits, Cleanup, Due, Edit, EditError, Hands, ItemOutcome, Mark,
    Marked, ProcessedEvent, Receipt, Selection, Upkeep,
};
use super::MemoryStore;
use super::operations::json;
use super::row::Row;
use super::world::World;
use crate::store::rules;
use crate::{DeadLetter, Filter, Finding, LetterId, Resolution, Status, StoreError, Timestamp};

/// How many letters are deleted under one lock.
const BATCH: usize = 1000;

impl Upkeep for MemoryStore {
    async fn mark(
        &self,
        selection: Selection,
        mark: Mark,
        by: Actor,
    ) -> Result<Marked, StoreError> {
        let now = self.now();
        let mut world = self.world();
        let marked = world.mark(&selection, mark, now);
        let action = match mark {
            Mark::Quarantined => "quarantine",
            Mark::Pending => "release",
            Mark::Resolved => "resolve",
        };
        world.note(by, action, json(&selection), marked.changed, now);
        Ok(marked)
    }

    async fn delete(&self, selection: Selection, by: Actor) -> Result<Marked, StoreError> {
        let now = self.now();
        let filter = selection.filter();
        let why = "deleted by an operator";
        let marked = self.delete_in_batches(filter, BATCH, now, why, |_| true);
        self.world().note(by, "delete", json(filter), marked.changed, now);
        Ok(marked)
    }

    async fn cleanup(&self, cleanup: Cleanup, by: Actor) -> Result<u64, StoreError> {
        let now = self.now();
        let Cleanup { older_than, filter, include_unresolved, batch } = cleanup;
        let latest = now.before(older_than);
        let is_old = |letter: &DeadLetter| {
            let wanted = include_unresolved || letter.state.status == Status::Resolved;
            wanted && letter.state.updated_at <= latest
        };
        let batch = batch.max(1) as usize;
        let why = "deleted by a cleanup";
        let deleted = self.delete_in_batches(&filter, batch, now, why, is_old).changed;
        let subject = serde_json::json!({
            "older_than_seconds": older_than.as_secs_f64(),
            "filter": filter,
            "include_unresolved": include_unresolved,
        });
        self.world().note(by, "cleanup", subject.to_string(), deleted, now);
        Ok(deleted)
    }

    async fn edit(&self, id: LetterId, edit: Edit, by: Actor) -> Result<DeadLetter, StoreError> {
        let now = self.now();
        let edited = self.world().edit(id, &edit, by, now);
        edited.map_err(|error| {
            StoreError::new(error.kind(), "edit the letter").with_detail(error.to_string())
        })
    }

    async fn restore(
        &self,
        letters: Vec<DeadLetter>,
        by: Actor,
    ) -> Result<Vec<Receipt>, StoreError> {
        let now = self.now();
        let mut world = self.world();
        let receipts: Vec<_> =
            letters.into_iter().map(|letter| world.restore(letter, now)).collect();
        let (subject, affected) = rules::restored_subject(&receipts);
        world.note(by, "restore", subject, affected, now);
        Ok(receipts)
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self.world().audit.iter().rev().take(limit as usize).cloned().collect())
    }

    async fn record_processed(&self, events: Vec<ProcessedEvent>) -> Result<(), StoreError> {
        self.world().processed.extend(events);
        Ok(())
    }

    async fn processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>, StoreError> {
        Ok(self.world().processed.iter().rev().take(limit as usize).cloned().collect())
    }

    async fn deduplicate(&self, force: bool) -> Result<u64, StoreError> {
        let now = self.now();
        self.world().deduplicate(force, now)
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

impl MemoryStore {
    fn delete_in_batches(
        &self,
        filter: &Filter,
        batch: usize,
        now: Timestamp,
        why: &str,
        also: impl Fn(&DeadLetter) -> bool,
    ) -> Marked {
        let meant = |letter: &DeadLetter| filter.matches(letter) && also(letter);
        let selected: Vec<LetterId> =
            self.world().matching(filter).filter(|letter| also(letter)).map(|l| l.id).collect();
        let mut marked = Marked::default();
        for ids in selected.chunks(batch) {
            let mut world = self.world();
            for id in ids {
                // Others may have worked in between.
                let Some(row) = world.rows.get(id).filter(|row| meant(&row.letter)) else {
                    continue;
                };
                if row.is_held(now) {
                    marked.skipped += 1;
                } else if let Some(mut row) = world.remove(*id) {
                    world.end_item(&mut row, ItemOutcome::Skipped, Some(why), now);
                    marked.changed += 1;
                }
            }
        }
        marked
    }
}

impl World {
    fn note(&mut self, by: Actor, action: &str, subject: String, affected: u64, now: Timestamp) {
        let action = action.to_owned();
        self.audit.push(AuditEntry { at: now, by, action, subject, affected, operation: None });
    }

    fn edit(
        &mut self,
        id: LetterId,
        edit: &Edit,
        by: Actor,
        now: Timestamp,
    ) -> Result<DeadLetter, EditError> {
        let edited = self.change(id, |_, row| {
            let hands = Hands { is_held: row.is_held(now), is_record: row.is_record() };
            let amended = edit.amend(&mut row.letter, hands, now)?;
            if amended.is_changed {
                row.void();
            }
            Ok((row.letter.clone(), amended))
        });
        let (letter, amended) = edited.unwrap_or(Err(EditError::Unknown(id)))?;
        self.note(by, "edit", amended.subject, u64::from(amended.is_changed), now);
        Ok(letter)
    }

    fn mark(&mut self, selection: &Selection, mark: Mark, now: Timestamp) -> Marked {
        let selected: Vec<_> = self.matching(selection.filter()).map(|letter| letter.id).collect();
        let mut marked = Marked::default();
        for id in selected {
            let Some(row) = self.rows.get(&id) else { continue };
            if row.is_held(now) {
                marked.skipped += 1;
            } else if !is_so(row, mark) {
                marked.changed += 1;
                self.change(id, |world, row| world.mark_one(row, mark, now));
            }
        }
        marked
    }

    fn mark_one(&mut self, row: &mut Row, mark: Mark, now: Timestamp) {
        let why = match mark {
            Mark::Quarantined => "quarantined by an operator",
            Mark::Pending => "put back by an operator",
            Mark::Resolved => "resolved by an operator",
        };
        self.end_item(row, ItemOutcome::Skipped, Some(why), now);
        row.void();
        let letter = &mut row.letter;
        match mark {
            Mark::Quarantined => rules::put_back(letter, Status::Quarantined, now),
            Mark::Resolved => rules::resolve(letter, Resolution::Dismissed, now),
            Mark::Pending => {
                rules::put_back(letter, Status::Pending, now);
                letter.state.replays = 0;
            }
        }
    }
}

fn is_so(row: &Row, mark: Mark) -> bool {
    let state = &row.letter.state;
    match mark {
        Mark::Quarantined => state.status == Status::Quarantined,
        Mark::Resolved => state.status == Status::Resolved,
        Mark::Pending => {
            state.status == Status::Pending
                && state.due.is_none()
                && state.operation.is_none()
                && state.replays == 0
        }
    }
}
