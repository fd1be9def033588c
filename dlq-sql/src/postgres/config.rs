use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::{SharedClock, StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tokio::time::timeout;

use super::call::{Lent, pin, unpin};
use super::codec::Fields;
use super::names::{DEFAULT_TABLE, Names, is_plain};
use super::query::Query;
use super::silence::AnswerTimeout;
use super::sink::LARGEST;
use super::{Begin, Inner, PostgresStore, migrate, schema};
use crate::error::{During, Fault, Result};
use crate::values::Take as _;

/// Time that an answer may take longer than its statement.
const SLACK: Duration = Duration::from_secs(10);

/// Time limit for a single connection, made to learn why none was to be had.
const ALONE: Duration = Duration::from_secs(2);

/// Builder of a [`PostgresStore`].
///
/// ```no_run
/// use dlq_sql::postgres::PostgresStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::builder("postgres://ana@localhost/orders").schema("dlq").dedup(true).open().await?;
/// # drop(store);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct PostgresBuilder {
    place: Connection,
    schema: Option<String>,
    table: String,
    clock: Option<SharedClock>,
    dedup: Option<bool>,
    migrate: bool,
    max_connections: u32,
    acquire_timeout: Duration,
    statement_timeout: Duration,
    answer_timeout: Option<Duration>,
    largest: usize,
    pooler: bool,
}

#[derive(Clone)]
enum Connection {
    /// May hold a password.
    Url(String),
    Pool(PgPool),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Url(_) => "Url",
            Self::Pool(_) => "Pool",
        })
    }
}

impl PostgresBuilder {
    pub(super) fn new(url: impl Into<String>) -> Self {
        Self::at(Connection::Url(url.into()))
    }

    pub(super) fn with(pool: PgPool) -> Self {
        Self::at(Connection::Pool(pool))
    }

    fn at(place: Connection) -> Self {
        Self {
            place,
            schema: None,
            table: DEFAULT_TABLE.to_owned(),
            clock: None,
            dedup: None,
            migrate: true,
            max_connections: 10,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            answer_timeout: None,
            largest: LARGEST,
            pooler: false,
        }
    }

    /// Sets the schema in which the tables are: letters, digits and underscores, at most 44 of them. Created where it is
    /// missing. Defaults to the first of the connection's `search_path`, most often `public`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the name of the table of letters: letters, digits and underscores, at most 44 of them. Several stores may
    /// share a schema under different names; the other tables of each are named after it. Defaults to `dlq_events`, with
    /// `audit_log` and `dlq_…` beside it.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// Sets the clock by which the store tells the time; for tests. Defaults to that of the database.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets whether letters of the same original message are kept as one. Kept in the database, for everyone who opens
    /// it. Letters that are there already stay as they are; [`Maintenance::deduplicate`](dlq_core::store::Maintenance::deduplicate)
    /// collapses them. Defaults to what the database says; a new one says no.
    pub fn dedup(mut self, dedup: bool) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Sets whether opening creates missing tables and migrates older ones. Without it, only tables that this program
    /// knows are opened, and no right to create is needed. Defaults to yes.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Sets how many connections are open at most, beside the one that [listens](super). Does nothing to a pool that was handed over. Defaults to 10.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections.max(1);
        self
    }

    /// Sets how long a call waits for a connection before it fails as `Unavailable`. Does nothing to a pool that was
    /// handed over. Defaults to ten seconds.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// Sets how long a statement may run before it fails as `Unavailable`; zero means for ever. Does nothing to a pool
    /// that was handed over, unless behind a [`pooler`](Self::pooler). Defaults to 30 seconds.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Sets how long the database may be silent before a call gives it up, closes the connection and fails as
    /// `Unavailable`; zero means for ever. A call that it is answering, however slowly, is not cut off. Whether a call
    /// that was given up has been carried out is not known; it may be made again. To be longer than
    /// [`statement_timeout`](Self::statement_timeout), or no statement could take that long. What the database is given
    /// time for (migrating, deduplicating, looking for damage) may be silent for six hours; calls on all letters that match
    /// (starting and cancelling operations, marking, deleting) for ten times as long, as their statements may run.
    ///
    /// On a pool that was handed over only the connection of that call is closed; on one of the store's own, those that
    /// nobody uses too, since they are most often as dead.
    ///
    /// Defaults to ten seconds more than the statement time-out. Defaults to for ever where that is for ever, and for a
    /// pool that was handed over: set it there, to more than the longest statement takes that the pool's own
    /// `statement_timeout` allows. Behind a [`pooler`](Self::pooler) the first goes for such a pool too.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = Some(timeout);
        self
    }

    /// Sets whether a pooler in transaction mode stands before the database. Every call is then one transaction, which
    /// takes two round trips more; nothing is prepared for later and no setting of a connection is changed; nobody
    /// [listens](super), so that consumers find at their next poll what others made due; and older tables are not migrated:
    /// do that with `dlq migrate`, past the pooler. A pool that is handed over must have no cache of statements
    /// (`statement_cache_capacity(0)`). Defaults to no.
    pub fn pooler(mut self, pooler: bool) -> Self {
        self.pooler = pooler;
        self
    }

    /// Lowers how many bytes a letter may have, for tests.
    #[doc(hidden)]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes.min(LARGEST);
        self
    }

    /// Opens the store. Creates the tables where they are missing and migrates older ones, unless
    /// [told otherwise](Self::migrate); safe when many do it at once.
    ///
    /// # Errors
    ///
    /// - `Unavailable`: the database does not answer.
    /// - `InvalidConfig`: the URL, a name or a time-out will not do, the login is refused, or a right is missing.
    /// - `NotFound`: there is no such database, or there are no tables and they are not to be created.
    /// - `Incompatible`: the tables are of a newer version of the schema, or of an older one and not to be migrated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves behind what was migrated so far; opening again goes on from there.
    pub async fn open(self) -> std::result::Result<PostgresStore, StoreError> {
        self.start().await.during("open the store")
    }

    async fn start(self) -> Result<PostgresStore> {
        let answer_timeout = self.checked_answer_timeout()?;
        let (pool, names) = self.connect().await?;
        let begin = self.begin()?;
        // The version is read without any lock first: most stores are up to date, and are opened without waiting for
        // anybody.
        let found = answer_timeout.on(schema::found(&pool, &names, &begin)).await?;
        // A pooler rules it out as well: a migration holds a lock on a connection of its own, which a pooler does not
        // give.
        if !self.migrate || self.pooler {
            schema::refuse_old(&names, found, &migrate::place(&pool.connect_options(), &names))?;
        } else if found < schema::latest() {
            answer_timeout.long().on(schema::ensure(&pool, &names, schema::latest())).await?;
        }
        let owns_pool = matches!(self.place, Connection::Url(_));
        let inner = Arc::new(Inner::new(pool, owns_pool, Arc::new(names), begin, self.largest));
        let store = PostgresStore { inner, answer_timeout, clock: self.clock };
        if let Some(dedup) = self.dedup {
            store.set_dedup(dedup).await?;
        }
        Ok(store)
    }

    /// Returns the time for which the database may be silent.
    pub(super) fn checked_answer_timeout(&self) -> Result<AnswerTimeout> {
        let statement = self.statement_timeout;
        // Else a statement that takes long looks like silence.
        let is_limited = self.limits_statements() && !statement.is_zero();
        let default = if is_limited { statement + SLACK } else { Duration::ZERO };
        let answer = self.answer_timeout.unwrap_or(default);
        if !answer.is_zero() && answer <= statement && self.limits_statements() {
            return Err(Fault::new(
                StoreErrorKind::InvalidConfig,
                format!(
                    "`answer_timeout` is {} and `statement_timeout` {}; the first must be longer, or no statement could \
                     take the time that it is allowed",
                    duration::format(answer),
                    duration::format(statement)
                ),
            ));
        }
        Ok(AnswerTimeout(Some(answer).filter(|answer| !answer.is_zero())))
    }

    /// Returns true if the server is told to end statements: when a connection is made, or behind a pooler in each
    /// transaction.
    fn limits_statements(&self) -> bool {
        self.pooler || matches!(self.place, Connection::Url(_))
    }

    /// Connections, and what the tables are called; nothing has been looked at yet.
    pub(super) async fn connect(&self) -> Result<(PgPool, Names)> {
        for name in self.schema.iter().chain([&self.table]) {
            if !is_plain(name) {
                return Err(Fault::new(
                    StoreErrorKind::InvalidConfig,
                    format!(
                        "`{}` is not a name; use letters, digits and underscores, at most 44, and no leading digit",
                        name.chars().take(80).collect::<String>()
                    ),
                ));
            }
        }
        let pool = match &self.place {
            Connection::Pool(pool) => pool.clone(),
            Connection::Url(url) => self.pool(url).await?,
        };
        let schema = match &self.schema {
            Some(schema) => schema.clone(),
            None => {
                self.checked_answer_timeout()?.on(current_schema(&pool, &self.begin()?)).await?
            }
        };
        let names = Names::new(&schema, &self.table);
        Ok((pool, names))
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooler
    }

    /// Returns the time limits that the server enforces by itself.
    fn limits(&self) -> Result<[(&'static str, u128); 2]> {
        let statement = self.statement_timeout;
        // Who vanishes in the middle of a call is to leave no locks behind; and the server is to end that before it is
        // given up, so that a COMMIT which did not come is known to be none.
        let idle = self
            .checked_answer_timeout()?
            .0
            .map_or(Duration::ZERO, |answer| (statement + answer) / 2);
        let [statement, idle] = [statement, idle].map(|limit| limit.as_millis());
        Ok([("statement_timeout", statement), ("idle_in_transaction_session_timeout", idle)])
    }

    /// Returns the statement that begins a transaction.
    pub(super) fn begin(&self) -> Result<Begin> {
        // Locks and conditions are made for this level: a row that was waited for is looked at as it is then.
        let mut sql = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
        if self.pooler {
            // Another may have prepared something of the same name on the same connection.
            sql.push_str("; DEALLOCATE ALL");
            for (name, value) in self.limits()? {
                sql.push_str(&format!("; SET LOCAL {name} = {value}"));
            }
        }
        Ok(Begin { sql, is_pooled: self.pooler })
    }

    async fn pool(&self, url: &str) -> Result<PgPool> {
        let mut options = PgConnectOptions::from_str(url)?.disable_statement_logging();
        // Locks and conditions are made for this level, whatever the database or the user has set.
        let mut settings = "SET default_transaction_isolation = 'read committed'".to_owned();
        for (name, value) in self.limits()? {
            settings.push_str(&format!("; SET {name} = {value}"));
        }
        if self.pooler {
            // Nothing may stay on a connection that the next transaction of another client gets: neither prepared
            // statements nor settings. Poolers also refuse the start-up parameter for digits of floats.
            options = options.statement_cache_capacity(0).extra_float_digits(None);
            settings.clear();
        }
        let settings: Arc<str> = settings.into();
        let pool = PgPoolOptions::new()
            .max_connections(self.max_connections)
            .acquire_timeout(self.acquire_timeout)
            // A broken connection is found when it is used, and the call made again.
            .test_before_acquire(false)
            .after_connect(move |conn, _| {
                let settings = Arc::clone(&settings);
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(&*settings)).execute(conn).await.map(|_| ())
                })
            })
            .connect_with(options.clone())
            .await;
        match pool {
            Err(sqlx::Error::PoolTimedOut) => Err(why_not(&options).await.into()),
            pool => Ok(pool?),
        }
    }
}

/// Returns the reason why there was no connection. A pool tries until its time is up, and says no more than that; a
/// single connection says what is wrong.
async fn why_not(options: &PgConnectOptions) -> sqlx::Error {
    match timeout(ALONE, PgConnection::connect_with(options)).await {
        Ok(Err(error)) => error,
        _ => sqlx::Error::PoolTimedOut,
    }
}

async fn current_schema(pool: &PgPool, begin: &Begin) -> Result<String> {
    let mut lent = Lent::from(pool).await?;
    let conn = lent.conn();
    pin(begin.shared(), conn).await?;
    let schema = Query::new("SELECT current_schema()::text");
    let schema = schema.first(conn, |row| Fields::of(row).text_or_none()).await;
    let schema = unpin(begin.shared(), conn, schema).await?.flatten();
    lent.give_back();
    schema.ok_or_else(|| {
        Fault::new(
            StoreErrorKind::InvalidConfig,
            "the `search_path` of this user names no schema that there is; say which schema the tables are in",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libpq does: the user of the operating system, by the number of the process's user.
    #[test]
    fn who_names_no_user_is_who_runs_the_process() {
        let id = std::process::Command::new("id").arg("-un").output().unwrap();
        let named = std::env::var("PGUSER");
        let expected = named.unwrap_or_else(|_| String::from_utf8(id.stdout).unwrap());
        let options: PgConnectOptions = "postgres://localhost/orders".parse().unwrap();
        assert_eq!(options.get_username(), expected.trim());
    }

    /// The server ends no statement of a pool that was handed over, so no time is too long for one.
    #[tokio::test]
    async fn silence_is_limited_by_default_where_statements_are() {
        let pool = PgPoolOptions::new().connect_lazy("postgres://ana@127.0.0.1:1/orders").unwrap();
        let seconds = |builder: PostgresBuilder| {
            builder.checked_answer_timeout().unwrap().0.map(|d| d.as_secs())
        };
        let handed_over = || PostgresBuilder::with(pool.clone());
        assert_eq!(seconds(handed_over()), None);
        assert_eq!(seconds(handed_over().answer_timeout(Duration::from_secs(5))), Some(5));
        assert_eq!(seconds(handed_over().pooler(true)), Some(40));
        assert_eq!(seconds(PostgresBuilder::new("postgres://ana@127.0.0.1:1/orders")), Some(40));
    }
}
