//! Operations and their items. Counts are those of the items.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::str::FromStr;

use dlq_core::store::{
    ItemOutcome, ItemPage, Operation, OperationItem, OperationSpec, Plan, Progress,
};
use dlq_core::{LetterId, OperationId, StoreErrorKind, Timestamp};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;
use serde::de::DeserializeOwned;

use crate::codec::{self, number, text};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::filter::{All, sort};
use crate::keys;

/// An operation, and the version of its document.
pub(crate) struct VersionedOperation {
    pub(crate) operation: Operation,
    pub(crate) version: i64,
    lock: Option<ObjectId>,
}

/// The most times that operations are read again because somebody changes them.
const TRIES: usize = 1_000;

fn word<T: FromStr<Err: Display>>(document: &Document, name: &str) -> Result<T> {
    let broken = |error: &dyn Display| Fault::corrupt(&format!("operation's `{name}`"), error);
    let word = text(document, name).ok_or_else(|| broken(&"it is missing"))?;
    word.parse().map_err(|error| broken(&error))
}

fn json<T: DeserializeOwned>(document: &Document, name: &str) -> Result<T> {
    let text = text(document, name).unwrap_or_default();
    serde_json::from_str(text)
        .map_err(|error| Fault::corrupt(&format!("operation's `{name}`"), &error))
}

fn at(document: &Document, name: &str) -> Timestamp {
    Timestamp::from_nanos(number(document, name).unwrap_or(0))
}

impl Db {
    /// Reads operations with their counts, the one started first first.
    pub(crate) async fn find_operations(
        &self,
        mut filter: Document,
        mut options: FindOptions,
    ) -> Result<Vec<VersionedOperation>> {
        // A document with nothing but a lock is an operation that is being started, and may never come to be.
        filter.insert("number", doc! { "$exists": true });
        options.sort.get_or_insert_with(|| doc! { "number": 1_i32 });
        let documents = self.find(Coll::Operations, filter, options).await?;
        let ids: Vec<_> =
            documents.iter().filter_map(|document| document.get("_id").cloned()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let counts = self.aggregate(
            Coll::Items,
            vec![
                doc! { "$match": { "operation": { "$in": ids } } },
                doc! { "$group": {
                    "_id": { "operation": "$operation", "outcome": "$outcome" },
                    "n": { "$sum": 1_i64 },
                } },
            ],
        );
        let mut progress: BTreeMap<OperationId, Progress> = BTreeMap::new();
        for count in counts.await? {
            let Ok(of) = count.get_document("_id") else { continue };
            let Some(id) = codec::operation_id(of, "operation") else { continue };
            let outcome: ItemOutcome = word(of, "outcome")?;
            let n = number(&count, "n").unwrap_or(0).cast_unsigned();
            let progress = progress.entry(id).or_default();
            progress.total += n;
            progress.by_outcome.insert(outcome, n);
        }
        let read = |document: &Document| {
            let id = codec::operation_id(document, "_id")
                .ok_or_else(|| Fault::corrupt("id of an operation", &"it is not 16 bytes"))?;
            let operation = Operation {
                id,
                spec: json(document, "spec")?,
                state: word(document, "state")?,
                by: json(document, "by")?,
                created_at: at(document, "created"),
                updated_at: at(document, "updated"),
                next_release: at(document, "next_release"),
                progress: progress.get(&id).cloned().unwrap_or_default(),
            };
            let lock = document.get_object_id("lock").ok();
            Ok(VersionedOperation { operation, version: codec::version(document), lock })
        };
        documents.iter().map(read).collect()
    }

    /// The same, once nobody is at them.
    pub(crate) async fn unlocked_operations(
        &self,
        filter: Document,
    ) -> Result<Vec<VersionedOperation>> {
        for _ in 0..TRIES {
            let found = self.find_operations(filter.clone(), FindOptions::default()).await?;
            let locks: HashSet<_> = found.iter().filter_map(|found| found.lock).collect();
            if locks.is_empty() {
                return Ok(found);
            }
            for lock in locks {
                self.resolve(Coll::Operations, lock).await?;
            }
        }
        Err(Fault::unavailable("others steer the same operation all the time; try again later"))
    }

    pub(crate) async fn read_operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let filter = doc! { "_id": keys::operation(id) };
        let found = self.shown(filter, FindOptions::default()).await?;
        Ok(found.into_iter().next())
    }

    pub(crate) async fn list_operations(&self, limit: u32) -> Result<Vec<Operation>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let newest_first = doc! { "number": -1_i32 };
        let options = FindOptions::builder().sort(newest_first).limit(i64::from(limit)).build();
        self.shown(Document::new(), options).await
    }

    /// Operations as they are shown, in the state that follows from the counts.
    async fn shown(&self, filter: Document, options: FindOptions) -> Result<Vec<Operation>> {
        let now = self.now().await?;
        let found = self.find_operations(filter, options).await?;
        let shown = found.into_iter().map(|found| {
            let mut operation = found.operation;
            operation.state = operation.advance(now, 0).state;
            operation
        });
        Ok(shown.collect())
    }

    pub(crate) async fn list_items(
        &self,
        id: OperationId,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage> {
        let known = doc! { "_id": keys::operation(id), "number": { "$exists": true } };
        if self.find_one(Coll::Operations, known).await?.is_none() {
            return Err(Fault::new(
                StoreErrorKind::NotFound,
                format!("no operation has the id {id}; list them to see which there are"),
            ));
        }
        let from = i64::try_from(after).unwrap_or(i64::MAX);
        let filter = doc! { "operation": keys::operation(id), "index": { "$gte": from } };
        let limit = i64::from(limit.max(1));
        // One item more than asked for tells whether there is another page.
        let options = FindOptions::builder().sort(doc! { "index": 1_i32 }).limit(limit + 1).build();
        let found = self.find(Coll::Items, filter, options).await?;
        let mut items = found.iter().map(read_item).collect::<Result<Vec<_>>>()?;
        let next = items.get(usize::try_from(limit).unwrap_or(usize::MAX)).map(|item| item.index);
        items.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ItemPage { items, next })
    }

    /// Says what an operation would send back.
    pub(crate) async fn plan_replay(&self, spec: &OperationSpec) -> Result<Plan> {
        let free = doc! { "status": "pending", "operation": { "$exists": false } };
        let eligible = All::letters(&spec.filter).with(free).build();
        let most = i64::try_from(spec.limit.unwrap_or(u64::MAX)).unwrap_or(i64::MAX);
        let mut plan = Plan::default();
        // The server refuses a limit of 0.
        if most > 0 {
            let mut pipeline = vec![doc! { "$match": eligible.clone() }];
            // Without a limit all are counted, and their order does not matter.
            if spec.limit.is_some() {
                pipeline.push(doc! { "$sort": sort(spec.order) });
                pipeline.push(doc! { "$limit": most });
            }
            pipeline.push(doc! { "$group": { "_id": "$replays", "n": { "$sum": 1_i64 } } });
            for found in self.aggregate(Coll::Letters, pipeline).await? {
                let n = number(&found, "n").unwrap_or(0).cast_unsigned();
                plan.count += n;
                let replays = number(&found, "_id").and_then(|replays| u32::try_from(replays).ok());
                if spec.is_past_cap(replays.unwrap_or(0)) {
                    plan.past_cap += n;
                }
            }
            let options = FindOptions::builder()
                .sort(sort(spec.order))
                .limit(most.min(10))
                .projection(codec::head())
                .build();
            let sample = self.find(Coll::Letters, eligible, options).await?;
            plan.sample = sample.iter().map(codec::read_summary).collect::<Result<_>>()?;
        }
        let others = doc! { "$or": [
            { "status": { "$ne": "pending" } },
            { "operation": { "$exists": true } },
        ] };
        let others = All::letters(&spec.filter).with(others).build();
        let pipeline = vec![
            doc! { "$match": others },
            doc! { "$group": { "_id": "$status", "n": { "$sum": 1_i64 } } },
        ];
        for found in self.aggregate(Coll::Letters, pipeline).await? {
            let n = number(&found, "n").unwrap_or(0).cast_unsigned();
            plan.ineligible.insert(word(&found, "_id")?, n);
        }
        Ok(plan)
    }

    /// Returns true if letters of an operation wait their turn, of these consumers or of any.
    pub(crate) async fn has_queued(&self, id: OperationId, consumers: &[String]) -> Result<bool> {
        let mut filter = doc! {
            "operation": keys::operation(id),
            "status": "pending",
            "due": { "$exists": false },
        };
        if !consumers.is_empty() {
            filter.insert("consumer", doc! { "$in": consumers });
        }
        Ok(self.find_one(Coll::Letters, filter).await?.is_some())
    }
}

fn read_item(document: &Document) -> Result<OperationItem> {
    let letter = keys::id(document.get("letter")).map(LetterId::from_bytes);
    let generation = number(document, "generation").and_then(|number| u32::try_from(number).ok());
    Ok(OperationItem {
        index: number(document, "index").unwrap_or(0).cast_unsigned(),
        letter: letter.ok_or_else(|| Fault::corrupt("item", &"it names no letter"))?,
        generation: generation.ok_or_else(|| Fault::corrupt("item", &"it has no generation"))?,
        outcome: word(document, "outcome")?,
        why: text(document, "why").map(str::to_owned),
        at: at(document, "at"),
    })
}
