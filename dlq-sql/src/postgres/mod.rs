//! [`PostgresStore`]: dead letters in PostgreSQL, for many processes on many machines.
//!
//! ```no_run
//! use dlq_core::{DeadLetters, Filter};
//! use dlq_sql::postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::connect("postgres://ana@localhost/orders").await?;
//! let letters = DeadLetters::new(store);
//! println!("{} letters", letters.count(Filter::new()).await?);
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! The same answers as the store in memory (`dlq-letters`), by the clock of the database, to the microsecond, and durability: a
//! call that writes returns once its transaction is committed (each switches `synchronous_commit` on where it is off, also on connections that were handed over). Any
//! number of processes may read, write and claim; a letter is claimed by one of them. PostgreSQL 13 or later.
//!
//! # How it works
//!
//! Letters are put by one statement for many. Claims are one statement too: due letters are locked with `SKIP LOCKED`,
//! leased, given a fencing token and returned, so that claimers never wait for each other. Everything else is decided by the
//! engine that all stores share ([`dlq_letters`]), in a short transaction that locks the letters it is about and writes all
//! changes at once. A transaction that loses against another is run again. Calls on very many letters are a transaction for
//! each thousand of them, so that others can work in between.
//!
//! Letters that operations release are claimed in the same transaction, with the operation locked: rate and canary hold
//! for all processes together.
//!
//! Whoever makes letters due says so (`NOTIFY`) once the transaction is committed, and consumers that wait in other processes
//! ask at once. Where it died in between, they find the letters at their next poll. For this each store listens, on one connection more than
//! [`max_connections`](PostgresBuilder::max_connections), from when somebody first waits until its last clone is dropped.
//! Where listening does not work, behind a [pooler](PostgresBuilder::pooler) that shares connections between transactions
//! for example, consumers find letters at their next poll.
//!
//! # On failure
//!
//! | what happens | what the caller sees | what is stored |
//! |---|---|---|
//! | the database stops or restarts, a connection is cut | the call is made again a few times, then `Unavailable` | all of the call, or nothing of it |
//! | a call is dropped before it returned | nothing; its connection is closed | all of the call, or nothing of it, and nothing of any other |
//! | no connection is free in time, a statement takes too long | `Unavailable` | as before |
//! | the database freezes, the network swallows what is sent | `Unavailable`, after the [`answer_timeout`](PostgresBuilder::answer_timeout) | all of the call, or nothing of it; what had arrived may be carried out once the database goes on |
//! | the disk is full, the database is a read-only replica | `Unavailable` | as before |
//! | a letter has more than about a gigabyte | `Refused`, with its id | the other letters of the call |
//! | a right is missing, the login is refused | `InvalidConfig`, with the right to grant | as before |
//! | the process dies before a call returned | nothing | all of the call, or nothing of it |
//! | the process dies after it claimed | nothing | the claim: its lease ends, the next claim counts a crash |
//! | the connection that listens is cut, or nothing comes through it any more | nothing, one line in the log | as before: it is made anew, and every consumer asks once |
//!
//! A put of more than some thousand letters is several transactions; written again, it changes nothing. That goes for
//! every call whose answer was lost: it is made again where what is done already changes nothing, and everywhere else the
//! database is asked first whether it was carried out. A claim that was made and that nobody was told of is as one whose
//! process died.
//!
//! # The tables
//!
//! One row per letter in `dlq_events`, among whose columns are `event_id` (the producer's), `subject`, `event_type`,
//! `data` (bytes), `error`, `status`, `retry_count`, `retry_after`, `created_at`, `updated_at` and `last_retry_at`. The
//! view `dlq_events_readable` shows payloads as text and JSON where they are:
//!
//! ```sql
//! SELECT created_at, consumer, error, data_json->>'customer' FROM dlq_events_readable
//! WHERE status = 'pending' AND created_at > now() - interval '1 hour' ORDER BY created_at;
//! ```
//!
//! `dlq_operations` and `dlq_operation_items` hold bulk replays, `dlq_audit` what operators did, `audit_log` the
//! processing audit, `dlq_counts` what there is of each kind, as differences to add up: triggers keep it right, also when
//! rows are changed by hand.
//!
//! Names of any length are stored and found. Indexes hold the first 400 characters of subjects, event types and consumers,
//! so SQL of one's own is answered from them by `left(consumer, 400) = 'orders.handle'`.
//!
//! # Rights
//!
//! Creating and migrating the tables needs `CREATE` on the schema. Everything else needs `USAGE` on the schema, `SELECT`,
//! `INSERT`, `UPDATE` and `DELETE` on the tables and `USAGE` on the sequence `dlq_fences`; open with
//! [`migrate(false)`](PostgresBuilder::migrate) then.

mod audit;
mod backend;
mod batch;
mod call;
mod check;
mod claims;
mod codec;
mod config;
mod counts;
mod dedup;
mod doubt;
mod due;
mod error;
mod filter;
mod finish;
pub mod foreign;
mod idempotency;
mod letters;
mod load;
mod marks;
mod migrate;
mod names;
mod operations;
mod parts;
mod plan;
mod query;
mod rights;
mod rows;
mod schema;
mod select;
mod silence;
mod sink;
mod step;
mod tables;
mod vitals;
mod wake;
mod write;

pub use config::PostgresBuilder;
pub use idempotency::PostgresIdempotency;

use std::sync::{Arc, Mutex};

use dlq_core::{SharedClock, StoreError, Timestamp};
use sqlx::PgPool;
use tokio::task::JoinSet;

use counts::Folding;
use names::Names;
use silence::AnswerTimeout;
use wake::Wakes;

/// A store in PostgreSQL. Cheap to clone; clones share the connections. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct PostgresStore {
    inner: Arc<Inner>,
    answer_timeout: AnswerTimeout,
    /// Clock, if the time does not come from the database.
    clock: Option<SharedClock>,
}

/// State that clones share.
#[derive(Debug)]
struct Inner {
    pool: PgPool,
    /// True if nobody else uses the pool.
    owns_pool: bool,
    names: Arc<Names>,
    begin: Begin,
    wakes: Wakes,
    folding: Folding,
    /// Maximum number of bytes of a letter.
    largest: usize,
    /// Connections on their way back to the pool.
    returns: Mutex<JoinSet<()>>,
}

/// Statement that begins a transaction.
#[derive(Debug)]
struct Begin {
    sql: String,
    is_pooled: bool,
}

impl Begin {
    /// Returns the statement that begins every call, if the connections are those of a pooler, so that every call has
    /// to be a transaction.
    fn shared(&self) -> Option<&str> {
        self.is_pooled.then_some(&*self.sql)
    }
}

impl Inner {
    fn new(pool: PgPool, owns_pool: bool, names: Arc<Names>, begin: Begin, largest: usize) -> Self {
        Self {
            pool,
            owns_pool,
            names,
            begin,
            wakes: Wakes::default(),
            folding: Folding::default(),
            largest,
            returns: Mutex::default(),
        }
    }
}

dlq_letters::store!(PostgresStore);

impl PostgresStore {
    /// Opens the store at `url`, `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with the settings of
    /// [`PostgresBuilder`].
    ///
    /// # Errors
    ///
    /// As for [`PostgresBuilder::open`].
    pub async fn connect(url: impl Into<String>) -> std::result::Result<Self, StoreError> {
        Self::builder(url).open().await
    }

    /// Settings to open the store at `url` with.
    pub fn builder(url: impl Into<String>) -> PostgresBuilder {
        PostgresBuilder::new(url)
    }

    /// Settings to open a store with on connections that the program has already. Their time-outs are the pool's: say by
    /// [`answer_timeout`](PostgresBuilder::answer_timeout) how long the database may be silent, or a call waits for ever.
    pub fn with_pool(pool: PgPool) -> PostgresBuilder {
        PostgresBuilder::with(pool)
    }

    /// Sets the clock by which this handle tells the time; for tests.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Idempotency in the same database.
    #[must_use]
    pub fn idempotency(&self) -> PostgresIdempotency {
        PostgresIdempotency::new(self.clone())
    }

    fn names(&self) -> &Names {
        &self.inner.names
    }

    /// The place of the tables.
    fn identity(&self) -> String {
        // Without the user: programs of different users may work with one store.
        migrate::at("", &self.inner.pool.connect_options(), self.names())
    }

    /// The time, where it does not come from the database.
    fn given_time(&self) -> Option<Timestamp> {
        // Rounded like a time that is stored, so that the two can be compared.
        self.clock.as_ref().map(|clock| codec::rounded(clock.now()))
    }

    /// The same, for a call for which the database is given time.
    fn for_long_work(&self) -> Self {
        Self { answer_timeout: self.answer_timeout.long(), ..self.clone() }
    }

    /// The same, for a call about all letters that match.
    fn for_many_letters(&self) -> Self {
        Self { answer_timeout: self.answer_timeout.for_many(), ..self.clone() }
    }

    fn pool(&self) -> &PgPool {
        &self.inner.pool
    }
}
