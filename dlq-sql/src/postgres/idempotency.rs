use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, KeyState, Release,
};
use dlq_core::{SharedClock, StoreError, Timestamp};
use sqlx::PgConnection;

use super::PostgresStore;
use super::call::{attempt, new_call_id};
use super::codec::Fields;
use super::query::{DURABLE, Query};
use crate::error::{During, Result};
use crate::values::{Take as _, signed};

/// Idempotency that many machines share, in the database of a [`PostgresStore`]. Cheap to clone.
///
/// A claim is one statement, and every answer is durable before it is given.
#[derive(Clone, Debug)]
pub struct PostgresIdempotency {
    store: PostgresStore,
}

impl PostgresIdempotency {
    /// Opens the database at `url`.
    ///
    /// # Errors
    ///
    /// As for [`PostgresBuilder::open`](super::PostgresBuilder::open).
    pub async fn connect(url: impl Into<String>) -> std::result::Result<Self, StoreError> {
        PostgresStore::connect(url).await.map(Self::new)
    }

    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store }
    }

    /// Sets the clock by which this handle tells the time; for tests.
    #[must_use]
    pub fn clock(self, clock: SharedClock) -> Self {
        Self { store: self.store.clock(clock) }
    }

    /// `UPDATE … SET `, to go on with.
    fn update(&self) -> Query {
        Query::new(format!("UPDATE {} SET ", self.store.names().idempotency))
    }
}

/// Narrows a statement to the entry of `token`, if the token was the last that was given out for its key.
fn of(query: Query, token: &IdempotencyToken, phases: &str) -> Query {
    query
        .push(" WHERE ")
        .entry(&token.consumer, &token.key)
        .push(" AND fence = ")
        .bind(signed(token.fence))
        .push(&format!(" AND phase IN ({phases}) AND {DURABLE}"))
}

impl Query {
    /// Adds the condition that a row is that of this key.
    fn entry(self, consumer: &str, key: &[u8]) -> Self {
        // The index has hashes, since its rows are short and keys may be long; the columns are compared as well.
        let query = self.push("sha256(key) = sha256(").bind(key).push(") AND key = ").bind(key);
        let query = query.push(" AND md5(consumer) = md5(").bind(consumer);
        query.push(") AND consumer = ").bind(consumer)
    }
}

impl Idempotency for PostgresIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> std::result::Result<IdempotencyClaim, StoreError> {
        let store = &self.store;
        // The same for all tries: a claim whose answer was lost is recognised, and taken for nobody else's (G3).
        let call = new_call_id();
        attempt!(store, conn => async {
            // Whoever looks may be too late to see who was faster.
            loop {
                let claim = try_claim(conn, store, (&consumer, &key), (lease, &call)).await?;
                if let Some(claim) = claim {
                    return Ok(claim);
                }
            }
        })
        .during("claim a key")
    }

    async fn extend(
        &self,
        token: IdempotencyToken,
        lease: Duration,
    ) -> std::result::Result<bool, StoreError> {
        let store = &self.store;
        attempt!(store, conn => async {
            // Also where the lease has ended: until another claims the key, which changes the fence, the work is this
            // owner's.
            let update = self.update().push("until = ").after(store.given_time(), lease);
            Ok(of(update, &token, "'held'").run(conn).await? == 1)
        })
        .during("extend a key")
    }

    async fn complete(
        &self,
        token: IdempotencyToken,
        keep: Duration,
    ) -> std::result::Result<bool, StoreError> {
        let store = &self.store;
        attempt!(store, conn => async {
            let now = store.given_time();
            let update = self
                .update()
                // A call that is made again after a lost answer leaves time and duration as they were.
                .push("phase = 'done', since = CASE phase WHEN 'done' THEN since ELSE ")
                .now(now)
                .push(" END, until = CASE phase WHEN 'done' THEN until ELSE ")
                .after(now, keep)
                .push(" END");
            Ok(of(update, &token, "'held', 'done'").run(conn).await? == 1)
        })
        .during("complete a key")
    }

    async fn release(
        &self,
        token: IdempotencyToken,
        release: Release,
    ) -> std::result::Result<bool, StoreError> {
        let store = &self.store;
        // What is added to the attempts, and by what both counts are multiplied.
        let (failed, kept) = match release {
            Release::Failed => (1, 1_u32),
            Release::Unused => (0, 1),
            Release::Dead => (0, 0),
            Release::Forgiven(times) => (-i64::from(times), 1),
        };
        attempt!(store, conn => async {
            let now = store.given_time();
            let update = self
                .update()
                .push("phase = 'free', attempts = CASE phase WHEN 'held' THEN least(greatest(attempts * ")
                .bind(kept)
                .push(" + ")
                .bind(failed)
                .push(", 0), 4294967295) ELSE attempts END, crashes = CASE phase WHEN 'held' THEN crashes * ")
                .bind(kept)
                .push(" ELSE crashes END, since = CASE phase WHEN 'held' THEN ")
                .now(now)
                .push(" ELSE since END, until = CASE phase WHEN 'held' THEN ")
                .now(now)
                .push(" ELSE until END");
            Ok(of(update, &token, "'held', 'free'").run(conn).await? == 1)
        })
        .during("release a key")
    }

    async fn look_up(
        &self,
        consumer: Arc<str>,
        key: Bytes,
    ) -> std::result::Result<KeyState, StoreError> {
        let store = &self.store;
        attempt!(store, conn => look(conn, store, (&consumer, &key))).during("look up a key")
    }

    async fn purge(&self, limit: u32) -> std::result::Result<u64, StoreError> {
        let store = &self.store;
        let table = &store.names().idempotency;
        attempt!(store, conn => async {
            let now = store.given_time();
            let purge = Query::new(format!(
                "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE until <= "
            ));
            // A key that is not done is kept for longer: the next claim goes on from its counts. One that somebody is
            // just claiming is passed over, so that nobody waits for the purge.
            let purge = purge.now(now).push(" AND (phase = 'done' OR until <= ").before(now, KEEP_FREE);
            purge.push(") LIMIT ").bind(limit).push(" FOR UPDATE SKIP LOCKED))").run(conn).await
        })
        .during("purge keys")
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.store.identity())
    }
}

/// Condition that an earlier try of this call has claimed the key.
const OURS: &str = "(k.phase = 'held' AND k.call = excluded.call)";

/// Claims the key, or says who has it; `None` when that changed between the two.
async fn try_claim(
    conn: &mut PgConnection,
    store: &PostgresStore,
    (consumer, key): (&Arc<str>, &Bytes),
    (lease, call): (Duration, &[u8]),
) -> Result<Option<IdempotencyClaim>> {
    let names = store.names();
    let now = store.given_time();
    // It is the sequence of the claims: a token grows also where the key was forgotten in between.
    let fence = format!("nextval('{}')", names.fences);
    let claim = Query::new(format!(
        "INSERT INTO {} AS k (consumer, key, fence, attempts, crashes, phase, since, until, call) SELECT ",
        names.idempotency
    ))
    .bind(&**consumer)
    .push(", ")
    .bind(&key[..])
    .push(&format!(", {fence}, 0, 0, 'held', "))
    .now(now)
    .push(", ")
    .after(now, lease)
    .push(", ")
    .bind(call)
    .push(&format!(
        " WHERE {DURABLE} ON CONFLICT (sha256(key), md5(consumer)) DO UPDATE SET \
         fence = CASE WHEN {OURS} THEN k.fence ELSE {fence} END, \
         attempts = CASE k.phase WHEN 'done' THEN 0 ELSE k.attempts END, \
         crashes = CASE WHEN {OURS} THEN k.crashes WHEN k.phase = 'held' THEN least(k.crashes + 1, 4294967295) \
         WHEN k.phase = 'done' THEN 0 ELSE k.crashes END, phase = 'held', since = excluded.since, \
         until = excluded.until, call = excluded.call WHERE {OURS} OR k.phase = 'free' OR k.until <= "
    ))
    .now(now)
    .push(" RETURNING fence, attempts, crashes");
    let claimed = claim.first(conn, |row| {
        let mut fields = Fields::of(row);
        Ok((fields.unsigned()?, fields.count()?, fields.count()?))
    });
    if let Some((fence, attempts, crashes)) = claimed.await? {
        let token = IdempotencyToken { consumer: consumer.clone(), key: key.clone(), fence };
        return Ok(Some(IdempotencyClaim::New { token, attempts, crashes }));
    }
    Ok(match look(conn, store, (consumer, key)).await? {
        KeyState::Free => None,
        KeyState::InFlight { remaining } => Some(IdempotencyClaim::InFlight { remaining }),
        KeyState::Done { at } => Some(IdempotencyClaim::Done { at }),
    })
}

/// Says who has the key.
async fn look(
    conn: &mut PgConnection,
    store: &PostgresStore,
    (consumer, key): (&Arc<str>, &Bytes),
) -> Result<KeyState> {
    let look = Query::new("SELECT phase = 'done', since, until, ").now(store.given_time());
    let look = look.push(&format!(" FROM {} WHERE ", store.names().idempotency));
    let look = look.entry(consumer, key);
    let found = look.first(conn, |row| {
        let mut fields = Fields::of(row);
        Ok((fields.flag()?, fields.time()?, fields.time()?, fields.time()?))
    });
    // What is free has until = since, in the past.
    Ok(match found.await? {
        Some((true, at, until, now)) if until > now => KeyState::Done { at },
        Some((false, _, until, now)) if until > now => {
            KeyState::InFlight { remaining: Timestamp::since(until, now) }
        }
        _ => KeyState::Free,
    })
}
