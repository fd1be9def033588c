//! Calls to the database: on a connection of the pool, and again if the call lost against another or its connection
//! broke.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::PoisonError;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::PostgresStore;
use super::silence::AnswerTimeout;
use crate::error::{Again, Fault, Result};

/// Number of times that a transaction is run which loses against others.
// A call that loses means that another got through, so that all of them together do not stand still.
const TRIES: u32 = 20;

/// Number of times that a call is made again because its connection broke. More than once, since a connection of
/// another runtime that has ended may answer a ping and then no more.
const BREAKS: u32 = 3;

/// Returns a name that no other call has. It is written with what a call changes, so that the next try of the same call
/// finds out that an earlier one was carried out and only its answer was lost.
pub(super) fn new_call_id() -> [u8; 16] {
    // Hashers begin with random keys and no two have the same, which spares a crate for random numbers: nobody gains
    // anything by guessing a name.
    let half = || RandomState::new().build_hasher().finish().to_be_bytes();
    let (mut id, halves) = ([0; 16], [half(), half()]);
    id.copy_from_slice(halves.as_flattened());
    id
}

/// A call that is made until it succeeds or fails for good.
pub(super) struct Call<'s> {
    store: &'s PostgresStore,
    /// There is none only once the call has failed.
    conn: Option<PoolConnection<Postgres>>,
    /// True if a try has begun and not ended. If the call is dropped in it, the server may be in a transaction that
    /// nobody here knows of.
    under_way: bool,
    tries: u32,
    breaks: u32,
}

impl<'s> Call<'s> {
    pub(super) async fn begin(store: &'s PostgresStore) -> Result<Self> {
        let conn = Some(store.pool().acquire().await?);
        Ok(Self { store, conn, under_way: false, tries: 1, breaks: 0 })
    }

    /// The connection, for a try that [`settle`](Self::settle) ends.
    pub(super) fn conn(&mut self) -> &mut PgConnection {
        // A call that is dropped from here on leaves a transaction on the connection, which is closed for it.
        self.under_way = true;
        self.conn.as_deref_mut().expect("no connection was taken only where the call failed")
    }

    /// Returns the result of a try; `None` if it is to be made again.
    pub(super) async fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        // Whoever made the try has ended its transaction, also where it failed, so that the connection may go back to
        // the pool.
        self.under_way = false;
        let fault = match done {
            Ok(done) => return Ok(Some(done)),
            Err(fault) => fault,
        };
        match fault.again() {
            Again::Collided if self.tries < TRIES => self.tries += 1,
            Again::Broken => {
                // Given up first: all of the pool may be in the hands of calls that wait for another.
                self.close();
                if self.breaks == BREAKS {
                    return Err(fault);
                }
                self.breaks += 1;
                self.reconnect().await?;
            }
            // It is not made again: it has waited for all of the limit, and would for as long once more.
            Again::Silent => {
                self.close();
                self.store.close_idle();
                return Err(fault);
            }
            _ => return Err(fault),
        }
        Ok(None)
    }

    fn close(&mut self) {
        // A connection that is detached is dropped without a word to the server, for which a broken one would wait.
        drop(self.conn.take().map(PoolConnection::detach));
    }

    /// Takes a connection that answers: all that waited in the pool may be broken.
    async fn reconnect(&mut self) -> Result<()> {
        loop {
            self.conn = Some(self.store.pool().acquire().await?);
            let answer_timeout = self.store.answer_timeout;
            let conn = self.conn();
            // The pool tests no connection that it hands out, so this one is tested before the call is made again on
            // it.
            let Err(fault) = answer_timeout.on(async { Ok(conn.ping().await?) }).await else {
                return Ok(());
            };
            self.close();
            // The others will be no better.
            if fault.again() == Again::Silent {
                self.store.close_idle();
                return Err(fault);
            }
        }
    }
}

impl Drop for Call<'_> {
    /// Gives the connection back, unless a try is under way on it: the next call would run in its transaction, and be
    /// taken back with it. The pool waits for a connection that it is given, and would wait for ever.
    fn drop(&mut self) {
        if self.under_way {
            self.close();
        }
        let Some(mut conn) = self.conn.take() else { return };
        // Where silence has no limit, the pool may wait for a connection on its way back as long as calls do.
        let AnswerTimeout(Some(limit)) = self.store.answer_timeout else { return };
        // The pool takes connections back in a task, and outside of a runtime there is none.
        if Handle::try_current().is_err() {
            drop(conn.detach());
            return;
        }
        let returned = conn.return_to_pool();
        let mut returns = self.store.inner.returns.lock().unwrap_or_else(PoisonError::into_inner);
        // Returns that have ended are taken out here, or the set would grow for ever.
        while returns.try_join_next().is_some() {}
        returns.spawn(async move {
            // A connection that is not back by then is dropped, which makes room for another in the pool.
            let _ = timeout(limit, returned).await;
        });
    }
}

impl PostgresStore {
    /// Closes idle connections. Where one is dead, other idle ones may be: each would cost the next call as long.
    /// Connections of a pool that was handed over are left alone.
    fn close_idle(&self) {
        if !self.inner.owns_pool {
            return;
        }
        // Only idle connections are had without waiting. The others are found out by the calls that use them.
        while let Some(conn) = self.pool().try_acquire() {
            drop(conn.detach());
        }
    }
}

/// A connection for one use, which is closed unless it is [given back](Self::give_back): who is dropped in the middle
/// leaves behind what nobody knows, and the pool would wait for it.
pub(super) struct Lent(Option<PoolConnection<Postgres>>);

impl Lent {
    pub(super) async fn from(pool: &PgPool) -> Result<Self> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    pub(super) fn conn(&mut self) -> &mut PgConnection {
        self.0.as_deref_mut().expect("only its end takes the connection")
    }

    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

/// Error that a transaction did not begin. It may have begun in part, so its connection is given up like a broken one.
pub(super) fn not_begun(error: sqlx::Error) -> Fault {
    Fault::from(error).with_again(Again::Broken)
}

/// Begins a transaction where the connection is one of a pooler: it is the same one only until a transaction ends, and a
/// statement is prepared first and then run.
pub(super) async fn pin(shared: Option<&str>, conn: &mut PgConnection) -> Result<()> {
    if let Some(begin) = shared {
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(conn).await.map_err(not_begun)?;
    }
    Ok(())
}

/// Ends what [`pin`] began.
pub(super) async fn unpin<T>(
    shared: Option<&str>,
    conn: &mut PgConnection,
    done: Result<T>,
) -> Result<T> {
    if shared.is_some() {
        // Where the rollback fails as well, the connection is broken, and the database takes the transaction back.
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = sqlx::raw_sql(end).execute(conn).await;
        if done.is_ok() {
            ended?;
        }
    }
    done
}

/// Runs a future on a connection: `attempt!(store, conn => list(conn))`. It may be run more than once.
macro_rules! attempt {
    ($store:expr, $conn:ident => $work:expr) => {
        async {
            let shared = $store.inner.begin.shared();
            $crate::postgres::call::on_connection!($store, conn => async {
                $crate::postgres::call::pin(shared, conn).await?;
                let done: $crate::error::Result<_> = {
                    let $conn = &mut *conn;
                    $work.await
                };
                $crate::postgres::call::unpin(shared, conn, done).await
            })
        }
        .await
    };
}

/// The same for a future that begins a transaction itself.
macro_rules! on_connection {
    ($store:expr, $conn:ident => $work:expr) => {
        async {
            let store: &$crate::postgres::PostgresStore = $store;
            let mut call = $crate::postgres::call::Call::begin(store).await?;
            loop {
                let $conn = call.conn();
                let done: $crate::error::Result<_> = store.answer_timeout.on($work).await;
                if let Some(done) = call.settle(done).await? {
                    return Ok::<_, $crate::error::Fault>(done);
                }
            }
        }
        .await
    };
}

pub(super) use {attempt, on_connection};
