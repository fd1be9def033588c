//! Answers for operators: the audit, what waits, what is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::store::{Actor, AuditEntry, CheckLimits, Due, ProcessedEvent, Vitals, Waiting};
use dlq_core::{Filter, Finding, Severity, Timestamp};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;

use crate::change::json;
use crate::codec::{self, number, text, time};
use crate::db::{Coll, Db};
use crate::error::{Fault, Result};
use crate::select::due_order;

fn newest_first(limit: u32) -> FindOptions {
    FindOptions::builder().sort(doc! { "_id": -1_i32 }).limit(i64::from(limit)).build()
}

fn at(document: &Document, name: &str) -> Timestamp {
    Timestamp::from_nanos(number(document, name).unwrap_or(0))
}

impl Db {
    pub(crate) async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        let earlier = doc! { "_id": { "$lt": before } };
        let found = self.find(Coll::Audit, earlier, newest_first(limit)).await?;
        let owned = |found: &Document, name| text(found, name).unwrap_or_default().to_owned();
        let entry = |found: &Document| AuditEntry {
            number: number(found, "_id").unwrap_or(0).cast_unsigned(),
            at: at(found, "at"),
            by: Actor { who: owned(found, "who"), note: text(found, "note").map(str::to_owned) },
            action: owned(found, "action"),
            subject: owned(found, "subject"),
            affected: number(found, "affected").unwrap_or(0).cast_unsigned(),
            operation: codec::operation_id(found, "operation"),
        };
        Ok(found.iter().map(entry).collect())
    }

    pub(crate) async fn write_processed(&self, events: &[ProcessedEvent]) -> Result<()> {
        let document = |event: &ProcessedEvent| {
            // The id is made here and not by the server, so that what is sent twice is written once.
            Ok(doc! { "_id": ObjectId::new(), "at": time(event.at), "event": json(event)? })
        };
        let documents = events.iter().map(document).collect::<Result<_>>()?;
        self.insert(Coll::Processed, documents).await.map(drop)
    }

    pub(crate) async fn read_processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = self.find(Coll::Processed, Document::new(), newest_first(limit)).await?;
        let event = |found: &Document| {
            serde_json::from_str(text(found, "event").unwrap_or_default())
                .map_err(|error| Fault::corrupt("processed event", &error))
        };
        found.iter().map(event).collect()
    }

    /// The time at which something can be claimed, or released by an operation.
    pub(crate) async fn find_next_due(&self, consumers: &[String]) -> Result<Option<Timestamp>> {
        let mut filter = doc! { "available": { "$exists": true } };
        if !consumers.is_empty() {
            filter.insert("consumer", doc! { "$in": consumers });
        }
        let options = FindOptions::builder()
            .sort(doc! { "available": 1_i32 })
            .limit(1)
            .projection(doc! { "available": 1_i32 })
            .build();
        let first = self.find(Coll::Letters, filter, options).await?;
        let mut next = first.first().map(|found| at(found, "available"));
        let active = doc! { "state": { "$in": ["canary", "running"] }, "target": "handler" };
        // Most often nothing is under way. Counting the items of operations costs more than this question.
        if self.find_one(Coll::Operations, active.clone()).await?.is_none() {
            return Ok(next);
        }
        let now = self.now().await?;
        for found in self.find_operations(active, FindOptions::default()).await? {
            let operation = found.operation;
            if self.has_queued(operation.id, consumers).await? {
                next = next.into_iter().chain(operation.next_to_handlers(now)).min();
            }
        }
        Ok(next)
    }

    /// Letters that wait, by consumer.
    pub(crate) async fn due_by_consumer(&self, overdue: Duration) -> Result<Vec<Due>> {
        let now = self.now().await?;
        let latest = now.before(overdue);
        let options = FindOptions::builder()
            .sort(due_order())
            .limit(i64::from(Due::MOST))
            .projection(doc! { "consumer": 1_i32, "available": 1_i32 })
            .build();
        let filter = doc! { "available": { "$lte": time(now) } };
        let mut due: BTreeMap<String, Due> = BTreeMap::new();
        for found in self.find(Coll::Letters, filter, options).await? {
            let consumer = text(&found, "consumer").unwrap_or_default();
            let since = at(&found, "available");
            let of_it = due.entry(consumer.to_owned()).or_insert_with(|| Due {
                consumer: consumer.to_owned(),
                letters: 0,
                overdue: 0,
                since,
            });
            of_it.letters += 1;
            of_it.overdue += u64::from(since <= latest);
        }
        Ok(due.into_values().collect())
    }

    /// Says what is wrong with the store.
    pub(crate) async fn examine(&self, limits: CheckLimits) -> Result<Vec<Finding>> {
        self.refuse_unfit().await?;
        let mut findings = self.amiss().await?;
        findings.extend(self.skew(&limits).await?);
        let now = self.now().await?;
        let stats = self.stats(&Filter::new()).await?;
        let mut vitals = Vitals::new(now);
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        (vitals.waiting, vitals.latest) = self.waiting(now).await?;
        let operations = self.find_operations(Document::new(), FindOptions::default()).await?;
        vitals.operations = operations.into_iter().map(|found| found.operation).collect();
        vitals.processed = self.count(Coll::Processed, Document::new()).await?;
        findings.extend(vitals.findings(&limits));
        Ok(findings)
    }

    /// The letters of each consumer that have waited longest, and the one that is due last.
    async fn waiting(&self, now: Timestamp) -> Result<(Vec<Waiting>, Vec<Waiting>)> {
        let pipeline = vec![
            doc! { "$match": { "available": { "$exists": true } } },
            doc! { "$group": { "_id": "$consumer" } },
        ];
        let (mut waiting, mut latest) = (Vec::new(), Vec::new());
        for consumer in self.aggregate(Coll::Letters, pipeline).await? {
            let consumer = text(&consumer, "_id").unwrap_or_default().to_owned();
            let some = |order: i32, limit: u32| {
                FindOptions::builder()
                    .sort(doc! { "available": order, "created": order, "_id": order })
                    .limit(i64::from(limit))
                    .projection(doc! { "status": 1_i32, "available": 1_i32 })
                    .build()
            };
            let read = |found: &Document| {
                let status = text(found, "status").and_then(|status| status.parse().ok())?;
                let (consumer, since) = (consumer.clone(), at(found, "available"));
                Some(Waiting { status, consumer, since })
            };
            let of_it =
                |bound: Document| doc! { "consumer": consumer.as_str(), "available": bound };
            let due = of_it(doc! { "$lte": time(now) });
            let found = self.find(Coll::Letters, due, some(1, Vitals::MOST)).await?;
            waiting.extend(found.iter().filter_map(read));
            let any = of_it(doc! { "$exists": true });
            let found = self.find(Coll::Letters, any, some(-1, 1)).await?;
            latest.extend(found.iter().filter_map(read));
        }
        Ok((waiting, latest))
    }

    /// Says whether this process and the server agree about the time.
    async fn skew(&self, limits: &CheckLimits) -> Result<Option<Finding>> {
        let offset = Duration::from_nanos(self.measure().await?.unsigned_abs());
        Ok((offset > limits.skew).then(|| {
            Finding::new(Severity::Warning, "clock", "time of the server")
                .found(
                    format!("{} apart", duration::format(offset)),
                    format!("at most {} apart", duration::format(limits.skew)),
                )
                .advice(
                    "what consumers schedule by their own clock and the store holds by the server's is early or late by as much; \
                     synchronise the clocks of both machines",
                )
        }))
    }
}
