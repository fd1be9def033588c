use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, KeyState, Release,
};
use dlq_core::{StoreError, Timestamp};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::FindOptions;

use crate::MongoStore;
use crate::codec::{number, text, time};
use crate::db::{Coll, Db};
use crate::error::{During, Fault, Result};
use crate::keys;

/// Idempotency keys in the database of a [`MongoStore`]. Cheap to clone.
///
/// A key is one document, and each change of it one conditional update:
///
/// | the process dies | what is stored | then |
/// |---|---|---|
/// | before a claim is written | what was | the key is free as before |
/// | after it, told or not | held | the lease ends, and the next claim counts a crash |
/// | after the handler, before `complete` | held | the same |
/// | `complete` or `release`, answer lost | done or free, under the same fence | the same call again changes nothing, and is `true` |
///
/// Keys are forgotten by an index of the server (`expires`, to about a minute) and by
/// [`purge`](Idempotency::purge).
#[derive(Clone, Debug)]
pub struct MongoIdempotency {
    store: MongoStore,
}

/// A key as it is stored.
#[derive(Clone, Copy, Debug)]
struct Entry {
    fence: i64,
    phase: Phase,
    attempts: u32,
    crashes: u32,
    at: Timestamp,
    until: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Done,
    Free,
}

impl Phase {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Done => "done",
            Self::Free => "free",
        }
    }
}

impl MongoIdempotency {
    /// Opens the keys at this URL; see [`MongoStore::open`].
    ///
    /// # Errors
    ///
    /// See [`MongoBuilder::open`](crate::MongoBuilder::open).
    pub async fn open(url: impl Into<String>) -> std::result::Result<Self, StoreError> {
        MongoStore::open(url).await.map(Self::of)
    }

    pub(crate) const fn of(store: MongoStore) -> Self {
        Self { store }
    }

    fn db(&self) -> &Db {
        self.store.db()
    }
}

/// The id of a key: its consumer with the length in front, then the key.
fn id(consumer: &str, key: &[u8]) -> Bson {
    let mut bytes = (consumer.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(consumer.as_bytes());
    bytes.extend_from_slice(key);
    keys::binary(bytes)
}

fn count(document: &Document, name: &str) -> u32 {
    number(document, name).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

impl Db {
    async fn key(&self, id: &Bson) -> Result<Option<Entry>> {
        let Some(found) = self.find_one(Coll::Keys, doc! { "_id": id.clone() }).await? else {
            return Ok(None);
        };
        let phase = match text(&found, "phase") {
            Some("held") => Phase::Held,
            Some("done") => Phase::Done,
            Some("free") => Phase::Free,
            _ => return Err(Fault::corrupt("idempotency key", &"its phase is unknown")),
        };
        let at = |name| Timestamp::from_nanos(number(&found, name).unwrap_or(0));
        Ok(Some(Entry {
            fence: number(&found, "fence").unwrap_or(0),
            phase,
            attempts: count(&found, "attempts"),
            crashes: count(&found, "crashes"),
            at: at("at"),
            until: at("until"),
        }))
    }

    /// The time at which a key may be forgotten: for `purge`, and for the server, whose clock it is then.
    fn forget(&self, at: Timestamp, set: &mut Document) {
        set.insert("forget", time(at));
        // The server forgets by its own clock, with which a given one need not agree.
        if self.has_own_time() {
            // Such a time has whole milliseconds, and one more keeps the server from forgetting too early.
            set.insert("expires", Bson::DateTime(DateTime::from_millis(at.as_millis() + 1)));
        }
    }

    async fn claim_key(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim> {
        let id = id(&consumer, &key);
        loop {
            let now = self.now().await?;
            let found = self.key(&id).await?;
            // What is found may change before the write below. The write has it as its condition, and the loop looks
            // again.
            if let Some(entry) = found.filter(|entry| entry.until > now) {
                match entry.phase {
                    Phase::Held => {
                        return Ok(IdempotencyClaim::InFlight {
                            remaining: entry.until.since(now),
                        });
                    }
                    Phase::Done => return Ok(IdempotencyClaim::Done { at: entry.at }),
                    Phase::Free => {}
                }
            }
            let (attempts, crashes) = match found {
                None | Some(Entry { phase: Phase::Done, .. }) => (0, 0),
                Some(Entry { phase: Phase::Held, attempts, crashes, .. }) => {
                    (attempts, crashes.saturating_add(1))
                }
                Some(Entry { phase: Phase::Free, attempts, crashes, .. }) => (attempts, crashes),
            };
            // Greater than any of this key, also where it was forgotten in between.
            let clock = self.server_now().await?.as_nanos() / 1_000;
            let fence = found.map_or(clock, |entry| entry.fence + 1);
            let (until, token) = (now.after(lease), ObjectId::new());
            let mut set = doc! {
                "phase": Phase::Held.as_str(),
                "fence": fence,
                "attempts": i64::from(attempts),
                "crashes": i64::from(crashes),
                "at": time(now),
                "until": time(until),
                "w": token,
            };
            self.forget(until.after(KEEP_FREE), &mut set);
            let wrote = match found {
                None => {
                    set.insert("_id", id.clone());
                    set.insert("consumer", &*consumer);
                    self.insert(Coll::Keys, vec![set]).await?
                }
                Some(entry) => {
                    // The whole state is the condition: of two who found the lease ended only one claims.
                    let q = doc! {
                        "_id": id.clone(),
                        "fence": entry.fence,
                        "phase": entry.phase.as_str(),
                        "until": time(entry.until),
                    };
                    self.update(Coll::Keys, vec![doc! { "q": q, "u": { "$set": set } }]).await?
                }
            };
            let is_ours = wrote.n == 1 || {
                // The answer to a claim of ours may have been lost.
                let ours = doc! { "_id": id.clone(), "w": token };
                wrote.is_repeated && self.find_one(Coll::Keys, ours).await?.is_some()
            };
            if is_ours {
                let token = IdempotencyToken { consumer, key, fence: fence.cast_unsigned() };
                return Ok(IdempotencyClaim::New { token, attempts, crashes });
            }
        }
    }

    /// Changes a key that is held by this token. True if it is so now, by this call or an earlier one.
    async fn change_held(
        &self,
        token: &IdempotencyToken,
        mut set: Document,
        is_so: Phase,
    ) -> Result<bool> {
        let id = id(&token.consumer, &token.key);
        let q = doc! {
            "_id": id.clone(),
            "fence": token.fence.cast_signed(),
            "phase": Phase::Held.as_str(),
        };
        set.insert("phase", is_so.as_str());
        let wrote = self.update(Coll::Keys, vec![doc! { "q": q, "u": { "$set": set } }]).await?;
        if wrote.n == 1 {
            return Ok(true);
        }
        // Nothing matched: an earlier try of this call has done it, or the claim is lost.
        let found = self.key(&id).await?;
        Ok(found
            .is_some_and(|entry| entry.fence == token.fence.cast_signed() && entry.phase == is_so))
    }

    async fn release_key(&self, token: &IdempotencyToken, release: Release) -> Result<bool> {
        let now = self.now().await?;
        let found = self.key(&id(&token.consumer, &token.key)).await?;
        // Counts of a key that is held change with its fence only.
        let is_ours = |entry: &Entry| entry.fence == token.fence.cast_signed();
        let Some(entry) = found.filter(is_ours) else { return Ok(false) };
        let (mut attempts, mut crashes) = (entry.attempts, entry.crashes);
        release.count(&mut attempts, &mut crashes);
        let mut set = doc! {
            "attempts": i64::from(attempts),
            "crashes": i64::from(crashes),
            "at": time(now),
            "until": time(now),
        };
        self.forget(now.after(KEEP_FREE), &mut set);
        self.change_held(token, set, Phase::Free).await
    }
}

impl Idempotency for MongoIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> std::result::Result<IdempotencyClaim, StoreError> {
        self.db().claim_key(consumer, key, lease).await.during("claim a key")
    }

    async fn extend(
        &self,
        token: IdempotencyToken,
        lease: Duration,
    ) -> std::result::Result<bool, StoreError> {
        const DURING: &str = "extend the claim of a key";
        let until = self.db().now().await.during(DURING)?.after(lease);
        let mut set = doc! { "until": time(until) };
        self.db().forget(until.after(KEEP_FREE), &mut set);
        self.db().change_held(&token, set, Phase::Held).await.during(DURING)
    }

    async fn complete(
        &self,
        token: IdempotencyToken,
        keep: Duration,
    ) -> std::result::Result<bool, StoreError> {
        const DURING: &str = "complete a key";
        let now = self.db().now().await.during(DURING)?;
        let until = now.after(keep);
        let mut set = doc! { "at": time(now), "until": time(until) };
        self.db().forget(until, &mut set);
        self.db().change_held(&token, set, Phase::Done).await.during(DURING)
    }

    async fn release(
        &self,
        token: IdempotencyToken,
        release: Release,
    ) -> std::result::Result<bool, StoreError> {
        self.db().release_key(&token, release).await.during("release a key")
    }

    async fn look_up(
        &self,
        consumer: Arc<str>,
        key: Bytes,
    ) -> std::result::Result<KeyState, StoreError> {
        const DURING: &str = "look up a key";
        let now = self.db().now().await.during(DURING)?;
        let found = self.db().key(&id(&consumer, &key)).await.during(DURING)?;
        Ok(match found.filter(|entry| entry.until > now) {
            Some(Entry { phase: Phase::Held, until, .. }) => {
                KeyState::InFlight { remaining: until.since(now) }
            }
            Some(Entry { phase: Phase::Done, at, .. }) => KeyState::Done { at },
            _ => KeyState::Free,
        })
    }

    async fn purge(&self, limit: u32) -> std::result::Result<u64, StoreError> {
        const DURING: &str = "purge keys";
        if limit == 0 {
            return Ok(0);
        }
        let db = self.db();
        let old = doc! { "$lte": time(db.now().await.during(DURING)?) };
        let options = FindOptions::builder()
            .sort(doc! { "forget": 1_i32 })
            .limit(i64::from(limit))
            .projection(doc! { "fence": 1_i32 })
            .build();
        let found = db.find(Coll::Keys, doc! { "forget": old.clone() }, options).await;
        // The fence is part of the condition, since a key may be claimed between the two commands.
        let delete = |found: &Document| {
            // One that was claimed meanwhile is kept.
            let mut q = found.clone();
            q.insert("forget", old.clone());
            doc! { "q": q, "limit": 1_i32 }
        };
        let deletes = found.during(DURING)?.iter().map(delete).collect();
        db.delete(Coll::Keys, deletes).await.map(|wrote| wrote.n).during(DURING)
    }

    fn store_identity(&self) -> Option<String> {
        Some(format!("{} keys", self.store.identity()))
    }
}
