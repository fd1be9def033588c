//! Deduplication: each original message has one letter, whose key is under a unique sparse index.

use dlq_core::store::rules::DedupKey;
use dlq_core::{Cursor, Filter, Order};
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;

use crate::codec;
use crate::db::{Coll, Db};
use crate::error::Result;
use crate::filter::{All, sort};
use crate::keys;

/// Letters that are given keys at a time.
const PAGE: i64 = 1_000;

impl Db {
    /// Switches deduplication on, and gives the oldest letter of each original its key.
    pub(crate) async fn switch_dedup_on(&self) -> Result<()> {
        // The switch comes before the walk: every write from now on takes keys. A process that dies in the walk leaves
        // letters without keys until it is switched on again.
        let on = doc! { "q": { "_id": "dedup" }, "u": { "$set": { "on": true } }, "upsert": true };
        self.update(Coll::Meta, vec![on]).await?;
        let mut after: Option<Cursor> = None;
        loop {
            let mut all = All::letters(&Filter::new());
            all.between(Order::OldestFirst, after, None);
            let options = FindOptions::builder()
                .sort(sort(Order::OldestFirst))
                .limit(PAGE)
                .projection(codec::head())
                .build();
            let found = self.find(Coll::Letters, all.build(), options).await?;
            let Some(last) = found.last() else { return Ok(()) };
            let last = codec::read_row(last)?.letter;
            after = Some(Cursor::after(last.state.created_at, last.id));
            let (mut given_up, mut taken) = (Vec::new(), Vec::new());
            for document in &found {
                let row = codec::read_row(document)?;
                let key = DedupKey::of(&row.letter);
                if row.is_record() || row.key == key {
                    continue;
                }
                let q = doc! { "_id": keys::letter(row.letter.id), "lock": { "$exists": false } };
                let update = |change: Document| {
                    // The version grows, so that a call that has decided over the letter with its former key decides
                    // anew.
                    let mut u = doc! { "$inc": { "v": 1_i64 } };
                    u.extend(change);
                    doc! { "q": q.clone(), "u": u }
                };
                if row.key.is_some() {
                    given_up.push(update(doc! { "$unset": { "dedup": "" } }));
                }
                if let Some(key) = key {
                    let key = keys::binary(key.to_bytes());
                    taken.push(update(doc! { "$set": { "dedup": key } }));
                }
            }
            self.update(Coll::Letters, given_up).await?;
            // In the order of age, and a key that is taken is left to its owner.
            self.update(Coll::Letters, taken).await?;
        }
    }
}
