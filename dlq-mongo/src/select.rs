//! Conditions that select letters, as filters with an order.

use dlq_core::{ErrorClass, Order, Timestamp};
use dlq_letters::{Older, Select};
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;

use crate::codec::time;
use crate::db::Db;
use crate::filter::{All, sort};
use crate::keys;

/// A condition that holds for letters that nobody is writing. Selections that pass over what others hold have it.
fn unlocked() -> Document {
    doc! { "lock": { "$exists": false } }
}

/// Pending letters of nobody.
fn is_free() -> Document {
    doc! { "status": "pending", "operation": { "$exists": false } }
}

/// Letters that can be claimed now.
pub(crate) fn due(filter: &dlq_core::Filter, now: Timestamp) -> All {
    let mut all = All::default().with(doc! { "available": { "$lte": time(now) } });
    all.filter(filter);
    all.with(unlocked())
}

/// The order in which letters are handed out.
pub(crate) fn due_order() -> Document {
    doc! { "available": 1_i32, "created": 1_i32, "_id": 1_i32 }
}

impl Db {
    /// The filter of a selection, and its order and limit. Not for orphans, which are items.
    pub(crate) fn selection(&self, select: &Select, now: Timestamp) -> (Document, FindOptions) {
        let by_item = || doc! { "item": 1_i32 };
        let (all, order, limit) = match select {
            Select::Due { filter, limit } => (due(filter, now), due_order(), *limit),
            Select::Queued { operation, filter, from, limit } => {
                // A letter of an operation waits its turn until it is made due, taken or put elsewhere.
                let mut all = All::default().with(doc! {
                    "operation": keys::operation(*operation),
                    "item": { "$gte": from.cast_signed() },
                    "status": "pending",
                    "due": { "$exists": false },
                });
                all.filter(filter);
                (all.with(unlocked()), by_item(), *limit)
            }
            Select::Lapsed { operation, limit } => {
                let all = All::default().with(doc! {
                    "operation": keys::operation(*operation),
                    "claim_sender": { "$exists": true },
                    "claim_until": { "$lte": time(now) },
                });
                (all.with(unlocked()), by_item(), *limit)
            }
            // It waits for letters that others are writing, and does not pass over them: a cancel must not miss one.
            Select::Open { operation, limit } => {
                let idle = doc! {
                    "claim_former": "pending",
                    "claim_until": { "$lte": time(now) },
                    "claim_sender": { "$exists": false },
                };
                let all = All::default()
                    .with(doc! { "operation": keys::operation(*operation) })
                    .with(doc! { "$or": [{ "status": "pending" }, idle] });
                (all, by_item(), *limit)
            }
            Select::Frozen { spec, after, upto, limit } => {
                let mut all = All::letters(&spec.filter).with(is_free());
                all.between(spec.order, *after, *upto);
                (all, sort(spec.order), *limit)
            }
            Select::Eligible { consumer, schedule, limit } => {
                let mut all = All::default().with(doc! { "consumer": consumer.as_str() });
                all.add(is_free());
                all.add(doc! { "confirmed": true, "due": { "$exists": false } });
                all.add(doc! { "retries": { "$lt": i64::from(schedule.max_retries) } });
                if !schedule.all_classes {
                    all.add(doc! { "class": ErrorClass::Transient.as_str() });
                }
                (all, sort(Order::OldestFirst), *limit)
            }
            Select::Matching { filter, older, order, after, upto, limit } => {
                let mut all = All::letters(filter);
                if let Some(Older { latest, include_unresolved }) = older {
                    all.add(doc! { "updated": { "$lte": time(*latest) } });
                    if !include_unresolved {
                        all.add(doc! { "status": "resolved" });
                    }
                }
                all.between(*order, *after, *upto);
                (all, sort(*order), *limit)
            }
            Select::Orphans { .. } => (All::default(), by_item(), 0),
        };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        (all.build(), FindOptions::builder().sort(order).limit(limit).build())
    }
}
