use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, KeyState, Release,
};
use dlq_core::{SharedClock, StoreError, Timestamp};
use rusqlite::Connection;

use super::SqliteStore;
use super::binder::Binder;
use super::codec::Fields;
use super::names::Names;
use super::query::{Bind, Query};
use super::unit::Unit;
use crate::error::{During, Fault, Result};
use crate::values::{self, Take as _};

/// Idempotency that survives the process, in the file of a [`SqliteStore`]. Cheap to clone.
///
/// Every answer is durable before it is given.
///
/// ```
/// use dlq_core::idempotency::{Idempotency, IdempotencyClaim};
/// use dlq_sql::sqlite::SqliteStore;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlq_core::StoreError> {
/// let keys = SqliteStore::in_memory().await?.idempotency();
/// let claim = keys.claim("payments".into(), "order-7".into(), Duration::from_secs(30)).await?;
/// let IdempotencyClaim::New { token, .. } = claim else { unreachable!() };
/// assert!(keys.complete(token, Duration::from_secs(86_400)).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteIdempotency {
    store: SqliteStore,
}

impl SqliteIdempotency {
    /// Opens the file at `path`, which is created where it is missing.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStore::open`].
    pub async fn open(path: impl AsRef<Path>) -> std::result::Result<Self, StoreError> {
        SqliteStore::open(path).await.map(Self::new)
    }

    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store }
    }

    /// Sets the clock by which this handle tells the time. Defaults to that of the store it came from.
    #[must_use]
    pub fn clock(self, clock: SharedClock) -> Self {
        Self { store: self.store.clock(clock) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// In flight until the lease ends.
    Held,
    Done,
    Free,
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Done => "done",
            Self::Free => "free",
        }
    }
}

impl std::str::FromStr for Phase {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        [Self::Held, Self::Done, Self::Free]
            .into_iter()
            .find(|phase| phase.as_str() == text)
            .ok_or("expected `held`, `done` or `free`")
    }
}

#[derive(Clone, Copy)]
struct Entry {
    fence: u64,
    attempts: u32,
    crashes: u32,
    phase: Phase,
    since: Timestamp,
    /// The end of the lease, or of the time for which what is done is kept; when a free key was freed.
    until: Timestamp,
}

impl Idempotency for SqliteIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> std::result::Result<IdempotencyClaim, StoreError> {
        // The time is read before the call waits for the writer: that makes this lease shorter, and ends no other one
        // too early.
        let now = self.store.now();
        let claim =
            move |unit: &mut Unit<'_>| unit.claim_key(&consumer, &key, now, now.after(lease));
        self.store.write(claim).await.during("claim a key")
    }

    async fn extend(
        &self,
        token: IdempotencyToken,
        lease: Duration,
    ) -> std::result::Result<bool, StoreError> {
        let until = self.store.now().after(lease);
        let extend = move |unit: &mut Unit<'_>| {
            unit.change_key(&token, |entry| match entry.phase {
                // Also where the lease has ended: until another claims the key, which changes the fence, the work is
                // this owner's.
                Phase::Held => Some(Entry { until, ..entry }),
                _ => None,
            })
        };
        self.store.write(extend).await.during("extend a key")
    }

    async fn complete(
        &self,
        token: IdempotencyToken,
        keep: Duration,
    ) -> std::result::Result<bool, StoreError> {
        let now = self.store.now();
        let until = now.after(keep);
        let complete = move |unit: &mut Unit<'_>| {
            unit.change_key(&token, |entry| match entry.phase {
                Phase::Held => Some(Entry { phase: Phase::Done, since: now, until, ..entry }),
                // A call that is made again changes nothing: time and duration stay those of the first.
                Phase::Done => Some(entry),
                Phase::Free => None,
            })
        };
        self.store.write(complete).await.during("complete a key")
    }

    async fn release(
        &self,
        token: IdempotencyToken,
        release: Release,
    ) -> std::result::Result<bool, StoreError> {
        let now = self.store.now();
        let release = move |unit: &mut Unit<'_>| {
            unit.change_key(&token, |mut entry| match entry.phase {
                Phase::Held => Some({
                    release.count(&mut entry.attempts, &mut entry.crashes);
                    Entry { phase: Phase::Free, since: now, until: now, ..entry }
                }),
                // The same release again counts nothing twice.
                Phase::Free => Some(entry),
                Phase::Done => None,
            })
        };
        self.store.write(release).await.during("release a key")
    }

    async fn look_up(
        &self,
        consumer: Arc<str>,
        key: Bytes,
    ) -> std::result::Result<KeyState, StoreError> {
        let now = self.store.now();
        let look = move |conn: &Connection, names: &Names| key_entry(conn, names, &consumer, &key);
        let entry = self.store.read(look).await.during("look up a key")?;
        Ok(match entry {
            Some(Entry { phase: Phase::Held, until, .. }) if until > now => {
                KeyState::InFlight { remaining: until.since(now) }
            }
            Some(Entry { phase: Phase::Done, since, until, .. }) if until > now => {
                KeyState::Done { at: since }
            }
            _ => KeyState::Free,
        })
    }

    async fn purge(&self, limit: u32) -> std::result::Result<u64, StoreError> {
        let now = self.store.now();
        let purge = move |unit: &mut Unit<'_>| {
            let table = &unit.names().idempotency;
            // SQLite is built without `LIMIT` for deletions, so the keys are selected first.
            let purged = Query::new(format!(
                "DELETE FROM {table} WHERE (consumer, key) IN (SELECT consumer, key FROM {table} WHERE until <= "
            ))
            .bind(now)
            .push(" AND (phase = 'done' OR until <= ")
            .bind(now.before(KEEP_FREE))
            .push(") LIMIT ")
            .bind(limit)
            .push(")")
            .run(unit.conn())?;
            Ok(purged as u64)
        };
        self.store.write(purge).await.during("purge keys")
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.store.identity())
    }
}

fn key_entry(
    conn: &Connection,
    names: &Names,
    consumer: &str,
    key: &[u8],
) -> Result<Option<Entry>> {
    Query::new(format!(
        "SELECT fence, attempts, crashes, phase, since, until FROM {} WHERE consumer = ",
        names.idempotency
    ))
    .bind(consumer)
    .push(" AND key = ")
    .bind(Bind::Value(key.to_vec().into()))
    .first(conn, |row| {
        let mut fields = Fields::after(row, 0);
        Ok::<_, Fault>(Entry {
            fence: i64::cast_unsigned(fields.next()?),
            attempts: fields.next()?,
            crashes: fields.next()?,
            phase: fields.word("phase of a key")?,
            since: fields.time()?,
            until: fields.time()?,
        })
    })
}

impl Unit<'_> {
    fn claim_key(
        &self,
        consumer: &Arc<str>,
        key: &Bytes,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<IdempotencyClaim> {
        let (mut attempts, mut crashes) = (0, 0);
        if let Some(entry) = self.key_entry(consumer, key)? {
            (attempts, crashes) = (entry.attempts, entry.crashes);
            match entry.phase {
                Phase::Held if entry.until > now => {
                    return Ok(IdempotencyClaim::InFlight { remaining: entry.until.since(now) });
                }
                Phase::Done if entry.until > now => {
                    return Ok(IdempotencyClaim::Done { at: entry.since });
                }
                // The lease has ended and nobody has said how the run ended: it counts as a crash (G3).
                Phase::Held => crashes = entry.crashes.saturating_add(1),
                // The time for which it was kept is over: the next claim is new work.
                Phase::Done => (attempts, crashes) = (0, 0),
                Phase::Free => {}
            }
        }
        // Each claim has a new token, also of a key that was forgotten in between: the one of a former owner never fits
        // again.
        let fence = self.fence()?;
        let entry = Entry { fence, attempts, crashes, phase: Phase::Held, since: now, until };
        self.write_key(consumer, key, &entry)?;
        let token = IdempotencyToken { consumer: consumer.clone(), key: key.clone(), fence };
        Ok(IdempotencyClaim::New { token, attempts, crashes })
    }

    /// Changes the entry of `token` if the token was the last that was given out for its key; whether it did.
    fn change_key(
        &self,
        token: &IdempotencyToken,
        change: impl FnOnce(Entry) -> Option<Entry>,
    ) -> Result<bool> {
        let entry = self.key_entry(&token.consumer, &token.key)?;
        // An owner that has lost the lease has a lower fence, and neither completes nor releases what another runs.
        let changed = entry.filter(|entry| entry.fence == token.fence).and_then(change);
        match changed {
            Some(entry) => self.write_key(&token.consumer, &token.key, &entry).map(|()| true),
            None => Ok(false),
        }
    }

    fn key_entry(&self, consumer: &str, key: &[u8]) -> Result<Option<Entry>> {
        key_entry(self.conn(), self.names(), consumer, key)
    }

    fn write_key(&self, consumer: &str, key: &[u8], entry: &Entry) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (consumer, key, fence, attempts, crashes, phase, since, until) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET fence = excluded.fence, \
             attempts = excluded.attempts, crashes = excluded.crashes, phase = excluded.phase, \
             since = excluded.since, until = excluded.until",
            self.names().idempotency
        );
        let mut statement = self.conn().prepare_cached(&sql)?;
        Binder::new(&mut statement)
            .bind(consumer)?
            .bind(key)?
            .bind(values::signed(entry.fence))?
            .bind(entry.attempts)?
            .bind(entry.crashes)?
            .bind(entry.phase.as_str())?
            .bind(entry.since.as_nanos())?
            .bind(entry.until.as_nanos())?;
        statement.raw_execute()?;
        Ok(())
    }
}
