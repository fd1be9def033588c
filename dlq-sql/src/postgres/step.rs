//! [`Step`]: one atomic step of a verb, which is a transaction.
//!
//! Rows that the verb needs are [loaded](super::load) and locked, the verb decides over them in memory, asks for more and
//! decides anew, and its changes are [written](super::write) all at once. Letters are locked first, in the order of their
//! ids, then operations, so that calls wait for each other but rarely in a circle; where they do, the database ends one of
//! them, and that one is run again.

use std::collections::BTreeSet;

use dlq_core::{StoreError, Timestamp};
use dlq_letters::{Done, Needs, Rows, Select, Verb};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Transaction};

use super::call::{not_begun, on_connection};
use super::codec::Fields;
use super::doubt::{Doubt, ended_before};
use super::names::Names;
use super::query::{DURABLE, Query};
use super::silence::MANY;
use super::{Inner, PostgresStore};
use crate::error::{Fault, Result};
use crate::values::Take as _;

impl PostgresStore {
    /// Runs a verb, again where it lost against another call or its connection broke. The refusal of the verb itself is the
    /// inner error.
    pub(super) async fn decide<V: Verb>(
        &self,
        verb: &V,
    ) -> Result<std::result::Result<Done<V::Output>, StoreError>> {
        let mut needs = Needs::default();
        verb.needs(&mut needs);
        let mut is_walk = has_walk(&needs);
        // It outlives the connection: another one is asked what became of the transaction.
        let mut doubt = None;
        loop {
            let store = if is_walk { &self.for_many_letters() } else { self };
            let decided = on_connection!(store, conn => async {
                let mut step = Step::begin(conn, &store.inner, store.given_time()).await?;
                if V::ONCE {
                    // An earlier try may have been committed, and its answer lost: it is asked before anything is decided
                    // anew.
                    if let Some((done, woken)) = ended_before(step.conn(), &mut doubt).await? {
                        return Ok(Decided::Done(done, woken));
                    }
                    // The number is taken before the first write: once the COMMIT is on its way it is too late to ask for
                    // the number.
                    step.take_number().await?;
                }
                if is_walk {
                    step.take_time().await?;
                }
                // A future that is dropped in here leaves the transaction open. `Call` then closes the connection, and
                // with it the database takes everything back.
                let decided = step.work(verb, &needs, is_walk).await;
                step.end(decided, &mut doubt).await
            })?;
            return Ok(match decided {
                Decided::Done(done, woken) => {
                    // Others are told after the commit: a process that hears of it earlier finds nothing that is due.
                    self.say(woken).await;
                    self.wrote(1).await;
                    Ok(done)
                }
                Decided::Unchanged(answer) => Ok(Done { answer, note: None }),
                Decided::Refused(refusal) => Err(refusal),
                Decided::Walk => {
                    is_walk = true;
                    continue;
                }
            });
        }
    }
}

/// Result of a verb.
enum Decided<T> {
    /// The answer, and whose letters became due.
    Done(Done<T>, BTreeSet<String>),
    /// The answer of a verb that changed nothing.
    Unchanged(T),
    Refused(StoreError),
    /// It asks for what takes more time than it was given.
    Walk,
}

fn has_walk(needs: &Needs) -> bool {
    needs.selects.iter().any(|(select, _)| is_walk(select))
}

/// Returns true if a selection looks at all letters that match, however many they are, and is given [`MANY`] times as long
/// as other statements.
fn is_walk(select: &Select) -> bool {
    matches!(select, Select::Frozen { .. } | Select::Matching { .. } | Select::Open { .. })
}

/// An atomic step of a verb.
pub(super) struct Step<'c> {
    transaction: Transaction<'c, Postgres>,
    pub(super) store: &'c Inner,
    now: Timestamp,
    /// The number of the transaction, by which the server knows later what became of it; where it was taken.
    number: Option<String>,
}

impl<'c> Step<'c> {
    pub(super) async fn begin(
        conn: &'c mut PgConnection,
        store: &'c Inner,
        given: Option<Timestamp>,
    ) -> Result<Self> {
        let begun = conn.begin_with(AssertSqlSafe(&*store.begin.sql)).await;
        let mut transaction = begun.map_err(not_begun)?;
        // The whole step has one time. `DURABLE` holds to the end of the transaction, so that its commit waits for the
        // disk (G1).
        let now = Query::new("SELECT ").now(given).push(&format!(" WHERE {DURABLE}"));
        let now = now.first(&mut transaction, |row| Fields::of(row).time()).await?;
        Ok(Self { transaction, store, now: now.unwrap_or_default(), number: None })
    }

    pub(super) fn conn(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    pub(super) fn names(&self) -> &'c Names {
        &self.store.names
    }

    /// The time of the call.
    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Lets the server say later what became of the transaction.
    async fn take_number(&mut self) -> Result<()> {
        let number = Query::new("SELECT pg_current_xact_id()::text");
        self.number = number.first(self.conn(), |row| Fields::of(row).text()).await?;
        Ok(())
    }

    /// Gives the statements that follow [`MANY`] times as long.
    async fn take_time(&mut self) -> Result<()> {
        let longer = format!(
            "SELECT set_config(name, least(setting::bigint * {MANY}, {})::text, true) \
             FROM pg_settings WHERE name = 'statement_timeout'",
            i32::MAX
        );
        Query::new(longer).run(self.conn()).await?;
        Ok(())
    }

    /// Lets a verb decide, and writes what it changes.
    async fn work<V: Verb>(
        &mut self,
        verb: &V,
        needs: &Needs,
        has_time: bool,
    ) -> Result<Decided<V::Output>> {
        let mut rows = Rows::new(self.now);
        self.load(needs, &mut rows).await?;
        let answer = loop {
            match rows.attempt(verb) {
                Ok(Some(answer)) => break answer,
                // The time-out of the transaction is that of a short call: it is begun anew with more.
                Ok(None) if !has_time && has_walk(rows.missing()) => return Ok(Decided::Walk),
                Ok(None) => {
                    let missing = rows.missing().clone();
                    self.load(&missing, &mut rows).await?;
                }
                Err(refusal) => return Ok(Decided::Refused(refusal)),
            }
        };
        // What changed nothing is rolled back, which waits for no disk.
        if rows.is_unchanged() {
            return Ok(Decided::Unchanged(answer));
        }
        let note = self.write(&rows).await?;
        Ok(Decided::Done(Done { answer, note }, rows.woken()))
    }

    /// Makes what was written durable; or, where the call failed or changed nothing, takes it back. Its locks are gone then:
    /// a letter that is still locked would be passed over by whoever claims. What was to be said of a COMMIT whose answer
    /// was lost is left in `doubt`.
    async fn end<T>(
        self,
        decided: Result<Decided<T>>,
        doubt: &mut Option<Doubt<Done<T>>>,
    ) -> Result<Decided<T>> {
        match decided {
            Ok(Decided::Done(done, woken)) => {
                if let Err(error) = self.transaction.commit().await {
                    let fault = Fault::from(error);
                    let after = |number| Doubt::after(&fault, number, (done, woken));
                    *doubt = self.number.and_then(after);
                    return Err(fault);
                }
                Ok(Decided::Done(done, woken))
            }
            other => {
                // Where this fails too, the connection is broken, and the database takes it back.
                let _ = self.transaction.rollback().await;
                other
            }
        }
    }

    /// The same for what is no verb. `done` is the number of the transaction.
    pub(super) async fn close_once(
        mut self,
        done: Result<Option<String>>,
        doubt: &mut Option<Doubt<Done<()>>>,
    ) -> Result<()> {
        let done = done.map(|number| {
            self.number = number;
            Decided::Done(Done { answer: (), note: None }, BTreeSet::new())
        });
        self.end(done, doubt).await.map(drop)
    }

    /// The same for what is no verb, and may be done again.
    pub(super) async fn close<T>(self, done: Result<T>) -> Result<T> {
        match &done {
            Ok(_) => self.transaction.commit().await?,
            Err(_) => drop(self.transaction.rollback().await),
        }
        done
    }
}
