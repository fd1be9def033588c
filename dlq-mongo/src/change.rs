//! Changes of a verb, as updates of documents.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::{AuditEntry, Operation};
use dlq_core::{OperationId, Timestamp};
use dlq_letters::{
    Changed, DocumentChange, ItemChange, LetterChange, Note, OperationChange, Row, Rows,
};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;

use crate::codec::{self, Change, count, number, time};
use crate::commit::{Locked, Steps};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::keys;
use crate::load::Seen;
use crate::parts::Reference;

/// The changes of a verb.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) steps: Steps,
    /// The number of the last new entry of the audit.
    pub(crate) note: Option<i64>,
    /// Operations of which items have changed.
    pub(crate) operations: BTreeSet<OperationId>,
    /// Pieces that nothing refers to once this is written.
    pub(crate) replaced: Vec<Reference>,
}

impl Db {
    /// Says what is to be written. `None` if a fencing token was given out that the letter has had.
    pub(crate) async fn written(&self, rows: &Rows, seen: &Seen) -> Result<Option<Written>> {
        // Versions of new documents come from the server's clock, also where the store was given another one: that may
        // stand still, and a version has to grow.
        let at = self.server_now().await?;
        let mut steps = Steps::default();
        let mut replaced = Vec::new();
        let mut versions = BTreeMap::new();
        let given_up: BTreeSet<_> = rows
            .letters()
            .filter_map(|change| {
                let former = change.before?.key.as_ref()?;
                let kept = change.after.and_then(|row| row.key.as_ref());
                (kept != Some(former)).then_some(former)
            })
            .collect();
        for change in rows.letters() {
            if let (Some(before), Some(after)) = (change.before, change.after)
                // A token that was reserved before the letter was read may be lower than one that it has had, and would
                // fence nobody off (G6).
                && after.fence < before.fence
            {
                return Ok(None);
            }
            let mut locked = self.letter(&change, at).await?;
            let key = change.after.and_then(|row| row.key.as_ref());
            let former = change.before.and_then(|row| row.key.as_ref());
            if let Some(key) = key.filter(|key| former != Some(*key) && !given_up.contains(*key)) {
                let former = former.map(|key| keys::binary(key.to_bytes()));
                // Taken while it is locked, so that the unique index can still refuse it. A key that another letter of
                // this commit gives up is written when it is applied.
                locked.takes = Some((keys::binary(key.to_bytes()), former));
            }
            let version = locked.expected.map_or(locked.first, |expected| expected + 1);
            let items = [change.before, change.after].into_iter().flatten();
            // An item is only changed where it has a lower version, so that a commit that is applied late overwrites
            // nothing newer.
            versions.extend(items.filter_map(|row| row.item).map(|item| (item, version)));
            if change.changed >= Changed::Run || change.after.is_none() {
                let kept = |it: &&Reference| {
                    // A failed run leaves the message as it is, and its pieces with it.
                    change.changed == Changed::Run
                        && change.after.is_some()
                        && seen.messages.get(&change.id) == Some(*it)
                };
                let parts = seen.parts.get(&change.id).into_iter().flatten();
                replaced.extend(parts.filter(|it| !kept(it)).copied());
            }
            if change.after.is_none() {
                // Aliases go with their letter, or deaths that were merged into it would be taken for known when they
                // come again (G2).
                let of_it = doc! { "q": { "row": keys::letter(change.id) }, "limit": 0_i32 };
                steps.plain.push((Coll::Aliases, of_it));
            }
            steps.locked.push(locked);
        }
        for (operation, index, change) in rows.items() {
            let version = versions.get(&(operation, index)).copied();
            steps.plain.push((Coll::Items, item(operation, index, change, version)));
        }
        for (id, alias) in rows.aliases() {
            let set =
                doc! { "row": keys::letter(alias.row), "generation": count(alias.generation) };
            let put =
                doc! { "q": { "_id": keys::letter(id) }, "u": { "$set": set }, "upsert": true };
            steps.plain.push((Coll::Aliases, put));
        }
        let changes: BTreeMap<_, _> = rows.operations().collect();
        for operation in rows.started() {
            let number = seen.operation_number.unwrap_or_default();
            let state = changes.get(&operation.id).and_then(|change| change.state);
            steps.locked.push(started(operation, number, state.unwrap_or(operation.state), at)?);
        }
        for (id, change) in &changes {
            // Only an operation that the verb has read is locked. Calls that end its letters leave its version alone,
            // and so do not collide with each other.
            if let Some(Some(version)) = seen.operations.get(id) {
                steps.locked.push(steered(*id, *version, change)?);
            }
            // It never goes back, since the commit may be applied late, and twice.
            let touched = doc! { "$max": { "updated": time(rows.now()) } };
            let q = doc! { "_id": keys::operation(*id) };
            steps.plain.push((Coll::Operations, doc! { "q": q, "u": touched }));
        }
        for consumer in rows.schedules() {
            let known = seen.schedules.get(consumer).copied().flatten();
            steps.locked.push(Locked {
                coll: Coll::Schedules,
                id: consumer.into(),
                expected: known,
                first: at.as_nanos() / 1_000,
                set: doc! { "last": time(rows.now()) },
                unset: Document::new(),
                is_removed: false,
                takes: None,
            });
        }
        for DocumentChange { key, after, .. } in rows.changed_documents() {
            let mut set = Document::new();
            if let Some(text) = after {
                set = doc! { "kind": key.kind.as_str(), "name": key.name.as_str(), "text": text };
            }
            steps.locked.push(Locked {
                coll: Coll::Documents,
                id: key.to_string().into(),
                expected: seen.documents.get(key).copied().flatten(),
                first: at.as_nanos() / 1_000,
                set,
                unset: Document::new(),
                is_removed: after.is_none(),
                takes: None,
            });
        }
        let note = self.notes(rows.notes(), &mut steps).await?;
        let operations = changes.into_keys().collect();
        Ok(Some(Written { steps, note, operations, replaced }))
    }

    async fn letter(&self, change: &LetterChange<'_>, at: Timestamp) -> Result<Locked> {
        let mut locked = Locked {
            coll: Coll::Letters,
            id: keys::letter(change.id),
            expected: change.before.map(|row| row.tag),
            // Greater than any version that a letter of this id may have had before it was deleted.
            first: at.as_nanos() / 1_000,
            set: Document::new(),
            unset: Document::new(),
            is_removed: change.after.is_none(),
            takes: None,
        };
        if let Some(row) = change.after {
            let fields = self.fields(row, change.changed, change.before.is_none(), at).await?;
            (locked.set, locked.unset) = (fields.set, fields.unset);
        }
        Ok(locked)
    }

    /// The fields of a letter that are to be written.
    pub(crate) async fn fields(
        &self,
        row: &Row,
        changed: Changed,
        is_new: bool,
        at: Timestamp,
    ) -> Result<Change> {
        let mut change = Change::default();
        codec::put_state(row, &mut change);
        if changed >= Changed::Run {
            codec::put_run(&row.letter, &mut change);
            self.put_history(row, at, &mut change).await?;
        }
        if changed == Changed::All {
            codec::put_body(&row.letter, &mut change);
            self.put_message(row, at, &mut change).await?;
        }
        if is_new {
            // Greater than any token that was given out for a letter of this id before it was deleted.
            let base = at.as_nanos() / 1_000;
            change.set.insert("fence", base.max(row.fence.cast_signed()));
        }
        Ok(change)
    }

    /// Numbers new entries of the audit, and returns the last number.
    async fn notes(&self, notes: &[Note], steps: &mut Steps) -> Result<Option<i64>> {
        let mut last = None;
        for note in notes {
            match note {
                Note::New(entry) => {
                    // An entry has its number before the commit, which may be applied twice, so that it is written once.
                    let number = self.next_number("audit").await?;
                    last = Some(number);
                    let put = doc! {
                        "q": { "_id": number },
                        "u": { "$setOnInsert": audit(entry) },
                        "upsert": true,
                    };
                    steps.plain.push((Coll::Audit, put));
                }
                Note::Grow { entry, by } => {
                    let found = self.find_one(Coll::Audit, doc! { "_id": *entry }).await?;
                    let before = found.and_then(|found| number(&found, "affected")).unwrap_or(0);
                    let grown = before.saturating_add_unsigned(*by);
                    let grow = doc! {
                        "q": { "_id": *entry },
                        // `$max` and not `$inc`, since the commit may be applied twice.
                        "u": { "$max": { "affected": grown } },
                    };
                    steps.plain.push((Coll::Audit, grow));
                }
            }
        }
        Ok(last)
    }

    /// The next of a row of numbers. One may be left out.
    async fn next_number(&self, of: &str) -> Result<i64> {
        let increment = doc! { "$inc": { "n": 1_i64 } };
        let found =
            self.find_and_modify(Coll::Meta, doc! { "_id": of }, increment, true, true).await?;
        let found = found.and_then(|found| number(&found, "n"));
        found.ok_or_else(|| Fault::corrupt("row of numbers", &"it has no number"))
    }

    /// Writes the state that follows from the counts of operations, where it is another than what is stored.
    pub(crate) async fn settle(
        &self,
        operations: &BTreeSet<OperationId>,
        now: Timestamp,
    ) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = operations.iter().map(|id| keys::operation(*id)).collect();
        let filter = doc! { "_id": { "$in": ids }, "lock": { "$exists": false } };
        for found in self.find_operations(filter, FindOptions::default()).await? {
            // Counts are those of the items, and no commit writes them: the state that follows is written afterwards, by
            // whoever comes first.
            let state = found.operation.advance(now, 0).state;
            if state == found.operation.state {
                continue;
            }
            let update = doc! {
                "q": {
                    "_id": keys::operation(found.operation.id),
                    "v": found.version,
                    "lock": { "$exists": false },
                },
                "u": { "$set": { "state": state.as_str(), "v": found.version + 1 } },
            };
            // Where somebody was first the condition does not hold, and the state has been written by them.
            self.update(Coll::Operations, vec![update]).await?;
        }
        Ok(())
    }
}

/// Result of a conditional update of a single letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Single {
    Written,
    Conflict,
}

impl Db {
    /// Writes one letter by a conditional update, without a commit.
    pub(crate) async fn write_single(&self, locked: &Locked) -> Result<Single> {
        let token = ObjectId::new();
        let (mut set, mut unset) = (locked.set.clone(), locked.unset.clone());
        // By this token the call knows its own write again when the answer was lost.
        set.insert("w", token);
        let wrote = match locked.expected {
            None => {
                set.insert("_id", locked.id.clone());
                set.insert("v", locked.first);
                self.insert(Coll::Letters, vec![set]).await?
            }
            Some(expected) => {
                set.insert("v", expected + 1);
                // An empty operator is refused.
                unset.insert("lock", "");
                let q =
                    doc! { "_id": locked.id.clone(), "v": expected, "lock": { "$exists": false } };
                let update = doc! { "q": q, "u": { "$set": set, "$unset": unset } };
                self.update(Coll::Letters, vec![update]).await?
            }
        };
        if wrote.n == 1 && wrote.duplicates.is_empty() {
            return Ok(Single::Written);
        }
        if wrote.is_repeated {
            // The first try may have been carried out, and its answer lost.
            let written = doc! { "_id": locked.id.clone(), "w": token };
            if self.find_one(Coll::Letters, written).await?.is_some() {
                return Ok(Single::Written);
            }
        }
        Ok(Single::Conflict)
    }
}

fn item(operation: OperationId, index: u64, change: &ItemChange, version: Option<i64>) -> Document {
    let id = keys::item(operation, index);
    match change {
        ItemChange::Append { item, consumer } => {
            let mut fields = doc! {
                "operation": keys::operation(operation),
                "index": index.cast_signed(),
                "letter": keys::letter(item.letter),
                "generation": count(item.generation),
                "consumer": consumer.as_str(),
                "outcome": item.outcome.as_str(),
                "at": time(item.at),
                "v": version.unwrap_or(0),
            };
            if let Some(why) = &item.why {
                fields.insert("why", why.as_str());
            }
            // An item that is there was written by somebody else who applied the same commit, and may have changed
            // since.
            doc! { "q": { "_id": id }, "u": { "$setOnInsert": fields }, "upsert": true }
        }
        ItemChange::Outcome { outcome, why, at } => {
            let mut set = doc! { "outcome": outcome.as_str(), "at": time(*at) };
            let q = match version {
                Some(version) => {
                    set.insert("v", version);
                    doc! { "_id": id, "v": { "$lt": version } }
                }
                // The letter is gone from the operation, and nobody else will say anything.
                None => doc! { "_id": id, "outcome": "queued" },
            };
            let mut update = Document::new();
            match why {
                Some(why) => {
                    set.insert("why", why.as_str());
                }
                None => {
                    update.insert("$unset", doc! { "why": "" });
                }
            }
            update.insert("$set", set);
            doc! { "q": q, "u": update }
        }
    }
}

fn started(
    operation: &Operation,
    number: u64,
    state: dlq_core::store::OperationState,
    at: Timestamp,
) -> Result<Locked> {
    let set = doc! {
        "number": number.cast_signed(),
        "spec": json(&operation.spec)?,
        // It stands beside the specification, which is one text, so that claims can ask for it.
        "target": if operation.spec.target.is_handler() { "handler" } else { "outbox" },
        "state": state.as_str(),
        "by": json(&operation.by)?,
        "created": time(operation.created_at),
        "updated": time(operation.updated_at),
        "next_release": time(operation.next_release),
    };
    Ok(Locked {
        coll: Coll::Operations,
        id: keys::operation(operation.id),
        expected: None,
        first: at.as_nanos() / 1_000,
        set,
        unset: Document::new(),
        is_removed: false,
        takes: None,
    })
}

fn steered(id: OperationId, version: i64, change: &OperationChange) -> Result<Locked> {
    let mut set = Document::new();
    if let Some(state) = change.state {
        set.insert("state", state.as_str());
    }
    if let Some(next) = change.next_release {
        set.insert("next_release", time(next));
    }
    if let Some(spec) = &change.spec {
        set.insert("spec", json(spec)?);
    }
    Ok(Locked {
        coll: Coll::Operations,
        id: keys::operation(id),
        expected: Some(version),
        first: version,
        set,
        unset: Document::new(),
        is_removed: false,
        takes: None,
    })
}

pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Fault::corrupt("value", &error))
}

fn audit(entry: &AuditEntry) -> Document {
    let mut document = doc! {
        "at": time(entry.at),
        "who": entry.by.who.as_str(),
        "action": entry.action.as_str(),
        "subject": entry.subject.as_str(),
        "affected": entry.affected.cast_signed(),
    };
    if let Some(note) = &entry.by.note {
        document.insert("note", note.as_str());
    }
    if let Some(operation) = entry.operation {
        document.insert("operation", keys::operation(operation));
    }
    document
}
