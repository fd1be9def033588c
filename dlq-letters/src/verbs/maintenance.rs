//! Verbs for operators and maintenance: mark, delete and edit.

use std::collections::BTreeSet;
use std::sync::Arc;

use dlq_core::store::{Actor, Edit, EditError, GroupKey, Hands, ItemOutcome, Mark, Marked, rules};
use dlq_core::{DeadLetter, LetterId, Resolution, Status, StoreError};

use super::each;
use super::operate::grow;
use super::walk::{Page, Walk};
use crate::archive;
use crate::engine::too_large;
use crate::{Changed, Depth, DocumentKey, Limits, Needs, Row, Rows, Selected, Stop, Verb};

/// The entry of a call in the record of what operators did, which its steps make together.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) by: Actor,
    pub(crate) action: &'static str,
    pub(crate) subject: Arc<str>,
    /// Its number, once the first step has made it.
    pub(crate) number: Option<i64>,
}

impl Entry {
    pub(super) fn note(&self, rows: &mut Rows, affected: u64) {
        if self.number.is_some() {
            grow(rows, self.number, affected);
        } else {
            // The call has an entry also where there is nothing to change.
            rows.note_action(&self.by, self.action, self.subject.to_string(), affected, None);
        }
    }
}

/// Letters that one step of a call has changed, and the letters to go on with.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) marked: Marked,
    pub(crate) next: Option<Walk>,
}

/// Marks a page of letters.
#[derive(Debug)]
pub(crate) struct MarkPage {
    pub(crate) walk: Walk,
    pub(crate) mark: Mark,
    pub(crate) entry: Entry,
}

impl Verb for MarkPage {
    type Output = Step;
    // A second run would find the letters marked, count none, and make another entry in the audit.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        self.walk.needs(needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let page = self.walk.page(rows)?;
        step(rows, page, &self.entry, |rows, row| mark(rows, row, self.mark))
    }
}

/// Deletes a page of letters.
#[derive(Debug)]
pub(crate) struct DeletePage {
    pub(crate) walk: Walk,
    /// Told to the operations that hold the letters.
    pub(crate) why: &'static str,
    /// The most bytes of letters that are copied to the archive in one step; `None` to keep no copy.
    pub(crate) archive: Option<u64>,
    pub(crate) entry: Entry,
}

impl Verb for DeletePage {
    type Output = Step;
    // A second run would find the letters gone, count none, and make another entry in the audit.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        self.walk.needs(needs);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let mut page = self.walk.page(rows)?;
        if let Some(bytes) = self.archive {
            let count = whole(rows, &page.found, bytes)?;
            page = page.cut(&self.walk, rows, count)?;
            load_groups(rows, &page.found)?;
        }
        step(rows, page, &self.entry, |rows, mut row| {
            rows.end_item(&mut row, ItemOutcome::Skipped, Some(self.why))?;
            if self.archive.is_some() {
                archive::write(rows, &row.letter, &self.entry.by);
            }
            rows.remove(&row);
            Ok(true)
        })
    }
}

/// Makes sure that the records of the groups that these letters leave are loaded. They are asked for at the end of a call
/// anyway, when all letters have been made into text, which would be done again.
fn load_groups(rows: &mut Rows, found: &[Selected]) -> Result<(), Stop> {
    let mut groups = BTreeSet::new();
    for item in found {
        let Some(row) = rows.letter(item.letter, Depth::Head)? else { continue };
        if !row.is_record() {
            groups.insert(GroupKey::new(row.letter.consumer.clone(), row.letter.fingerprint));
        }
    }
    each(groups, |group| rows.document(&DocumentKey::group(&group)).map(drop)).map(drop)
}

/// Makes sure that the first of these letters, which are loaded as heads, are whole. Returns how many are, of which together
/// have at most `bytes`, and at least one.
fn whole(rows: &mut Rows, found: &[Selected], bytes: u64) -> Result<usize, Stop> {
    /// Number of letters whose size says about how many others fit.
    const SAMPLE: u64 = 16;
    let (mut count, mut sum) = (0, 0_u64);
    while count < found.len() && (sum < bytes || count == 0) {
        // Nothing is known of the size of a letter before it is here, and a page of large ones would not fit in memory. Those
        // that come next are taken for as large as those before, but of many at once not all.
        let before = count as u64;
        let fit = (bytes - sum).saturating_mul(before).checked_div(sum).unwrap_or(SAMPLE);
        let fit = usize::try_from(fit.clamp(1, before * 8 + SAMPLE)).unwrap_or(usize::MAX);
        let end = count.saturating_add(fit);
        let sizes = each(&found[count..end.min(found.len())], |item| {
            Ok(rows.letter(item.letter, Depth::Whole)?.map_or(0, |row| Limits::size(&row.letter)))
        })?;
        for size in sizes {
            sum = sum.saturating_add(size);
            if sum > bytes && count > 0 {
                return Ok(count);
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Changes those letters of a page that nobody holds. `change` returns true if it changed something.
fn step(
    rows: &mut Rows,
    page: Page,
    entry: &Entry,
    change: impl Fn(&mut Rows, Row) -> Result<bool, Stop>,
) -> Result<Step, Stop> {
    let now = rows.now();
    let mut marked = Marked::default();
    each(page.found, |item| {
        let Some(row) = rows.take(item.letter, Depth::Head)? else { return Ok(()) };
        // A change would void the claim, and the outcome of the run or of the send would be lost.
        if row.is_held(now) {
            marked.skipped += 1;
        } else if change(rows, row)? {
            marked.changed += 1;
        }
        Ok(())
    })?;
    entry.note(rows, marked.changed);
    Ok(Step { marked, next: page.next })
}

fn mark(rows: &mut Rows, mut row: Row, mark: Mark) -> Result<bool, Stop> {
    if row.is_so(mark) {
        return Ok(false);
    }
    let why = match mark {
        Mark::Pending => "put back by an operator",
        Mark::Resolved => "resolved by an operator",
        _ => "quarantined by an operator",
    };
    rows.end_item(&mut row, ItemOutcome::Skipped, Some(why))?;
    row.void();
    let (letter, now) = (&mut row.letter, rows.now());
    match mark {
        Mark::Resolved => rules::resolve(letter, Resolution::Dismissed, now),
        Mark::Pending => {
            rules::put_back(letter, Status::Pending, now);
            // The cap on replays starts over, or a letter that has reached it could never be sent again (G7).
            letter.state.replays = 0;
        }
        _ => rules::put_back(letter, Status::Quarantined, now),
    }
    rows.update(row, Changed::State);
    Ok(true)
}

/// Edits a letter.
#[derive(Debug)]
pub(crate) struct EditLetter {
    pub(crate) id: LetterId,
    pub(crate) edit: Edit,
    pub(crate) by: Actor,
    pub(crate) limits: Limits,
}

impl EditLetter {
    pub(crate) const DURING: &str = "edit the letter";
}

impl Verb for EditLetter {
    type Output = DeadLetter;
    // A second run would be another edit, with an entry of its own in the audit.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.letter(self.id, Depth::Whole);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let refused = |error: EditError| {
            StoreError::new(error.kind(), Self::DURING).with_detail(error.to_string())
        };
        let now = rows.now();
        let Some(mut row) = rows.take(self.id, Depth::Whole)? else {
            return Err(refused(EditError::Unknown(self.id)).into());
        };
        let hands = Hands { is_held: row.is_held(now), is_record: row.is_record() };
        let amended = self.edit.amend(&mut row.letter, hands, now).map_err(refused)?;
        // Until `update` nothing is written, so a refusal leaves the letter as it was.
        if Limits::size(&row.letter) > self.limits.largest {
            return Err(too_large(&row.letter, self.limits, Self::DURING).into());
        }
        let affected = u64::from(amended.is_changed);
        rows.note_action(&self.by, "edit", amended.subject, affected, None);
        let letter = row.letter.clone();
        if amended.is_changed {
            // A claim whose lease has ended must not record the end of a run that had the former bytes.
            row.void();
            rows.update(row, Changed::All);
        }
        Ok(letter)
    }
}
