//! How an operation goes on: letters are released to claimers, and operators steer.
//!
//! Who releases locks the operation, so that its rate and its canary hold for all processes together, and passes over
//! letters that another is at. Everybody else locks letters first and operations then, so that nobody waits in a circle.
//! What is released is claimed in the same transaction: if the process dies before, nothing was released.

use std::collections::BTreeMap;

use dlq_core::store::{Actor, AuditEntry, Control, ItemOutcome, Operation, rules};
use dlq_core::{Filter, LetterId, OperationId, StoreErrorKind};
use sqlx::PgConnection;

use super::PostgresStore;
use super::call::{attempt, transact, transact_once};
use super::claims::{by_consumer, each_consumer, of_consumer};
use super::codec::Fields;
use super::names::Names;
use super::operations::{active, load, unknown};
use super::query::Query;
use super::unit::Unit;
use super::upkeep::BATCH;
use crate::error::{Fault, Result};
use crate::row::{Changed, Row};
use crate::values::{self, Take as _};

/// How many letters a claim sets aside before it leaves the others to the next: meanwhile they are locked.
const ASIDE: u64 = 500;
/// How many items without a letter it ends.
const ORPHANS: i64 = 5_000;

impl Unit<'_> {
    /// Lets running operations release letters that match, `room` at most.
    pub(super) async fn release(&mut self, filter: &Filter, mut room: usize) -> Result<()> {
        let (names, now) = (self.names(), self.now());
        for operation in active(self.conn(), names).await? {
            if room == 0 {
                break;
            }
            // It is locked only if it may release, and may then have gone on.
            if operation.advance(now, room as u64).release == 0 {
                continue;
            }
            let before = self.operation_mut(operation.id).await?.map(|operation| operation.clone());
            let Some(before) = before else { continue };
            let advance = before.advance(now, room as u64);
            if advance.release == 0 {
                continue;
            }
            if let Some(operation) = self.operation_mut(before.id).await? {
                operation.state = advance.state;
            }
            let released = self.release_some(&before, filter, advance.release).await?;
            let next_release = before.advance(now, released).next_release;
            if let Some(operation) = self.operation_mut(before.id).await? {
                operation.next_release = next_release;
            }
            room = room.saturating_sub(usize::try_from(released).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// Releases so many letters of an operation, if there are; how many.
    async fn release_some(
        &mut self,
        operation: &Operation,
        filter: &Filter,
        wanted: u64,
    ) -> Result<u64> {
        let (mut released, mut aside, mut from) = (0, 0, 0);
        // Who claims next goes on.
        while released < wanted && aside < ASIDE {
            let queued = self.queued(operation.id, filter, from, wanted - released).await?;
            let Some((last, _)) = queued.last() else {
                // Nobody else releases letters of this operation meanwhile. What is left is locked by another, or has just
                // been released here: looking through all of it for orphans would hold up every claim for nothing.
                if !self.has_queued(operation.id, filter).await? {
                    self.end_orphans(operation.id, filter).await?;
                }
                break;
            };
            from = last + 1;
            let letters: Vec<_> = queued.iter().map(|(_, letter)| *letter).collect();
            self.fetch_heads(&letters).await?;
            let mut rows = Vec::with_capacity(letters.len());
            for letter in letters {
                rows.extend(self.head(letter).await?);
            }
            self.fetch_items(&rows.iter().collect::<Vec<_>>()).await?;
            // Their reason will change, and with it perhaps the text of the error, for which the history is needed.
            let capped = |row: &&Row| operation.spec.is_past_cap(row.letter.state.replays);
            let capped: Vec<_> = rows.iter().filter(capped).map(|row| row.letter.id).collect();
            self.fetch(&capped).await?;
            for row in rows {
                let is_released = self.release_one(operation, row).await?;
                released += u64::from(is_released);
                aside += u64::from(!is_released);
            }
        }
        Ok(released)
    }

    /// Ends queued items whose letters nobody will find: they were deleted, or taken out of the operation, by hand.
    async fn end_orphans(&mut self, id: OperationId, filter: &Filter) -> Result<()> {
        let now = self.now();
        let (consumers, _) = by_consumer(filter);
        let Names { items, letters, .. } = self.names();
        let gone = each_consumer(Query::new("WITH gone AS (SELECT q.idx FROM "), &consumers);
        let gone = gone.push(&format!(
            "(SELECT i.idx FROM {items} i WHERE {}i.outcome = 'queued' AND NOT EXISTS \
             (SELECT FROM {letters} t WHERE t.letter_id = i.letter_id AND t.operation = i.operation AND t.item = i.idx) \
             AND i.operation = ",
            of_consumer("i", &consumers)
        ));
        let gone = gone.bind(id).push(" LIMIT ").bind(ORPHANS).push(&format!(
            ") q) UPDATE {items} i SET outcome = 'skipped', why = 'the letter is not there any more', at = "
        ));
        let gone = gone.bind(now).push(" FROM gone g WHERE i.idx = g.idx AND i.operation = ");
        let gone = gone.bind(id).run(self.conn()).await?;
        if gone > 0
            && let Some(operation) = self.operation_mut(id).await?
        {
            skip(&mut operation.progress.by_outcome, ItemOutcome::Queued, gone);
            operation.state = operation.advance(now, 0).state;
            operation.updated_at = now;
        }
        Ok(())
    }

    /// Locks the first queued items from `from` on whose letters match, in the frozen order.
    async fn queued(
        &mut self,
        id: OperationId,
        filter: &Filter,
        from: u64,
        limit: u64,
    ) -> Result<Vec<(u64, LetterId)>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query =
            queued(self.names(), id, filter, from).push(" ORDER BY i.idx LIMIT ").bind(limit);
        let query = query.push(" FOR UPDATE OF t SKIP LOCKED) q ORDER BY q.idx LIMIT ").bind(limit);
        query
            .all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                Ok((fields.unsigned()?, fields.letter()?))
            })
            .await
    }

    /// Returns true if a queued item has a letter that matches, also one that is locked.
    async fn has_queued(&mut self, id: OperationId, filter: &Filter) -> Result<bool> {
        let query = queued(self.names(), id, filter, 0).push(" LIMIT 1) q LIMIT 1");
        Ok(query.first(self.conn(), |_| Ok(())).await?.is_some())
    }

    /// Makes one letter due; `false` when it was set aside instead.
    async fn release_one(&mut self, operation: &Operation, mut row: Row) -> Result<bool> {
        let (now, replays) = (self.now(), row.letter.state.replays);
        if !operation.spec.is_past_cap(replays) {
            self.set_item(&row, ItemOutcome::Released, None).await?;
            rules::release(&mut row.letter, now);
            self.update(row, Changed::State);
            return Ok(true);
        }
        let Some(mut row) = self.whole(row.letter.id).await? else { return Ok(false) };
        let why = format!("sent back {replays} times, which is the cap");
        self.end_item(&mut row, ItemOutcome::Skipped, Some(&why)).await?;
        row.void();
        rules::set_aside(&mut row.letter, now);
        self.update(row, Changed::Run);
        Ok(false)
    }

    /// Changes the state of an operation, and nothing of its letters. Returns the operation and, unless it had that state,
    /// the number of the entry in the audit.
    pub(super) async fn control(
        &mut self,
        id: OperationId,
        control: Control,
        by: &Actor,
    ) -> Result<(Operation, Option<i64>)> {
        let now = self.now();
        let operation = self.operation_mut(id).await?.ok_or_else(|| unknown(id))?;
        let Some(state) = operation.steer(control) else {
            return Err(Fault::new(
                StoreErrorKind::Conflict,
                format!("it is {} and cannot {control}", operation.state),
            ));
        };
        if state == operation.state {
            return Ok((operation.clone(), None));
        }
        operation.state = state;
        operation.updated_at = now;
        operation.state = operation.advance(now, 0).state;
        let operation = operation.clone();
        if control == Control::Resume {
            self.wakes.insert(String::new());
        }
        let entry = self.note_control(id, control, by, 0).await?;
        Ok((operation, Some(entry)))
    }

    /// Appends to the record of what operators did that one steered an operation. Returns the number of the entry.
    async fn note_control(
        &mut self,
        operation: OperationId,
        control: Control,
        by: &Actor,
        affected: u64,
    ) -> Result<i64> {
        let entry = AuditEntry {
            at: self.now(),
            by: by.clone(),
            action: control.to_string(),
            subject: serde_json::json!({ "operation": operation }).to_string(),
            affected,
            operation: Some(operation),
        };
        self.note_now(&entry).await
    }

    /// Takes back those of these letters that the operation holds and that nobody runs: queued ones, and released ones that
    /// nobody has claimed or whose lease has ended. Returns how many.
    ///
    /// The letters are locked first, and the operation last, for as long as its counts are written: consumers that finish
    /// other letters of it wait for no more than that.
    async fn withdraw(&mut self, id: OperationId, letters: &[LetterId]) -> Result<u64> {
        let now = self.now();
        let Names { items, letters: table, .. } = self.names();
        let open =
            Query::new(format!("SELECT t.letter_id FROM {table} t WHERE t.letter_id = ANY("));
        let open = open.bind(letters.to_vec()).push(") AND t.operation = ").bind(id).push(
            " AND (t.status = 'pending' OR (t.claim_former = 'pending' AND t.claim_until <= ",
        );
        let open = open.bind(now).push(")) ORDER BY t.letter_id FOR UPDATE");
        let open = open.all(self.conn(), |record| Fields::of(record).letter()).await?;
        if open.is_empty() {
            return Ok(0);
        }
        let withdrawn = open.len() as u64;
        let query = Query::new(
            "WITH open AS MATERIALIZED (SELECT i.operation, i.idx, i.letter_id, i.outcome FROM unnest(",
        );
        let query = query.bind(open).push(&format!(
            "::bytea[]) AS u (letter_id) JOIN {table} t USING (letter_id) \
             JOIN {items} i ON i.operation = t.operation AND i.idx = t.item), \
             ended AS (UPDATE {items} i SET outcome = 'skipped', why = 'cancelled', at = "
        ));
        let query = query.bind(now).push(&format!(
            " FROM open o WHERE i.operation = o.operation AND i.idx = o.idx), \
             back AS (UPDATE {table} t SET status = 'pending', resolution = NULL, retry_after = NULL, available_at = NULL, \
             claim_until = NULL, claim_former = NULL, claim_owner = NULL, lapses = 0, \
             operation = NULL, item = NULL, updated_at = "
        ));
        let query = query.bind(now).push(
            " FROM open o WHERE t.letter_id = o.letter_id) SELECT outcome, count(*) FROM open GROUP BY 1",
        );
        let counts = query.all(self.conn(), |record| {
            let mut fields = Fields::of(record);
            Ok((fields.word::<ItemOutcome>("outcome")?, fields.unsigned()?))
        });
        let counts = counts.await?;
        if let Some(operation) = self.operation_mut(id).await? {
            for (before, count) in counts {
                skip(&mut operation.progress.by_outcome, before, count);
            }
            operation.updated_at = now;
        }
        Ok(withdrawn)
    }
}

impl PostgresStore {
    /// Cancels an operation: its state first, from which on nothing is released, and then the letters that nobody runs, in
    /// several transactions, so that claims go on meanwhile and whoever goes away leaves no long statement behind. Where
    /// an earlier cancel was cut off, this one goes on.
    pub(super) async fn cancel(&self, id: OperationId, by: &Actor) -> Result<Operation> {
        let steered = transact_once!(self, unit => unit.control(id, Control::Cancel, by));
        let (_, mut entry) = steered?;
        let patient = self.patient_with_many();
        let open = transact!(&patient, unit => async {
            unit.take_time_for_many().await?;
            open(unit.conn(), self.names(), id).await
        });
        for letters in open?.chunks(BATCH) {
            entry = transact_once!(self, unit => async {
                let withdrawn = unit.withdraw(id, letters).await?;
                match entry {
                    Some(entry) => unit.add_affected(entry, withdrawn).await?,
                    None if withdrawn > 0 => {
                        return unit.note_control(id, Control::Cancel, by, withdrawn).await.map(Some);
                    }
                    None => {}
                }
                Ok(entry)
            })?;
        }
        attempt!(self, conn => load(conn, self.names(), id))?.ok_or_else(|| unknown(id))
    }
}

/// The letters of an operation that may be taken back; those first that somebody could claim.
async fn open(conn: &mut PgConnection, names: &Names, id: OperationId) -> Result<Vec<LetterId>> {
    let query = format!("SELECT i.letter_id FROM {} i WHERE i.operation = ", names.items);
    let query = Query::new(query)
        .bind(id)
        .push(" AND i.outcome IN ('queued', 'released') ORDER BY i.outcome = 'queued', i.idx");
    query.all(conn, |record| Fields::of(record).letter()).await
}

/// Begins to select the queued items from `from` on whose letters match.
fn queued(names: &Names, id: OperationId, filter: &Filter, from: u64) -> Query {
    let (consumers, rest) = by_consumer(filter);
    let Names { items, letters, .. } = names;
    let query = each_consumer(Query::new("SELECT q.idx, q.letter_id FROM "), &consumers);
    let query = query.push(&format!(
        "(SELECT i.idx, i.letter_id FROM {items} i JOIN {letters} t ON t.letter_id = i.letter_id \
         WHERE {}t.item = i.idx AND i.outcome = 'queued' AND i.operation = ",
        of_consumer("i", &consumers)
    ));
    let query = query.bind(id).push(" AND i.idx >= ").bind(values::signed(from));
    query.push(" AND ").filter(&rest)
}

/// So many items that had an outcome are skipped now.
fn skip(outcomes: &mut BTreeMap<ItemOutcome, u64>, before: ItemOutcome, count: u64) {
    let left = outcomes.get(&before).copied().unwrap_or(0).saturating_sub(count);
    outcomes.insert(before, left);
    *outcomes.entry(ItemOutcome::Skipped).or_default() += count;
    outcomes.retain(|_, count| *count > 0);
}
