use dlq_core::{CrashMarks, LetterId, StoreError};
use mongodb::bson::doc;

use crate::MongoStore;
use crate::codec::number;
use crate::db::Coll;
use crate::error::During;
use crate::keys;

impl CrashMarks for MongoStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        const DURING: &str = "mark the beginning of a run";
        let (id, increment) = (keys::letter(letter), doc! { "$inc": { "begun": 1_i64 } });
        let begun =
            self.db().find_and_modify(Coll::Marks, doc! { "_id": id }, increment, true, true);
        let begun = begun.await.during(DURING)?.and_then(|found| number(&found, "begun"));
        // The counter is capped where it is read.
        Ok(u32::try_from(begun.unwrap_or(1).saturating_sub(1)).unwrap_or(u32::MAX))
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        const DURING: &str = "mark the end of a run";
        let q = doc! { "_id": keys::letter(letter) };
        if left == 0 {
            let delete = doc! { "q": q, "limit": 1_i32 };
            return self.db().delete(Coll::Marks, vec![delete]).await.map(drop).during(DURING);
        }
        let least = doc! { "q": q, "u": { "$min": { "begun": i64::from(left) } } };
        self.db().update(Coll::Marks, vec![least]).await.map(drop).during(DURING)
    }
}
