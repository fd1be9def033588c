//! Writing of a verb's changes.

use dlq_core::Timestamp;
use dlq_core::store::AuditEntry;

use super::campaign::Campaign;
use super::load::Seen;
use super::world::World;
use crate::{Changed, DocumentChange, Note, Row, Rows};

impl World {
    /// Returns true if something that was looked at is different now.
    pub(super) fn is_outdated(&self, seen: &Seen, rows: &Rows) -> bool {
        // Counts of an operation are increments. Who steers it, or releases its letters, must have read it as it is.
        let is_outdated = |id| {
            let before = seen.operations.get(&id);
            before
                .is_some_and(|before| self.campaign(id).map(|campaign| campaign.version) != *before)
        };
        // Selections are not compared: the letters that they named are, and those that they missed can come with a later call.
        let version = |id| self.rows.get(id).map(|row| row.tag);
        let operations = rows.operations().any(|(id, _)| is_outdated(id));
        operations
            || seen.letters.iter().any(|(id, before)| version(id) != *before)
            || seen.items.iter().any(|((id, index), before)| self.outcome(*id, *index) != *before)
            || seen.owners.iter().any(|(key, before)| self.keys.get(key).copied() != *before)
            || seen.aliases.iter().any(|(id, before)| self.aliases.get(id).copied() != *before)
            || seen.aliases_of.iter().any(|(id, before)| self.aliases_of(*id) != *before)
            || seen.schedules.iter().any(|(of, before)| self.schedules.get(of) != before.as_ref())
            || seen.documents.iter().any(|(key, before)| self.documents.get(key) != before.as_ref())
            || seen.dedup.is_some_and(|before| self.dedup != before)
            || seen.operation_number.is_some_and(|before| self.campaigns.len() as u64 != before)
    }

    /// Writes the changes. Returns the number of the last new entry in the audit.
    pub(super) fn commit(&mut self, rows: &Rows) -> Option<i64> {
        let now = rows.now();
        // All are taken out first: a key may go from one to another.
        let changes: Vec<_> = rows.letters().map(|change| (self.take(change.id), change)).collect();
        for (before, change) in changes {
            match change.after {
                Some(after) => self.insert(merged(before, after, change.changed)),
                None => self.remove_aliases_of(change.id),
            }
        }
        // Aliases are set after rows were removed, since a removal takes the aliases that point at its row with it.
        for (id, alias) in rows.aliases() {
            self.set_alias(id, alias);
        }
        for operation in rows.started() {
            self.campaign_index.insert(operation.id, self.campaigns.len());
            self.campaigns.push(Campaign::new(operation.clone()));
        }
        for (id, index, change) in rows.items() {
            if let Some(number) = self.campaign_index.get(&id) {
                self.campaigns[*number].change_item(index, change);
            }
        }
        for (id, change) in rows.operations() {
            if let Some(number) = self.campaign_index.get(&id) {
                let campaign = &mut self.campaigns[*number];
                change.apply(&mut campaign.operation, now);
                campaign.version += 1;
            }
        }
        for consumer in rows.schedules() {
            self.schedules.insert(consumer.to_owned(), now);
        }
        for DocumentChange { key, after, .. } in rows.changed_documents() {
            match after {
                Some(text) => self.documents.insert(key.clone(), text.to_owned()),
                None => self.documents.remove(key),
            };
        }
        self.note(rows.notes())
    }

    fn note(&mut self, notes: &[Note]) -> Option<i64> {
        let mut last = None;
        for note in notes {
            match note {
                Note::New(entry) => {
                    // `Grow` finds the entry by its place in the list. The number that people see is one higher.
                    last = i64::try_from(self.audit.len()).ok();
                    let number = self.audit.len() as u64 + 1;
                    self.audit.push(AuditEntry { number, ..entry.clone() });
                }
                Note::Grow { entry, by } => {
                    let entry = usize::try_from(*entry).ok().and_then(|at| self.audit.get_mut(at));
                    if let Some(entry) = entry {
                        entry.affected += by;
                    }
                }
            }
        }
        last
    }
}

/// Writes the columns that have changed, and no others. A row that was loaded as a [head](crate::Depth::Head) lacks payload, key,
/// headers and history, and writing those would erase them.
fn merged(before: Option<Row>, after: &Row, changed: Changed) -> Row {
    let Some(mut row) = before.filter(|_| changed != Changed::All) else { return after.clone() };
    row.fence = after.fence;
    row.claim.clone_from(&after.claim);
    row.finished = after.finished;
    row.lapses = after.lapses;
    row.item = after.item;
    row.key.clone_from(&after.key);
    let (letter, from) = (&mut row.letter, &after.letter);
    letter.reason = from.reason;
    let since: Timestamp = letter.state.created_at;
    debug_assert_eq!(since, from.state.created_at, "it changes with everything else only");
    // Former bytes change only together with the message, which is written with everything.
    let edited_from = std::mem::take(&mut letter.state.edited_from);
    letter.state.clone_from(&from.state);
    letter.state.edited_from = edited_from;
    if changed == Changed::Run {
        letter.generation = from.generation;
        letter.cause = from.cause;
        letter.class = from.class;
        letter.fingerprint = from.fingerprint;
        letter.attempts = from.attempts;
        letter.crashes = from.crashes;
        letter.delayed_retries = from.delayed_retries;
        letter.died_at = from.died_at;
        letter.history.clone_from(&from.history);
    }
    row
}
