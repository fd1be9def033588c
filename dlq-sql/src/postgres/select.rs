//! Conditions that select letters, and items of operations.
//!
//! Two kinds. Those that pass over what others have locked lock what they find in their own order, and never wait. The
//! others find candidates first, and lock them in the order of ids afterwards, as everybody does who waits: what does not
//! meet the condition any more is left out then, and candidates that follow take its place.

use dlq_core::store::{OperationSpec, Schedule};
use dlq_core::{Cursor, ErrorClass, Filter, LetterId, OperationId, Order, Timestamp};
use dlq_letters::{Depth, Older, Row, Select, Selected};

use super::claims::{by_consumer, each_consumer, of_consumer};
use super::codec::{Fields, read_row};
use super::filter::same;
use super::names::Names;
use super::query::Query;
use super::step::Step;
use crate::error::Result;
use crate::values::{self, Take as _};

/// Letters or items that were selected, and the rows of those that were read with them.
pub(super) struct SelectedRows {
    pub(super) selected: Vec<Selected>,
    /// The rows, where they were locked and read already.
    pub(super) rows: Option<Vec<Row>>,
}

impl Step<'_> {
    /// Finds what a condition selects.
    pub(super) async fn select(&mut self, select: &Select, depth: Depth) -> Result<SelectedRows> {
        let (names, now) = (self.names(), self.now());
        let selected = match select {
            Select::Due { filter, limit } => {
                self.selected(due(Query::default(), names, filter, *limit, now), false).await?
            }
            Select::Queued { operation, filter, from, limit } => {
                let (consumers, rest) = by_consumer(filter);
                let query = queued(names, *operation, &consumers, &rest, *from);
                let query = query.push(" ORDER BY i.idx LIMIT ").bind(most(*limit));
                let query = query.push(" FOR UPDATE OF t SKIP LOCKED) q ORDER BY q.idx LIMIT ");
                self.selected(query.bind(most(*limit)), true).await?
            }
            // Letters that others have locked are found next time: looking through many of them would hold up every claim.
            Select::Orphans { operation, consumers, .. }
                if self.has_queued(*operation, consumers).await? =>
            {
                Vec::new()
            }
            Select::Orphans { operation, consumers, limit } => {
                self.selected(orphans(names, *operation, consumers, *limit), true).await?
            }
            Select::Eligible { consumer, schedule, limit } => {
                self.selected(eligible(names, consumer, schedule, *limit), false).await?
            }
            Select::Lapsed { operation, limit } => {
                self.selected(lapsed(names, *operation, *limit, now), true).await?
            }
            Select::Open { operation, limit } => return self.open(*operation, *limit, depth).await,
            Select::Frozen { spec, after, upto, limit } => {
                let condition = Condition::Frozen(spec);
                let walk = Walk { condition, order: spec.order, upto: *upto };
                return self.walk(&walk, *after, *limit, depth).await;
            }
            Select::Matching { filter, older, order, after, upto, limit } => {
                let condition = Condition::Matching(filter, *older);
                let walk = Walk { condition, order: *order, upto: *upto };
                return self.walk(&walk, *after, *limit, depth).await;
            }
        };
        Ok(SelectedRows { selected, rows: None })
    }

    /// Returns true if an operation has a queued item with a letter of these consumers, also one that is locked.
    async fn has_queued(&mut self, id: OperationId, consumers: &[String]) -> Result<bool> {
        let filter = Filter::new();
        let mut consumers = consumers.to_vec();
        consumers.sort_unstable();
        consumers.dedup();
        let query = queued(self.names(), id, &consumers, &filter, 0).push(" LIMIT 1) q LIMIT 1");
        Ok(query.first(self.conn(), |_| Ok(())).await?.is_some())
    }

    async fn selected(&mut self, query: Query, with_index: bool) -> Result<Vec<Selected>> {
        query
            .all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                let letter = fields.letter()?;
                let index = if with_index { fields.unsigned()? } else { 0 };
                Ok(Selected { letter, index })
            })
            .await
    }

    /// Locks those of these letters that meet a condition, in the order of their ids, and reads them.
    async fn lock(
        &mut self,
        ids: Vec<LetterId>,
        condition: Query,
        depth: Depth,
    ) -> Result<Vec<Row>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let is_whole = depth == Depth::Whole;
        let names = self.names();
        let select = if is_whole { &names.select_whole } else { &names.select_head };
        let query =
            condition.before_it(&format!("{select} WHERE ")).push(" AND t.letter_id = ANY(");
        let query = query.bind(ids).push(") ORDER BY t.letter_id FOR UPDATE");
        query.all(self.conn(), |record| read_row(record, is_whole)).await
    }

    async fn walk(
        &mut self,
        walk: &Walk<'_>,
        mut after: Option<Cursor>,
        limit: u64,
        depth: Depth,
    ) -> Result<SelectedRows> {
        let (mut selected, mut rows) = (Vec::new(), Vec::new());
        loop {
            let wanted = limit - selected.len() as u64;
            let query = walk.candidates(self.names(), after, wanted);
            let candidates = query.all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                Ok(Cursor::after(fields.time()?, fields.letter()?))
            });
            let candidates = candidates.await?;
            let Some(last) = candidates.last() else { break };
            after = Some(*last);
            let ids = candidates.iter().map(|candidate| candidate.id).collect();
            // The condition is tested again under the lock, since candidates may have changed while it was waited for.
            let locked = self.lock(ids, walk.condition.of(Query::default()), depth).await?;
            let is_locked =
                |id: &LetterId| locked.binary_search_by_key(id, |row: &Row| row.letter.id).is_ok();
            let kept = candidates.iter().map(|candidate| candidate.id).filter(is_locked);
            selected.extend(kept.map(|letter| Selected { letter, index: 0 }));
            rows.extend(locked);
            // Fewer candidates than were asked for are the last ones there are.
            if (candidates.len() as u64) < wanted || selected.len() as u64 >= limit {
                break;
            }
        }
        Ok(SelectedRows { selected, rows: Some(rows) })
    }

    /// Letters that were released are found by when they can be claimed, the others by their items.
    async fn open(&mut self, id: OperationId, limit: u64, depth: Depth) -> Result<SelectedRows> {
        let Names { letters, items, .. } = self.names();
        let now = self.now();
        let idle = |query: Query| {
            let query = query.push("t.operation = ").bind(id);
            let query = query.push(
                " AND (t.status = 'pending' OR (t.claim_former = 'pending' AND t.claim_until <= ",
            );
            query.bind(now).push("))")
        };
        loop {
            let released =
                Query::new(format!("SELECT t.letter_id, t.item FROM {letters} t WHERE "));
            let released =
                idle(released).push(" AND t.available_at IS NOT NULL ORDER BY t.item LIMIT ");
            let mut selected = self.selected(released.bind(most(limit)), true).await?;
            let wanted = limit.saturating_sub(selected.len() as u64);
            if wanted > 0 {
                // In the order of the index of those that are queued, which is that of the items for each consumer.
                let queued = Query::new(format!(
                    "SELECT i.letter_id, i.idx FROM {items} i JOIN {letters} t \
                     ON t.letter_id = i.letter_id AND t.item = i.idx \
                     WHERE i.outcome = 'queued' AND i.operation = "
                ));
                let queued = idle(queued.bind(id).push(" AND ")).push(
                    " AND t.available_at IS NULL ORDER BY left(i.consumer, 400), i.idx LIMIT ",
                );
                selected.extend(self.selected(queued.bind(most(wanted)), true).await?);
            }
            let ids: Vec<_> = selected.iter().map(|selected| selected.letter).collect();
            let candidates = selected.len();
            let rows = self.lock(ids, idle(Query::default()), depth).await?;
            selected
                .retain(|one| rows.binary_search_by_key(&one.letter, |row| row.letter.id).is_ok());
            // Those that were lost to others have left room.
            if selected.len() == candidates {
                return Ok(SelectedRows { selected, rows: Some(rows) });
            }
        }
    }
}

/// A walk over letters in the order of when they were stored.
struct Walk<'s> {
    condition: Condition<'s>,
    order: Order,
    upto: Option<Cursor>,
}

/// The condition on letters `t` of a walk.
enum Condition<'s> {
    Frozen(&'s OperationSpec),
    Matching(&'s Filter, Option<Older>),
}

impl Condition<'_> {
    fn of(&self, query: Query) -> Query {
        match self {
            Self::Frozen(spec) => {
                query.push("t.status = 'pending' AND t.operation IS NULL AND ").filter(&spec.filter)
            }
            Self::Matching(filter, None) => query.filter(filter),
            Self::Matching(filter, Some(older)) => {
                let query = query.filter(filter).push(" AND t.updated_at <= ").bind(older.latest);
                if older.include_unresolved {
                    query
                } else {
                    query.push(" AND t.status = 'resolved'")
                }
            }
        }
    }
}

impl Walk<'_> {
    fn candidates(&self, names: &Names, after: Option<Cursor>, limit: u64) -> Query {
        let query = format!("SELECT t.created_at, t.letter_id FROM {} t WHERE ", names.letters);
        let mut query = self.condition.of(Query::new(query));
        let (later, not_later, direction) = match self.order {
            Order::OldestFirst => (">", "<=", ""),
            Order::NewestFirst => ("<", ">=", " DESC"),
        };
        for (sign, bound) in [(later, after), (not_later, self.upto)] {
            if let Some(bound) = bound {
                query = query.push(&format!(" AND (t.created_at, t.letter_id) {sign} ("));
                query = query.bind(bound.created_at).push(", ").bind(bound.id).push(")");
            }
        }
        let order = format!(" ORDER BY t.created_at{direction}, t.letter_id{direction} LIMIT ");
        query.push(&order).bind(most(limit))
    }
}

fn most(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Adds a statement that locks the letters that can be claimed at `now`, first come first, at most `limit`. For named
/// consumers each is looked up in the index of its own, so that some more may be locked for a moment.
fn due(query: Query, names: &Names, filter: &Filter, limit: u64, now: Timestamp) -> Query {
    let (consumers, rest) = by_consumer(filter);
    let query = each_consumer(query.push("SELECT d.letter_id FROM "), &consumers).push(&format!(
        "(SELECT t.letter_id, t.available_at, t.created_at FROM {} t WHERE {}t.available_at <= ",
        names.letters,
        of_consumer("t", &consumers)
    ));
    let query = query.bind(now).push(" AND ").filter(&rest);
    let query = query.push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ");
    let query = query.bind(most(limit)).push(" FOR UPDATE SKIP LOCKED) d");
    query.push(" ORDER BY d.available_at, d.created_at, d.letter_id LIMIT ").bind(most(limit))
}

/// Begins to select the queued items from `from` on whose letters match, of these consumers.
fn queued(names: &Names, id: OperationId, consumers: &[String], rest: &Filter, from: u64) -> Query {
    let Names { items, letters, .. } = names;
    let query = each_consumer(Query::new("SELECT q.letter_id, q.idx FROM "), consumers);
    let query = query.push(&format!(
        "(SELECT i.idx, i.letter_id FROM {items} i JOIN {letters} t ON t.letter_id = i.letter_id \
         WHERE {}t.item = i.idx AND i.outcome = 'queued' AND i.operation = ",
        of_consumer("i", consumers)
    ));
    let query = query.bind(id).push(" AND i.idx >= ").bind(values::signed(from));
    query.push(" AND ").filter(rest)
}

/// Locks the letters of an operation that are on their way to a broker and whose lease has ended, in the frozen order.
fn lapsed(names: &Names, id: OperationId, limit: u64, now: Timestamp) -> Query {
    let query = Query::new(format!(
        "SELECT t.letter_id, t.item FROM {} t WHERE t.claim_sender IS NOT NULL AND t.claim_until <= ",
        names.letters
    ));
    let query = query.bind(now).push(" AND t.operation = ").bind(id);
    query.push(" ORDER BY t.item LIMIT ").bind(most(limit)).push(" FOR UPDATE SKIP LOCKED")
}

/// Finds queued items whose letters nobody will find: they were deleted, or taken out of the operation, by hand.
fn orphans(names: &Names, id: OperationId, consumers: &[String], limit: u64) -> Query {
    let Names { items, letters, .. } = names;
    let mut consumers = consumers.to_vec();
    consumers.sort_unstable();
    consumers.dedup();
    let query = each_consumer(Query::new("SELECT q.letter_id, q.idx FROM "), &consumers);
    let query = query.push(&format!(
        "(SELECT i.idx, i.letter_id FROM {items} i WHERE {}i.outcome = 'queued' AND NOT EXISTS \
         (SELECT FROM {letters} t WHERE t.letter_id = i.letter_id AND t.operation = i.operation AND t.item = i.idx) \
         AND i.operation = ",
        of_consumer("i", &consumers)
    ));
    query.bind(id).push(" LIMIT ").bind(most(limit)).push(") q LIMIT ").bind(most(limit))
}

/// Finds the oldest letters that a run may send back. The schedule itself says which, once they are locked.
fn eligible(names: &Names, consumer: &str, schedule: &Schedule, limit: u64) -> Query {
    let query = Query::new(format!("SELECT t.letter_id FROM {} t, (SELECT ", names.letters));
    let mut query = query
        .bind(consumer)
        .push(&format!(" AS name) c WHERE {}", same("t.consumer", "c.name")))
        // A death that is only suspected waits for a human, and a letter with a time to retry at is due by itself.
        .push(" AND t.status = 'pending' AND t.confirmed AND t.retry_after IS NULL")
        .push(" AND t.operation IS NULL AND t.retry_count < ")
        .bind(schedule.max_retries);
    if !schedule.all_classes {
        query = query.push(" AND t.class = ").bind(ErrorClass::Transient.as_str());
    }
    query.push(" ORDER BY t.created_at, t.letter_id LIMIT ").bind(most(limit))
}
