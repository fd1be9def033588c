//! Letters that were deleted: listed, restored, and forgotten.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::rules::{self, DedupKey};
use dlq_core::store::{ArchiveFilter, Archived, Marked};
use dlq_core::{Cursor, DeadLetter, Order, Status};

use super::each;
use super::maintenance::Entry;
use crate::archive::{ArchivedCopy, key, place};
use crate::{Depth, DocumentKey, DocumentKind, DocumentRange, Needs, Row, Rows, Stop, Verb};

/// Number of names that are looked through in one step.
const NAMES: u32 = 1_000;
/// Number of letters that are read in one step.
const LETTERS: usize = 100;

/// Place at which a call on the archive goes on; `None` at the beginning.
type Next = Option<Cursor>;

/// The names of letters that a filter may select, by their time and id, and the place to go on at.
fn scan(
    rows: &mut Rows,
    after: Next,
    filter: &ArchiveFilter,
    most: usize,
) -> Result<(Vec<DocumentKey>, Next), Stop> {
    let range = DocumentRange {
        kind: DocumentKind::Archived,
        after: after.map(|after| after.to_string()),
        order: Order::NewestFirst,
        limit: NAMES,
    };
    let names = rows.document_names(&range)?;
    let is_full = names.len() >= NAMES as usize;
    let (mut found, mut last) = (Vec::new(), None);
    for name in names {
        // Names of ours only: whoever wrote another by hand is not to hide the rest.
        let Some((at, id)) = place(&name) else { continue };
        if filter.deleted_since.is_some_and(|since| at < since) {
            return Ok((found, None));
        }
        last = Some(Cursor::after(at, id));
        if filter.may_have(at, id) {
            found.push(key(name));
            if found.len() == most {
                return Ok((found, last));
            }
        }
    }
    Ok((found, last.filter(|_| is_full)))
}

/// Lists letters of the archive, the one deleted last first.
#[derive(Debug)]
pub(crate) struct ListArchive {
    pub(crate) filter: Arc<ArchiveFilter>,
    pub(crate) after: Next,
    pub(crate) most: usize,
}

impl Verb for ListArchive {
    type Output = (Vec<Archived>, Next);

    fn needs(&self, _: &mut Needs) {}

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let (keys, next) = scan(rows, self.after, &self.filter, self.most.clamp(1, LETTERS))?;
        let found = each(keys, |key| {
            let Some(text) = rows.glimpse(&key)? else { return Ok(None) };
            // One that a later version wrote in another form is left out, rather than hiding the others.
            let Ok(copy) = ArchivedCopy::read(&key, text) else { return Ok(None) };
            let Some((at, _)) = place(&key.name) else { return Ok(None) };
            Ok(copy.is_selected(&self.filter).then(|| copy.shown(at)))
        })?;
        Ok((found.into_iter().flatten().collect(), next))
    }
}

/// Restores letters from the archive.
#[derive(Debug)]
pub(crate) struct Undelete {
    pub(crate) filter: Arc<ArchiveFilter>,
    pub(crate) after: Next,
    /// The most letters, and about the most bytes, of one step.
    pub(crate) most: usize,
    pub(crate) bytes: u64,
    pub(crate) entry: Entry,
}

/// Letters that one step has restored.
#[derive(Debug)]
pub(crate) struct Undeleted {
    pub(crate) marked: Marked,
    pub(crate) next: Next,
}

impl Verb for Undelete {
    type Output = Undeleted;
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.dedup = true;
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let (keys, mut next) = scan(rows, self.after, &self.filter, self.most.min(LETTERS))?;
        let copies = each(keys, |key| {
            let Some(text) = rows.document(&key)? else { return Ok(None) };
            let copy = ArchivedCopy::read(&key, text)?;
            Ok(copy.is_selected(&self.filter).then_some((key, copy)))
        })?;
        let (mut fitting, mut bytes) = (Vec::new(), 0_u64);
        for (key, copy) in copies.into_iter().flatten() {
            bytes = bytes.saturating_add(copy.bytes);
            if bytes > self.bytes
                && let Some((last, _)) = fitting.last()
            {
                let last: &DocumentKey = last;
                next = place(&last.name).map(|(at, id)| Cursor::after(at, id));
                break;
            }
            fitting.push((key, copy));
        }
        let restored = each(fitting, |(key, copy)| {
            let parts: Vec<_> = copy.parts(&key).collect();
            let letter = copy.whole(&key, rows)?;
            let is_restored = restore(rows, letter)?;
            if is_restored {
                parts.into_iter().for_each(|part| rows.set_document(part, None));
                rows.set_document(key, None);
            }
            Ok(is_restored)
        })?;
        let changed = restored.iter().filter(|is_restored| **is_restored).count() as u64;
        let skipped = restored.len() as u64 - changed;
        self.entry.note(rows, changed);
        Ok(Undeleted { marked: Marked { changed, skipped }, next })
    }
}

/// Writes a letter that was deleted, unless it is there again. Returns false if it is.
fn restore(rows: &mut Rows, letter: DeadLetter) -> Result<bool, Stop> {
    let (id, now) = (letter.id, rows.now());
    // An alias says that it was merged into another letter, under which it is there.
    if rows.letter(id, Depth::Head)?.is_some() || rows.alias(id)?.is_some() {
        return Ok(false);
    }
    let mut letter = rules::restored(letter, now);
    // Or a cleanup of what is old might delete it at once.
    letter.state.updated_at = now;
    let is_record = letter.state.status == Status::Retrying;
    if !is_record
        && rows.is_dedup()?
        && let Some(key) = DedupKey::of(&letter)
        && rows.owner(&key)?.is_some()
    {
        return Ok(false);
    }
    let mut row = Row::new(letter);
    if !is_record {
        rows.take_key(&mut row)?;
    }
    rows.insert(row);
    Ok(true)
}

/// Forgets letters that were deleted long ago, the oldest first.
#[derive(Debug)]
pub(crate) struct EmptyArchive {
    pub(crate) archived_for: Duration,
    pub(crate) entry: Entry,
}

impl Verb for EmptyArchive {
    /// Number of letters, and whether there may be more.
    type Output = (u64, bool);

    fn needs(&self, needs: &mut Needs) {
        needs.ranges.insert(OLDEST);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let latest = rows.now().before(self.archived_for);
        let names = rows.document_names(&OLDEST)?;
        let is_full = names.len() == LETTERS;
        let is_old = |name: &String| place(name).is_none_or(|(at, _)| at <= latest);
        let keys: Vec<_> = names.into_iter().take_while(is_old).map(key).collect();
        let is_more = is_full && keys.len() == LETTERS;
        let forgotten = each(keys, |key| {
            let Some(text) = rows.document(&key)? else { return Ok(false) };
            // Parts are counted in it. Of one that cannot be read there is nothing to restore.
            let parts =
                ArchivedCopy::read(&key, text).map(|copy| copy.parts(&key).collect::<Vec<_>>());
            each(parts.unwrap_or_default(), |part| {
                if rows.document(&part)?.is_some() {
                    rows.set_document(part, None);
                }
                Ok(())
            })?;
            rows.set_document(key, None);
            Ok(true)
        })?;
        let count = forgotten.into_iter().filter(|is_forgotten| *is_forgotten).count() as u64;
        // Most cleanups find nothing here, and an entry for each would only hide the others.
        if count > 0 {
            self.entry.note(rows, count);
        }
        Ok((count, is_more && count > 0))
    }
}

const OLDEST: DocumentRange = DocumentRange {
    kind: DocumentKind::Archived,
    after: None,
    order: Order::OldestFirst,
    limit: LETTERS as u32,
};
