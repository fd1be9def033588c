use std::time::Duration;

use dlq_core::store::{Claim, ClaimRequest, ClaimToken, Claims, Finish, Finished, ScheduleRun};
use dlq_core::{StoreError, Timestamp};
use dlq_letters::{Backend, engine};
use rusqlite::Connection;

use super::SqliteStore;
use super::codec::Fields;
use super::names::Names;
use super::operations;
use super::query::Query;
use crate::error::Result;
use crate::values::Take as _;

impl Claims for SqliteStore {
    async fn claim(&self, request: ClaimRequest) -> std::result::Result<Vec<Claim>, StoreError> {
        engine::claim(self, request).await
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> std::result::Result<Vec<bool>, StoreError> {
        engine::extend(self, tokens, lease).await
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> std::result::Result<Vec<Finished>, StoreError> {
        engine::finish(self, finishes).await
    }

    async fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> std::result::Result<Option<Timestamp>, StoreError> {
        Backend::next_due(self, consumers).await
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn run_schedule(
        &self,
        run: ScheduleRun,
    ) -> std::result::Result<(u64, Duration), StoreError> {
        engine::run_schedule(self, run).await
    }
}

pub(super) fn next_due(
    conn: &Connection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let first = |name: Option<&str>| -> Result<Option<Timestamp>> {
        let query =
            Query::new(format!("SELECT available_at FROM {0} INDEXED BY {0}", names.letters));
        let query = match name {
            Some(name) => query.push("_available_to WHERE consumer = ").bind(name),
            None => query.push("_available WHERE 1"),
        };
        query
            .push(" AND available_at IS NOT NULL ORDER BY available_at LIMIT 1")
            .first(conn, |row| Fields::after(row, 0).time())
    };
    let mut next = if consumers.is_empty() { first(None)? } else { None };
    for name in consumers {
        next = next.into_iter().chain(first(Some(name))?).min();
    }
    let release = operations::next_release(conn, names, consumers, now)?;
    Ok(next.into_iter().chain(release).min())
}
