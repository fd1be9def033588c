//! Loading of rows for a verb, with the version of each.
//!
//! A letter, operation or schedule that a [commit](crate::commit) has locked is waited for. A selection that passes over what
//! others hold leaves it out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dlq_core::store::ItemOutcome;
use dlq_core::{LetterId, OperationId, Order, Timestamp};
use dlq_letters::{
    Alias, Depth, DocumentKey, DocumentKind, DocumentRange, Needs, Row, Rows, Select, Selected,
};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::FindOptions;

use crate::codec::{self, number, text};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::keys;
use crate::parts::Reference;

/// The most times that letters are read again because somebody writes them.
const TRIES: usize = 1_000;

/// Rows that were looked at, with the version of each.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) operations: BTreeMap<OperationId, Option<i64>>,
    pub(crate) schedules: BTreeMap<String, Option<i64>>,
    pub(crate) documents: BTreeMap<DocumentKey, Option<i64>>,
    pub(crate) operation_number: Option<u64>,
    /// Pieces that letters refer to, and those of the message among them.
    pub(crate) parts: BTreeMap<LetterId, Vec<Reference>>,
    pub(crate) messages: BTreeMap<LetterId, Reference>,
    /// The greatest fencing token, and the last that was reserved.
    fence: u64,
}

/// Letters that were read together.
pub(crate) struct LoadedRows {
    pub(crate) rows: Vec<Row>,
    pub(crate) is_locked: bool,
}

impl Db {
    /// Supplies what is needed.
    pub(crate) async fn load(&self, needs: &Needs, rows: &mut Rows, seen: &mut Seen) -> Result<()> {
        for depth in [Depth::Head, Depth::Whole] {
            let ids = needs.letters.iter().filter(|(_, wanted)| **wanted == depth);
            let ids: Vec<_> = ids.map(|(id, _)| *id).collect();
            self.load_letters(&ids, depth, rows, seen).await?;
        }
        for (select, depth) in &needs.selects {
            self.load_select(select, *depth, rows, seen).await?;
        }
        self.load_items(&needs.items, rows).await?;
        if !needs.operations.is_empty() {
            let ids: Vec<_> = needs.operations.iter().map(|id| keys::operation(*id)).collect();
            let filter = doc! { "_id": { "$in": ids } };
            for id in &needs.operations {
                seen.operations.insert(*id, None);
                rows.supply_operation(*id, None);
            }
            for found in self.unlocked_operations(filter).await? {
                let id = found.operation.id;
                seen.operations.insert(id, Some(found.version));
                rows.supply_operation(id, Some(found.operation));
            }
        }
        if !needs.states.is_empty() {
            let ids: Vec<_> = needs.states.iter().map(|id| keys::operation(*id)).collect();
            // States are read without waiting for locks: they are only looked at, and may change before the commit.
            for id in &needs.states {
                rows.supply_state(*id, None);
            }
            let filter = doc! { "_id": { "$in": ids }, "number": { "$exists": true } };
            for found in self.find(Coll::Operations, filter, FindOptions::default()).await? {
                let id = codec::operation_id(&found, "_id");
                let state = text(&found, "state").and_then(|state| state.parse().ok());
                if let Some(id) = id {
                    rows.supply_state(id, state);
                }
            }
        }
        if needs.active {
            let filter = doc! { "state": { "$in": ["canary", "running"] } };
            let active = self.unlocked_operations(filter).await?;
            let mut operations = Vec::with_capacity(active.len());
            for found in active {
                seen.operations.insert(found.operation.id, Some(found.version));
                operations.push(found.operation);
            }
            rows.supply_active(operations);
        }
        self.load_keys(needs, rows).await?;
        if needs.dedup {
            rows.supply_dedup(self.is_dedup().await?);
        }
        for consumer in &needs.schedules {
            let (version, last) = self.schedule(consumer).await?;
            seen.schedules.insert(consumer.clone(), version);
            rows.supply_schedule(consumer.clone(), last);
        }
        self.load_documents(&needs.documents, rows, seen).await?;
        for range in &needs.ranges {
            rows.supply_document_names(range.clone(), self.document_names(range).await?);
        }
        if !needs.glimpses.is_empty() {
            let ids: Vec<_> = needs.glimpses.iter().map(ToString::to_string).collect();
            let filter = doc! { "_id": { "$in": ids } };
            let found = self.find(Coll::Documents, filter, FindOptions::default()).await?;
            let read =
                |it: &Document| Some((text(it, "_id")?.to_owned(), text(it, "text")?.to_owned()));
            let mut found: BTreeMap<_, _> = found.iter().filter_map(read).collect();
            for key in &needs.glimpses {
                rows.supply_glimpse(key.clone(), found.remove(&key.to_string()));
            }
        }
        for kind in &needs.listed {
            rows.supply_documents(*kind, self.documents(*kind).await?);
        }
        if needs.fences > 0 {
            // Greater than every token of a letter that was read: those count on from the time of their letter's storing.
            let now = self.server_now().await?.as_nanos() / 1_000;
            let first = seen.fence.max(now.cast_unsigned()) + 1;
            seen.fence = first + needs.fences;
            rows.supply_fences(first..seen.fence);
        }
        if needs.operation_number {
            let number = self.count(Coll::Operations, Document::new()).await?;
            seen.operation_number = Some(number);
            rows.supply_operation_number(number);
        }
        Ok(())
    }

    async fn load_letters(
        &self,
        ids: &[LetterId],
        depth: Depth,
        rows: &mut Rows,
        seen: &mut Seen,
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let wanted: Vec<_> = ids.iter().map(|id| keys::letter(*id)).collect();
        let filter = doc! { "_id": { "$in": wanted } };
        for _ in 0..TRIES {
            let found = self.rows(filter.clone(), FindOptions::default(), depth, seen).await?;
            // The lock has been waited for, so it is read again at once.
            if found.is_locked {
                continue;
            }
            for id in ids {
                rows.supply_letter(*id, None, depth);
            }
            for row in found.rows {
                rows.supply_letter(row.letter.id, Some(row), depth);
            }
            return Ok(());
        }
        Err(contended())
    }

    async fn load_select(
        &self,
        select: &Select,
        depth: Depth,
        rows: &mut Rows,
        seen: &mut Seen,
    ) -> Result<()> {
        if let Select::Orphans { operation, consumers, limit } = select {
            // Orphans have no letter, so they are looked for among the items.
            let found = self.orphans(*operation, consumers, *limit).await?;
            rows.supply_select(select.clone(), depth, found);
            return Ok(());
        }
        for _ in 0..TRIES {
            let (filter, options) = self.selection(select, rows.now());
            // To the server no limit is as good as none.
            if options.limit == Some(0) {
                rows.supply_select(select.clone(), depth, Vec::new());
                return Ok(());
            }
            let found = self.rows(filter, options, depth, seen).await?;
            if found.is_locked {
                continue;
            }
            let selected = |row: &Row| Selected {
                letter: row.letter.id,
                index: row.item.filter(|_| is_of_items(select)).map_or(0, |(_, index)| index),
            };
            let items = found.rows.iter().map(selected).collect();
            rows.supply_select(select.clone(), depth, items);
            for row in found.rows {
                rows.supply_letter(row.letter.id, Some(row), depth);
            }
            return Ok(());
        }
        Err(contended())
    }

    /// Reads rows. Those that are locked have been waited for then, and all is to be read again.
    async fn rows(
        &self,
        filter: Document,
        mut options: FindOptions,
        depth: Depth,
        seen: &mut Seen,
    ) -> Result<LoadedRows> {
        if depth == Depth::Head {
            options.projection = Some(codec::head());
        }
        let documents = self.find(Coll::Letters, filter, options).await?;
        // A lock may stand for a change that has been decided, so that the letter is not read before that is written.
        let locks: HashSet<ObjectId> =
            documents.iter().filter_map(|found| found.get_object_id("lock").ok()).collect();
        for lock in &locks {
            self.resolve(Coll::Letters, *lock).await?;
        }
        if !locks.is_empty() {
            return Ok(LoadedRows { rows: Vec::new(), is_locked: true });
        }
        for document in &documents {
            let id = codec::letter_id(document)?;
            let fence = number(document, "fence").unwrap_or(0).cast_unsigned();
            seen.fence = seen.fence.max(fence);
            seen.parts.insert(id, Reference::all(document));
            if let Some(message) = Reference::read(document, "message_parts") {
                seen.messages.insert(id, message);
            }
        }
        if depth == Depth::Head {
            let rows = documents.iter().map(codec::read_row).collect::<Result<_>>()?;
            return Ok(LoadedRows { rows, is_locked: false });
        }
        let (rows, torn) = self.whole(documents).await?;
        // A letter whose pieces were replaced in between is read again, as one that was locked.
        Ok(LoadedRows { is_locked: !torn.is_empty(), rows })
    }

    async fn load_items(
        &self,
        items: &BTreeSet<(OperationId, u64)>,
        rows: &mut Rows,
    ) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        for (operation, index) in items {
            rows.supply_item(*operation, *index, None);
        }
        let ids: Vec<_> = items.iter().map(|(id, index)| keys::item(*id, *index)).collect();
        let filter = doc! { "_id": { "$in": ids } };
        for found in self.find(Coll::Items, filter, FindOptions::default()).await? {
            let operation = codec::operation_id(&found, "operation");
            let index = number(&found, "index").map(i64::cast_unsigned);
            let outcome = text(&found, "outcome").and_then(|text| text.parse::<ItemOutcome>().ok());
            if let Some((operation, index)) = operation.zip(index) {
                rows.supply_item(operation, index, outcome);
            }
        }
        Ok(())
    }

    async fn load_keys(&self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        if !needs.owners.is_empty() {
            let wanted = needs.owners.iter().map(|key| keys::binary(key.to_bytes()));
            let filter = doc! { "dedup": { "$in": wanted.collect::<Vec<_>>() } };
            for key in &needs.owners {
                // Those that are not found are supplied as free, so that they are not asked for again.
                rows.supply_owner(key.clone(), None);
            }
            let fields = doc! { "dedup": 1_i32 };
            let options = FindOptions::builder().projection(fields).build();
            for found in self.find(Coll::Letters, filter, options).await? {
                let key = keys::bytes(found.get("dedup")).map(keys::dedup).transpose()?;
                if let Some(key) = key {
                    rows.supply_owner(key, Some(codec::letter_id(&found)?));
                }
            }
        }
        if !needs.aliases.is_empty() {
            for id in &needs.aliases {
                rows.supply_alias(*id, None);
            }
            let ids: Vec<_> = needs.aliases.iter().map(|id| keys::letter(*id)).collect();
            let found = self.aliases(doc! { "_id": { "$in": ids } }).await?;
            for (id, alias) in self.standing(found).await? {
                rows.supply_alias(id, Some(alias));
            }
        }
        for id in &needs.aliases_of {
            let aliases = self.aliases(doc! { "row": keys::letter(*id) }).await?;
            rows.supply_aliases_of(*id, aliases);
        }
        Ok(())
    }

    async fn aliases(&self, filter: Document) -> Result<Vec<(LetterId, Alias)>> {
        let found = self.find(Coll::Aliases, filter, FindOptions::default()).await?;
        let read = |found: &Document| {
            let row = keys::id(found.get("row")).map(LetterId::from_bytes)?;
            let generation = u32::try_from(number(found, "generation")?).ok()?;
            Some((codec::letter_id(found).ok()?, Alias { row, generation }))
        };
        Ok(found.iter().filter_map(read).collect())
    }

    /// Leaves out what points at a letter that is gone: a death must not be taken for one that another letter knows of.
    async fn standing(&self, aliases: Vec<(LetterId, Alias)>) -> Result<Vec<(LetterId, Alias)>> {
        if aliases.is_empty() {
            return Ok(aliases);
        }
        let ids: Vec<_> = aliases.iter().map(|(_, alias)| keys::letter(alias.row)).collect();
        let options = FindOptions::builder().projection(doc! { "_id": 1_i32 }).build();
        let there = self.find(Coll::Letters, doc! { "_id": { "$in": ids } }, options).await?;
        let there: HashSet<_> =
            there.iter().filter_map(|found| codec::letter_id(found).ok()).collect();
        Ok(aliases.into_iter().filter(|(_, alias)| there.contains(&alias.row)).collect())
    }

    /// Returns true if the store keeps one letter for each original message.
    pub(crate) async fn is_dedup(&self) -> Result<bool> {
        let found = self.find_one(Coll::Meta, doc! { "_id": "dedup" }).await?;
        Ok(found.is_some_and(|found| found.get_bool("on").unwrap_or(false)))
    }

    async fn schedule(&self, consumer: &str) -> Result<(Option<i64>, Option<Timestamp>)> {
        for _ in 0..TRIES {
            let found = self.find_one(Coll::Schedules, doc! { "_id": consumer }).await?;
            let Some(found) = found else { return Ok((None, None)) };
            match found.get_object_id("lock") {
                Ok(lock) => self.resolve(Coll::Schedules, lock).await?,
                Err(_) => {
                    let last = number(&found, "last").map(Timestamp::from_nanos);
                    return Ok((Some(codec::version(&found)), last));
                }
            }
        }
        Err(contended())
    }

    async fn load_documents(
        &self,
        keys: &BTreeSet<DocumentKey>,
        rows: &mut Rows,
        seen: &mut Seen,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = keys.iter().map(ToString::to_string).collect();
        let filter = doc! { "_id": { "$in": ids } };
        for _ in 0..TRIES {
            let found = self.find(Coll::Documents, filter.clone(), FindOptions::default()).await?;
            let locks = found.iter().filter_map(|found| found.get_object_id("lock").ok());
            let locks: HashSet<_> = locks.collect();
            for lock in &locks {
                self.resolve(Coll::Documents, *lock).await?;
            }
            if !locks.is_empty() {
                continue;
            }
            let found = found.iter().filter_map(|found| Some((text(found, "_id")?, found)));
            let found: BTreeMap<_, _> = found.collect();
            for key in keys {
                let found = found.get(key.to_string().as_str());
                seen.documents.insert(key.clone(), found.map(|found| codec::version(found)));
                let text = found.and_then(|found| text(found, "text")).map(str::to_owned);
                rows.supply_document(key.clone(), text);
            }
            return Ok(());
        }
        Err(contended())
    }

    /// Names of documents, also of those that a commit has locked: as they were before it.
    async fn document_names(&self, range: &DocumentRange) -> Result<Vec<String>> {
        let of_kind = |name: &str| format!("{} {name}", range.kind.as_str());
        // A space is less than any character of a name, and `!` comes next.
        let mut bounds = doc! { "$gt": of_kind(""), "$lt": format!("{}!", range.kind.as_str()) };
        let order = match range.order {
            Order::OldestFirst => 1_i32,
            Order::NewestFirst => -1_i32,
        };
        if let Some(after) = &range.after {
            bounds.insert(if order > 0 { "$gt" } else { "$lt" }, of_kind(after));
        }
        let filter = doc! { "_id": bounds, "text": { "$exists": true } };
        let options = FindOptions::builder()
            .sort(doc! { "_id": order })
            .limit(i64::from(range.limit))
            .projection(doc! { "name": 1_i32 })
            .build();
        let found = self.find(Coll::Documents, filter, options).await?;
        Ok(found.iter().filter_map(|found| text(found, "name")).map(str::to_owned).collect())
    }

    /// All documents of a kind, also those that a commit has locked: as they were before it.
    async fn documents(&self, kind: DocumentKind) -> Result<Vec<(DocumentKey, String)>> {
        let filter = doc! { "kind": kind.as_str(), "text": { "$exists": true } };
        let found = self.find(Coll::Documents, filter, FindOptions::default()).await?;
        let read = |found: &Document| {
            let name = text(found, "name")?.to_owned();
            Some((DocumentKey { kind, name }, text(found, "text")?.to_owned()))
        };
        Ok(found.iter().filter_map(read).collect())
    }

    /// Queued items whose letter is not in the operation any more.
    async fn orphans(
        &self,
        operation: OperationId,
        consumers: &[String],
        limit: u64,
    ) -> Result<Vec<Selected>> {
        const PAGE: i64 = 1_000;
        let mut filter = doc! { "operation": keys::operation(operation), "outcome": "queued" };
        if !consumers.is_empty() {
            filter.insert("consumer", doc! { "$in": consumers });
        }
        let (mut orphans, mut after) = (Vec::new(), -1_i64);
        loop {
            let mut page = filter.clone();
            page.insert("index", doc! { "$gt": after });
            let options = FindOptions::builder().sort(doc! { "index": 1_i32 }).limit(PAGE).build();
            let items = self.find(Coll::Items, page, options).await?;
            let ids: Vec<Bson> =
                items.iter().filter_map(|item| item.get("letter").cloned()).collect();
            let fields = doc! { "operation": 1_i32, "item": 1_i32, "lock": 1_i32 };
            let options = FindOptions::builder().projection(fields).build();
            let letters = self.find(Coll::Letters, doc! { "_id": { "$in": ids } }, options).await?;
            // Letters that are merely locked are not orphans.
            let there: HashSet<_> = letters
                .iter()
                .filter(|letter| {
                    letter.contains_key("lock")
                        || codec::operation_id(letter, "operation") == Some(operation)
                })
                .filter_map(|letter| keys::id(letter.get("_id")))
                .collect();
            for item in &items {
                let Some(letter) = keys::id(item.get("letter")) else { continue };
                let index = number(item, "index").unwrap_or(0);
                after = index;
                if !there.contains(&letter) && (orphans.len() as u64) < limit {
                    let letter = LetterId::from_bytes(letter);
                    orphans.push(Selected { letter, index: index.cast_unsigned() });
                }
            }
            if (items.len() as i64) < PAGE || orphans.len() as u64 == limit {
                return Ok(orphans);
            }
        }
    }
}

fn is_of_items(select: &Select) -> bool {
    matches!(select, Select::Queued { .. } | Select::Lapsed { .. } | Select::Open { .. })
}

fn contended() -> Fault {
    Fault::unavailable("others change the same letters all the time; try again later")
}
