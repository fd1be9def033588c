//! Letters, and items of operations, that a condition selects.

use std::collections::BTreeSet;

use dlq_core::store::ItemOutcome;
use dlq_core::{Filter, OperationId, Order, Status, Timestamp};
use dlq_letters::{Depth, Older, Row, Select, Selected};
use futures_util::future::try_join_all;
use redis::Value;

use super::Inner;
use super::codec::StoredRow;
use super::fault::Result;
use super::names::{self, Bytes};
use super::scripts::{self, array, bytes, letter, number, parts};
use super::search::{BYTES, LETTERS, Letter, Search, Stroll};
use super::seen::letter_id;

/// Selected rows.
#[derive(Debug, Default)]
pub(super) struct Picked {
    pub(super) selected: Vec<Selected>,
    pub(super) letters: Vec<Letter>,
    pub(super) items: Vec<((OperationId, u64), Option<Bytes>)>,
}

impl Picked {
    fn letters(found: Vec<StoredRow>) -> Self {
        let selected = found.iter().map(|it| Selected { letter: it.row.letter.id, index: 0 });
        let selected = selected.collect();
        let letters = found.into_iter().map(|it| (it.row.letter.id, Some(it))).collect();
        Self { selected, letters, items: Vec::new() }
    }

    /// The first of these items.
    fn items(operation: OperationId, mut found: Vec<Item>, limit: usize) -> Self {
        // The parts are those of several consumers, and an operation releases its letters by their numbers.
        found.sort_by_key(|item| item.index);
        found.truncate(limit);
        let mut picked = Self::default();
        for Item { index, record, letter } in found {
            picked.selected.push(Selected { letter: letter.0, index });
            picked.items.push(((operation, index), record));
            picked.letters.push(letter);
        }
        picked
    }
}

/// An item of an operation, with its letter.
struct Item {
    index: u64,
    record: Option<Bytes>,
    letter: Letter,
}

impl Item {
    /// The row of its letter, unless that is gone or out of the operation.
    fn row(&self, operation: OperationId) -> Option<&Row> {
        let row = &self.letter.1.as_ref()?.row;
        (row.item == Some((operation, self.index))).then_some(row)
    }
}

impl Inner {
    /// Finds what `select` selects. After a call has lost against others it passes over some letters that are due, so that not
    /// all go for the same.
    pub(super) async fn select(
        &self,
        select: &Select,
        depth: Depth,
        now: Option<Timestamp>,
        lost: u32,
    ) -> Result<Picked> {
        let at = now.unwrap_or_default();
        match select {
            Select::Due { filter, limit } => {
                self.due_now(filter, size(*limit), depth, now, lost).await.map(Picked::letters)
            }
            Select::Queued { operation, filter, from, limit } => {
                let parts = self.queued(*operation, &filter.consumers).await?;
                let matches = |item: &Item| {
                    item.row(*operation).is_some_and(|row| plainly_matches(filter, row, item))
                };
                self.items(*operation, parts, *from, size(*limit), depth, matches).await
            }
            Select::Orphans { operation, consumers, limit } => {
                let parts = self.queued(*operation, consumers).await?;
                // Letters that were deleted, or that left the operation, whose items nobody would settle otherwise.
                let is_gone = |item: &Item| item.row(*operation).is_none();
                self.items(*operation, parts, 0, size(*limit), depth, is_gone).await
            }
            Select::Lapsed { operation, limit } => {
                let parts = names::items(*operation, ItemOutcome::Sending, "");
                // Only what a sender had claimed: nobody knows what became of it, so its outbox is asked first.
                let has_lapsed = |item: &Item| {
                    let claim = item.row(*operation).and_then(|row| row.claim.as_ref());
                    claim.is_some_and(|held| held.sender.is_some() && held.until <= at)
                };
                let parts = parts.into_iter().collect();
                self.items(*operation, parts, 0, size(*limit), depth, has_lapsed).await
            }
            Select::Open { operation, limit } => self.open(*operation, *limit, depth, at).await,
            Select::Frozen { spec, after, upto, limit } => {
                let stroll = Stroll { order: spec.order, after: *after, upto: *upto };
                let search = Search::plan(&self.link, &only_pending(&spec.filter)).await?;
                let is_meant =
                    |found: &StoredRow| is_free(&found.row) && is_in(&spec.filter, found);
                search
                    .find(&self.link, stroll, size(*limit), depth, is_meant)
                    .await
                    .map(Picked::letters)
            }
            Select::Eligible { consumer, schedule, limit } => {
                let filter = Filter::new().with_consumer(consumer.clone());
                let search = Search::plan(&self.link, &only_pending(&filter)).await?;
                // What a schedule takes depends on fields that no index has, so each pending letter of the consumer is asked.
                let takes = |found: &StoredRow| schedule.takes(&found.row.letter);
                let stroll = Stroll::all(Order::OldestFirst);
                search
                    .find(&self.link, stroll, size(*limit), depth, takes)
                    .await
                    .map(Picked::letters)
            }
            Select::Matching { filter, older, order, after, upto, limit } => {
                // Where only resolved letters may go, only their part of the index is walked.
                let mut narrow = Filter::clone(filter);
                if older.is_some_and(|older| !older.include_unresolved) {
                    narrow = only(narrow, Status::Resolved);
                }
                let search = Search::plan(&self.link, &narrow).await?;
                let stroll = Stroll { order: *order, after: *after, upto: *upto };
                let is_meant = |found: &StoredRow| {
                    is_in(filter, found) && older.is_none_or(|older| is_older(&found.row, older))
                };
                search
                    .find(&self.link, stroll, size(*limit), depth, is_meant)
                    .await
                    .map(Picked::letters)
            }
        }
    }

    async fn due_now(
        &self,
        filter: &Filter,
        limit: usize,
        depth: Depth,
        now: Option<Timestamp>,
        lost: u32,
    ) -> Result<Vec<StoredRow>> {
        let search = Search::plan_none(filter);
        let is_whole = depth == Depth::Whole;
        let lines = names::lines(&filter.consumers);
        // Without a clock of its own the store takes the server's time, which the script knows without a round trip.
        let now = now.map_or_else(Vec::new, |now| names::ordered(now).to_vec());
        let (mut found, mut after) = (Vec::new(), Vec::new());
        let mut over = if lost == 0 { 0 } else { super::random(u64::from(lost) * 20) };
        while found.len() < limit {
            let mut call = self
                .link
                .call(&scripts::DUE)
                .arg(&now)
                .arg(&after)
                .arg((limit - found.len()).min(LETTERS))
                .arg(over)
                .arg(BYTES)
                .arg(if is_whole { "2" } else { "1" });
            for line in &lines {
                call = call.arg(line);
            }
            let [last, some, more] = parts(self.link.run(&call).await?)?;
            for value in array(some) {
                let Some(it) = letter(value, is_whole)? else { continue };
                if search.matches(&it) {
                    found.push(it);
                }
            }
            let Some(last) = bytes(last).filter(|_| number(more) == 1) else { break };
            // Only the first page passes over some: a claim is to go for other letters than before, and not for none.
            (after, over) = (last, 0);
        }
        Ok(found)
    }

    /// The parts of the index with the queued items of letters of these consumers; of all, if none is named.
    pub(super) async fn queued(
        &self,
        operation: OperationId,
        consumers: &[String],
    ) -> Result<Vec<Bytes>> {
        let link = &self.link;
        let consumers: BTreeSet<String> = if consumers.is_empty() {
            link.field_names(&link.names.consumers(operation)).await?
        } else {
            consumers.iter().cloned().collect()
        };
        let part = |consumer: &String| names::items(operation, ItemOutcome::Queued, consumer);
        Ok(consumers.iter().filter_map(part).collect())
    }

    /// The first items of these parts of the index that are meant.
    async fn items(
        &self,
        operation: OperationId,
        parts: Vec<Bytes>,
        from: u64,
        limit: usize,
        depth: Depth,
        is_meant: impl Fn(&Item) -> bool + Copy + Send + Sync,
    ) -> Result<Picked> {
        let of_part = |part: Bytes| async move {
            let mut found = Vec::new();
            // The number has 20 digits in the index, so that the order of bytes is that of numbers.
            let mut lower = [b"[", &part[..], format!("{from:020}").as_bytes()].concat();
            while found.len() < limit {
                // Some of them are passed over, so that a small limit looks at more than it needs.
                let want = if limit <= LETTERS { limit.max(20) } else { LETTERS };
                let (some, last) =
                    self.some_items(operation, &lower, &names::to(&part), want, depth).await?;
                found.extend(some.into_iter().filter(is_meant));
                let Some(last) = last else { break };
                lower = [b"(", &last[..]].concat();
            }
            Ok::<_, super::fault::Fault>(found)
        };
        let found = try_join_all(parts.into_iter().map(of_part)).await?;
        Ok(Picked::items(operation, found.into_iter().flatten().collect(), limit))
    }

    async fn some_items(
        &self,
        operation: OperationId,
        lower: &[u8],
        upper: &[u8],
        want: usize,
        depth: Depth,
    ) -> Result<(Vec<Item>, Option<Bytes>)> {
        let is_whole = depth == Depth::Whole;
        let call = self.link.call(&scripts::ITEMS).arg(operation.to_string()).arg(lower).arg(upper);
        let call = call.arg(want).arg(BYTES).arg(if is_whole { "2" } else { "1" });
        let [last, some] = parts(self.link.run(&call).await?)?;
        let items = array(some).into_iter().map(|value| item(value, is_whole));
        let items: Vec<_> = items.collect::<Result<_>>()?;
        Ok((items, bytes(last)))
    }

    /// Letters of an operation that nobody runs: released ones, then queued ones.
    async fn open(
        &self,
        operation: OperationId,
        limit: u64,
        depth: Depth,
        now: Timestamp,
    ) -> Result<Picked> {
        let is_idle = |item: &Item| item.row(operation).is_some_and(|row| row.is_idle_replay(now));
        let released = names::items(operation, ItemOutcome::Released, "");
        let released = released.into_iter().collect();
        let mut open = self.items(operation, released, 0, size(limit), depth, is_idle).await?;
        let room = size(limit).saturating_sub(open.selected.len());
        if room > 0 {
            let parts = self.queued(operation, &[]).await?;
            let queued = self.items(operation, parts, 0, room, depth, is_idle).await?;
            open.selected.extend(queued.selected);
            open.letters.extend(queued.letters);
            open.items.extend(queued.items);
        }
        Ok(open)
    }
}

fn item(value: Value, is_whole: bool) -> Result<Item> {
    let [id, index, record, it] = parts(value)?;
    let id = bytes(id).as_deref().and_then(letter_id);
    let id = id.ok_or_else(|| super::fault::Fault::corrupt("item of an operation", "no id"))?;
    Ok(Item { index: number(index), record: bytes(record), letter: (id, letter(it, is_whole)?) })
}

/// Returns true if nobody has claimed the letter, no operation holds it, and it is dead.
pub(super) fn is_free(row: &Row) -> bool {
    row.letter.state.status == Status::Pending && row.letter.state.operation.is_none()
}

fn is_older(row: &Row, older: Older) -> bool {
    let state = &row.letter.state;
    let is_wanted = older.include_unresolved || state.status == Status::Resolved;
    is_wanted && state.updated_at <= older.latest
}

/// The filter, of letters that are pending.
pub(super) fn only_pending(filter: &Filter) -> Filter {
    only(filter.clone(), Status::Pending)
}

/// The filter, of letters of this status, where it allows it. What else it says of statuses is asked afterwards.
fn only(mut filter: Filter, status: Status) -> Filter {
    filter.statuses = vec![status];
    filter
}

/// Returns true if the statuses of the filter allow the letter: all else was asked before.
pub(super) fn is_in(filter: &Filter, found: &StoredRow) -> bool {
    filter.statuses.is_empty() || filter.statuses.contains(&found.row.letter.state.status)
}

/// Returns true if the filter means the letter, whose error a head does not have.
fn plainly_matches(filter: &Filter, row: &Row, item: &Item) -> bool {
    match (&filter.error, &item.letter.1) {
        (None, _) => filter.matches(&row.letter),
        (Some(_), Some(found)) => Search::plan_none(filter).matches(found),
        (Some(_), None) => false,
    }
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
