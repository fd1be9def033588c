//! Letters of the same original message that are collapsed into one.

use dlq_core::store::ItemOutcome;
use dlq_core::store::rules::{self, DedupKey};
use dlq_core::{LetterId, Status, Timestamp};

use super::each;
use super::maintenance::Entry;
use super::walk::Walk;
use crate::{Alias, Changed, Depth, Needs, Row, Rows, Stop, Verb};

/// Looks at a page of letters, and says which have an original message that others may have too.
#[derive(Debug)]
pub(crate) struct Survey(pub(crate) Walk);

/// A letter, and when it had last been changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) id: LetterId,
    updated_at: Timestamp,
}

/// Result of a look at a page of letters.
#[derive(Debug)]
pub(crate) struct Surveyed {
    /// Number of letters of the page.
    pub(crate) letters: u64,
    /// The letters that may be collapsed, oldest first.
    pub(crate) found: Vec<(DedupKey, Seen)>,
    pub(crate) next: Option<Walk>,
}

impl Verb for Survey {
    type Output = Surveyed;

    fn needs(&self, needs: &mut Needs) {
        self.0.needs(needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let page = self.0.page(rows)?;
        let letters = page.found.len() as u64;
        let found = each(page.found, |item| {
            let now = rows.now();
            let row = rows.letter(item.letter, Depth::Head)?.filter(|row| is_free(row, now));
            Ok(row.and_then(|row| {
                let seen = Seen { id: item.letter, updated_at: row.letter.state.updated_at };
                Some((DedupKey::of(&row.letter)?, seen))
            }))
        })?;
        Ok(Surveyed { letters, found: found.into_iter().flatten().collect(), next: page.next })
    }
}

/// Letters of one original message.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The newest, which is kept.
    pub(crate) kept: LetterId,
    /// Others, oldest first. One that has changed meanwhile is left alone: it may have taken over a death that the newest
    /// does not know of.
    pub(crate) older: Vec<Seen>,
}

impl Group {
    /// Puts letters in groups of at most `limit` letters, with the newest of its original in each. They come oldest first.
    pub(crate) fn split(mut letters: Vec<Seen>, limit: u64) -> Vec<Self> {
        let Some(Seen { id: kept, .. }) = letters.pop() else { return Vec::new() };
        // A group needs two letters at least, also where a store changes only one in a step.
        let most = usize::try_from(limit.saturating_sub(1)).unwrap_or(usize::MAX).max(1);
        letters.chunks(most).map(|older| Self { kept, older: older.to_vec() }).collect()
    }

    /// Number of letters in it.
    pub(crate) fn len(&self) -> u64 {
        self.older.len() as u64 + 1
    }
}

/// Collapses letters. Keys have been given out before, and whoever writes meanwhile merges.
#[derive(Debug)]
pub(crate) struct Collapse {
    pub(crate) groups: Vec<Group>,
    pub(crate) entry: Entry,
}

impl Verb for Collapse {
    /// Number of letters removed.
    type Output = u64;
    // A second run would find the letters gone and answer that none was removed.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.dedup = true;
        for group in &self.groups {
            // When it was first seen may change, and so is all of it written.
            needs.letter(group.kept, Depth::Whole);
            for seen in &group.older {
                needs.letter(seen.id, Depth::Head);
                needs.aliases_of.insert(seen.id);
            }
        }
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let removed = each(&self.groups, |group| collapse(rows, group))?;
        let removed = removed.into_iter().sum();
        self.entry.note(rows, removed);
        Ok(removed)
    }
}

/// Returns true if the letter may be collapsed: it is not in somebody's hands, and does not wait for a retry.
fn is_free(row: &Row, now: Timestamp) -> bool {
    row.letter.state.status != Status::Retrying && !row.is_held(now)
}

fn collapse(rows: &mut Rows, group: &Group) -> Result<u64, Stop> {
    let now = rows.now();
    // Others may have worked in between.
    let Some(mut row) = rows.take(group.kept, Depth::Whole)? else { return Ok(0) };
    let key = DedupKey::of(&row.letter);
    if key.is_none() || !is_free(&row, now) {
        return Ok(0);
    }
    let merged = each(&group.older, |seen| {
        let Some(gone) = rows.take(seen.id, Depth::Head)? else { return Ok(false) };
        let is_unchanged = gone.letter.state.updated_at == seen.updated_at && is_free(&gone, now);
        let is_same = is_unchanged && DedupKey::of(&gone.letter) == key;
        if is_same {
            merge(rows, &mut row, gone)?;
        }
        Ok(is_same)
    })?;
    let removed = merged.into_iter().filter(|merged| *merged).count() as u64;
    if removed > 0 {
        rows.take_key(&mut row)?;
        rows.update(row, Changed::All);
    }
    Ok(removed)
}

/// Takes `gone` away, and adds what is known of it to `row`.
fn merge(rows: &mut Rows, row: &mut Row, mut gone: Row) -> Result<(), Stop> {
    let (now, kept, id) = (rows.now(), row.letter.id, gone.letter.id);
    rows.end_item(&mut gone, ItemOutcome::Skipped, Some("merged into another letter"))?;
    // Letters that were merged into `gone` now point at the one that is kept. Otherwise their aliases would go with
    // `gone`, and their deaths would be new when they arrive again.
    for (alias, Alias { generation, .. }) in rows.aliases_of(id)? {
        rows.set_alias(alias, Alias { row: kept, generation });
    }
    rows.set_alias(id, Alias { row: kept, generation: gone.letter.generation });
    // The key of `gone` becomes free, and the caller takes it for the letter that is kept.
    rows.remove(&gone);
    // An original that was set aside stays so, whichever of its letters is kept.
    if gone.letter.state.status == Status::Quarantined
        && row.letter.state.status != Status::Quarantined
    {
        let why = Some("merged with a letter that is quarantined");
        rows.end_item(row, ItemOutcome::Skipped, why)?;
        row.void();
        rules::put_back(&mut row.letter, Status::Quarantined, now);
    }
    let (state, other) = (&mut row.letter.state, &gone.letter.state);
    state.seen = state.seen.saturating_add(other.seen);
    state.retry_count = state.retry_count.saturating_add(other.retry_count);
    state.replays = state.replays.saturating_add(other.replays);
    state.created_at = state.created_at.min(other.created_at);
    state.last_retry_at = state.last_retry_at.max(other.last_retry_at);
    state.updated_at = now;
    Ok(())
}
