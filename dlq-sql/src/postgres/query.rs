//! [`Query`]: SQL text and what is bound to it, grown side by side.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::{LetterId, OperationId, Timestamp};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, Encode, PgConnection, Postgres, Type};

use super::batch::Batch;
use super::codec::{Time, escape};
use super::error::fault_of;
use crate::error::Result;

/// Two hundred years in microseconds: what is later than that is as late for a [`Timestamp`].
const LONGEST: i64 = 200 * 366 * 86_400 * 1_000_000;

/// A condition that is always met. A transaction that asks survives a crash once it is committed, whatever its connection
/// was told for others.
pub(super) const DURABLE: &str = "(SELECT set_config('synchronous_commit', \
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, \
    true) IS NOT NULL)";

/// A value for one `$n`.
pub(super) trait Bind {
    type Kind: for<'q> Encode<'q, Postgres> + Type<Postgres> + 'static;

    fn bind(self) -> Self::Kind;
}

macro_rules! binds {
    ($($type:ty: $value:ident => $to:expr, $kind:ty;)+) => {
        $(impl Bind for $type {
            type Kind = $kind;

            fn bind(self) -> $kind {
                let $value = self;
                $to
            }
        })+
    };
}

binds! {
    i64: value => value, i64;
    u32: value => value.into(), i64;
    bool: value => value, bool;
    Timestamp: value => Time(value), Time;
    LetterId: value => value.as_bytes().to_vec(), Vec<u8>;
    OperationId: value => value.as_bytes().to_vec(), Vec<u8>;
    Vec<u8>: value => value, Vec<u8>;
    &[u8]: value => value.to_vec(), Vec<u8>;
    &str: value => escape(value.into()).into_owned(), String;
    Option<&str>: value => value.map(|value| escape(value.into()).into_owned()), Option<String>;
    Option<i64>: value => value, Option<i64>;
    Option<Timestamp>: value => value.map(Time), Option<Time>;
    Option<OperationId>: value => value.map(|id| id.as_bytes().to_vec()), Option<Vec<u8>>;
    Vec<LetterId>: value => value.iter().map(|id| id.as_bytes().to_vec()).collect(), Vec<Vec<u8>>;
    Vec<Vec<u8>>: value => value, Vec<Vec<u8>>;
    Vec<i64>: value => value, Vec<i64>;
    &[String]: value => value.iter().map(|text| escape(text.into()).into_owned()).collect(), Vec<String>;
    Vec<&str>: value => value.iter().map(|text| escape((*text).into()).into_owned()).collect(), Vec<String>;
}

/// SQL text whose `$n` and bound values are added in the same order. Texts repeat, so that statements are prepared once.
#[derive(Debug, Default)]
pub(super) struct Query {
    sql: String,
    arguments: PgArguments,
    bound: usize,
}

impl Query {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }

    pub(super) fn push(mut self, sql: &str) -> Self {
        self.sql.push_str(sql);
        self
    }

    pub(super) fn add(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Puts text in front, in which nothing is bound.
    pub(super) fn before_it(mut self, sql: &str) -> Self {
        self.sql.insert_str(0, sql);
        self
    }

    /// Adds a `$n` with its value.
    pub(super) fn bind(mut self, value: impl Bind) -> Self {
        self.add_bind(value);
        self
    }

    pub(super) fn add_bind(&mut self, value: impl Bind) {
        self.bound += 1;
        self.sql.push_str(&format!("${}", self.bound));
        let bound = self.arguments.add(value.bind());
        // A failure would show when the statement runs, which then has fewer values than it names.
        debug_assert!(bound.is_ok(), "these kinds can always be encoded: {bound:?}");
    }

    /// Adds the time: that of the database, unless it is given.
    pub(super) fn now(self, given: Option<Timestamp>) -> Self {
        match given {
            Some(given) => self.bind(given),
            // Not `now()`, which is when the transaction began: behind a lock that may be long ago.
            None => self.push("statement_timestamp()"),
        }
    }

    /// Adds the time that lies `duration` after the present one.
    pub(super) fn after(self, given: Option<Timestamp>, duration: Duration) -> Self {
        match given {
            Some(given) => self.bind(given.after(duration)),
            None => self.push("statement_timestamp() + ").interval(duration),
        }
    }

    /// Adds the time that lies `duration` before the present one.
    pub(super) fn before(self, given: Option<Timestamp>, duration: Duration) -> Self {
        match given {
            Some(given) => self.bind(given.before(duration)),
            None => self.push("statement_timestamp() - ").interval(duration),
        }
    }

    fn interval(self, duration: Duration) -> Self {
        // It is rounded up: a lease must not end before the time that was asked for.
        let micros = i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX);
        self.bind(micros.min(LONGEST)).push(" * interval '1 microsecond'")
    }

    /// Adds `unnest(…)` of a batch.
    pub(super) fn batch(mut self, batch: Batch<'_>) -> Result<Self> {
        self.sql.push_str(&batch.unnest(self.bound + 1));
        self.bound += batch.width();
        batch.bind(&mut self.arguments)?;
        Ok(self)
    }

    /// Adds what to select for the columns of a batch, `FROM` and the batch itself.
    pub(super) fn select(mut self, mut batch: Batch<'_>) -> Result<Self> {
        self.sql.push_str(&batch.select(self.bound + 1));
        self.bound += batch.width();
        batch.bind(&mut self.arguments)?;
        Ok(self)
    }

    #[cfg(test)]
    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// Reads every row.
    pub(super) async fn all<T>(
        self,
        conn: &mut PgConnection,
        mut read: impl FnMut(&PgRow) -> Result<T>,
    ) -> Result<Vec<T>> {
        let sql = Arc::new(self.sql);
        // All text is our own, or names that were checked. What comes from outside is bound.
        let query = sqlx::query_with(AssertSqlSafe(Arc::clone(&sql)), self.arguments);
        let rows = query.fetch_all(conn).await.map_err(|error| fault_of(&sql, error))?;
        rows.iter().map(&mut read).collect()
    }

    /// Reads the first row, if there is one.
    pub(super) async fn first<T>(
        self,
        conn: &mut PgConnection,
        read: impl FnOnce(&PgRow) -> Result<T>,
    ) -> Result<Option<T>> {
        let sql = Arc::new(self.sql);
        let query = sqlx::query_with(AssertSqlSafe(Arc::clone(&sql)), self.arguments);
        let row = query.fetch_optional(conn).await.map_err(|error| fault_of(&sql, error))?;
        row.as_ref().map(read).transpose()
    }

    /// Runs it; how many rows it changed.
    pub(super) async fn run(self, conn: &mut PgConnection) -> Result<u64> {
        let sql = Arc::new(self.sql);
        let query = sqlx::query_with(AssertSqlSafe(Arc::clone(&sql)), self.arguments);
        Ok(query.execute(conn).await.map_err(|error| fault_of(&sql, error))?.rows_affected())
    }
}
