//! Letters that are new, which nearly all are.

use std::collections::HashSet;

use dlq_core::{DeadLetter, LetterId, LetterState};

use super::PostgresStore;
use super::batch::Batch;
use super::call::attempt;
use super::codec::Fields;
use super::query::{DURABLE, Query};
use crate::columns::{self, BODY, RUN};
use crate::error::Result;
use crate::values::{Put as _, Take as _};

/// Maximum number of bytes of a letter. Postgres takes less than 2^30 at once, and some of these are not the letter's.
pub(super) const LARGEST: usize = 1_000_000_000;

impl PostgresStore {
    /// Writes those of these letters that are new and of which nothing has to be known: which were.
    pub(super) async fn insert_new(&self, letters: &[DeadLetter]) -> Result<Vec<bool>> {
        let given = self.given_time();
        let names = self.names();
        // In the order of the indexes: neighbours are found together, and two that write the same never wait in a circle.
        let mut sorted: Vec<_> =
            letters.iter().filter(|letter| letter.state == LetterState::default()).collect();
        if sorted.is_empty() {
            return Ok(vec![false; letters.len()]);
        }
        sorted.sort_by_key(|letter| letter.id);
        let inserted: Result<Vec<LetterId>> = attempt!(self, conn => async {
            let mut batch = Batch::default();
            for &letter in &sorted {
                let to = batch.row();
                to.bytes(Some(letter.id.as_bytes()))?;
                to.word(letter.reason.as_str())?;
                columns::put_run(letter, to)?;
                columns::put_body(letter, to)?;
            }
            let columns = [RUN, BODY].concat().join(", ");
            // One statement writes all of them. A letter that is there is passed over, and the engine decides about it
            // (G2).
            let sql = format!(
                "INSERT INTO {} (status, created_at, updated_at, letter_id, reason, {columns}) SELECT 'pending', ",
                names.letters
            );
            // Where letters may have to be merged, each is looked at.
            let fast = format!(
                " WHERE {DURABLE} AND NOT EXISTS (SELECT FROM {} WHERE name = 'dedup' AND value <> 0) \
                 AND NOT EXISTS (SELECT FROM {}) ON CONFLICT (letter_id) DO NOTHING RETURNING letter_id",
                names.meta, names.aliases
            );
            let query = Query::new(sql)
                .now(given)
                .push(", ")
                .now(given)
                .push(", ")
                .select(batch)?;
            query.push(&fast).all(conn, |row| Fields::of(row).letter()).await
        });
        let inserted: HashSet<_> = inserted?.into_iter().collect();
        // A statement appends one difference for each kind.
        self.wrote(kinds(&sorted).min(inserted.len())).await;
        Ok(letters.iter().map(|letter| inserted.contains(&letter.id)).collect())
    }
}

/// Returns the number of kinds by which these letters are counted.
fn kinds(letters: &[&DeadLetter]) -> usize {
    let mut kinds = HashSet::new();
    for letter in letters {
        let by = (letter.reason, letter.cause, letter.class, letter.fingerprint);
        kinds.insert((by, letter.consumer.as_str(), letter.message.subject()));
    }
    kinds.len()
}
