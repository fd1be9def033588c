//! Marks of runs that began.
//!
//! A message has one document, with a token for each run that began and did not end, in the order in which they began. A
//! token that is added again, since the answer was lost, is there once.

use dlq_core::{CrashMarks, LetterId, StoreError};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, doc};

use crate::MongoStore;
use crate::db::Coll;
use crate::error::{During, Fault};
use crate::keys;

impl CrashMarks for MongoStore {
    async fn begin(&self, letter: LetterId) -> Result<u32, StoreError> {
        const DURING: &str = "mark the beginning of a run";
        let (id, token) = (keys::letter(letter), Bson::ObjectId(ObjectId::new()));
        // Runs are a set, so that a mark that is written again after a lost answer is one run (G3).
        let add = doc! { "$addToSet": { "runs": token.clone() } };
        let marked = self.db().find_and_modify(Coll::Marks, doc! { "_id": id }, add, true, true);
        let marked = marked.await.during(DURING)?;
        let runs = marked.as_ref().and_then(|marked| marked.get_array("runs").ok());
        let before = runs.and_then(|runs| runs.iter().position(|run| *run == token));
        let before = before.ok_or_else(|| {
            Fault::corrupt("marks of a message", &"the run that was marked is not among them")
        });
        Ok(u32::try_from(before.during(DURING)?).unwrap_or(u32::MAX))
    }

    async fn end(&self, letter: LetterId, left: u32) -> Result<(), StoreError> {
        const DURING: &str = "mark the end of a run";
        let q = doc! { "_id": keys::letter(letter) };
        if left == 0 {
            let delete = doc! { "q": q, "limit": 1_i32 };
            return self.db().delete(Coll::Marks, vec![delete]).await.map(drop).during(DURING);
        }
        let none: [Bson; 0] = [];
        // Pushing nothing with a slice keeps the first tokens, which are of the runs that began earlier, and never adds
        // one.
        let first = doc! { "$each": none.as_slice(), "$slice": i64::from(left) };
        let keep = doc! { "q": q, "u": { "$push": { "runs": first } } };
        self.db().update(Coll::Marks, vec![keep]).await.map(drop).during(DURING)
    }
}
