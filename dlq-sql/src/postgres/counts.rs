//! Folding of what letters are counted by.
//!
//! Triggers append differences, so that writers never wait for each other; adding them up is what readers do. So that
//! there are never many, whoever has written about as many as there were sums adds them up, and whoever reads the
//! statistics and finds many does too. It is one statement: differences go and their sums come at the same moment, so
//! that a reader adds up the ones or the others.
//!
//! | the process dies | what is stored | what follows |
//! |---|---|---|
//! | before it is committed | the differences | the next one folds them |
//! | after that | their sums | nothing |
//!
//! Two at once do not wait for each other: the second has nothing to do. A fold that fails changes nothing of the call
//! it came with, which is done by then.

use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::PgConnection;

use super::PostgresStore;
use super::call::attempt;
use super::names::Names;
use super::query::Query;
use super::tables::COUNTED;
use crate::error::Result;

/// Minimum number of differences that a process appends before it folds. Letters of one put are told apart by kind;
/// otherwise each letter counts.
const LEAST: u64 = 1_000;

/// Minimum number of differences that a reader finds before it folds.
pub(super) const MANY: u64 = 10_000;

/// Number of differences that this process may still append before it folds.
#[derive(Debug)]
pub(super) struct Folding {
    left: AtomicU64,
}

impl Default for Folding {
    fn default() -> Self {
        Self { left: AtomicU64::new(LEAST) }
    }
}

impl Folding {
    /// Returns true if it is time to fold.
    fn wrote(&self, letters: u64) -> bool {
        // Whoever crosses the bound sets it out of reach, so that only one of many folds.
        let less = |left: u64| Some(if left <= letters { u64::MAX } else { left - letters });
        // Relaxed is enough: the number is a hint, and the lock in the database decides who folds.
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.is_ok_and(|left| left <= letters)
    }
}

impl PostgresStore {
    /// Notes that so many differences were appended and are durable.
    pub(super) async fn wrote(&self, differences: usize) {
        if self.inner.folding.wrote(differences as u64) {
            self.fold().await;
        }
    }

    /// Adds up what there is.
    pub(super) async fn fold(&self) {
        // Also where this is not waited for to its end.
        self.inner.folding.left.store(LEAST, Ordering::Relaxed);
        let folded: Result<u64> = attempt!(self, conn => fold(conn, self.names()));
        match folded {
            // As many as there are kinds of letters cannot be made fewer.
            Ok(sums) => self.inner.folding.left.store(sums.max(LEAST), Ordering::Relaxed),
            Err(error) => tracing::debug!(?error, "the counts of letters were not folded"),
        }
    }
}

/// Folds the differences and returns the number of sums; 0 if another process is at it.
async fn fold(conn: &mut PgConnection, names: &Names) -> Result<u64> {
    // It does not ask to be durable: where a crash loses the fold, the differences are there again. Whoever does not
    // get the lock deletes nothing, and so inserts nothing.
    let counts = &names.counts;
    Query::new(format!(
        "WITH gone AS (DELETE FROM {counts} WHERE (SELECT pg_try_advisory_xact_lock(hashtextextended("
    ))
    .bind(counts.as_str())
    .push(&format!(
        ", 0))) RETURNING {COUNTED}, n) INSERT INTO {counts} ({COUNTED}, n) \
         SELECT {COUNTED}, sum(n) FROM gone GROUP BY {COUNTED} HAVING sum(n) <> 0"
    ))
    .run(conn)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_folds() {
        let folding = Folding::default();
        let times = (0..LEAST).filter(|_| folding.wrote(1)).count();
        assert_eq!(times, 1);
        assert!(!folding.wrote(LEAST), "somebody is about it");
    }
}
