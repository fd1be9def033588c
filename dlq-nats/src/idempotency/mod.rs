//! Idempotency on a key-value bucket.
//!
//! A key is one entry, whose name is a hash of consumer and key, so that any bytes are a key and none is readable at the
//! server. It is *held* under a lease, *done*, or *free* with its counts.
//!
//! # Claiming
//!
//! A claim is one write that the server takes only if the entry is as it was seen (compare and set): of many that claim
//! at once one gets the key. The sequence of that write is the fence of the token; it grows for the whole bucket, also
//! when entries are removed. Whoever extends, completes or releases must still find that fence in the entry.
//!
//! # Whose clock
//!
//! The server's. A lease begins at the time that the server gave the write, and is compared with a time that the same
//! server tells; the clocks of processes play no part. A lease that seems to have ended is looked at again with the
//! server's time of that moment. When another server becomes the leader of the bucket, its clock counts: then a lease
//! ends early or late by as much as the clocks of the servers differ. (Servers before 2.10 tell no time: there the
//! clock of the process is used, and leases have to be well above the difference of the clocks.)
//!
//! # If the process dies here
//!
//! | state | next |
//! |---|---|
//! | before the claim is written | nothing has happened |
//! | the claim is written, its confirmation is not read | the lease ends, and counts as a crash |
//! | held, the handler runs | the same |
//! | the handler succeeded, `done` is not written | the same: the handler runs again |
//! | `done` is written | it is a duplicate from then on |
//!
//! # How long
//!
//! What is done is kept for as long as [`complete`](Idempotency::complete) says, but no longer than the bucket keeps
//! entries ([`IdempotencyBucket::max_age`]): the server removes them then, so that nobody has to call
//! [`purge`](Idempotency::purge), and consumers do not: it reads the whole bucket. A bucket that keeps entries for ever
//! needs somebody who does now and then.

mod bucket;
mod record;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use dlq_core::idempotency::{
    Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, KeyState, Release,
};
use dlq_core::{StoreError, StoreErrorKind};
use futures_util::StreamExt as _;

pub use bucket::IdempotencyBucket;
use record::{Phase, Record, Seen};

use crate::client::buckets;
use crate::client::jetstream::JetStream;
use crate::client::names::token;
use crate::client::server_time::ServerTime;

/// Number of tries of a write that others keep overtaking.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);
/// Time limit for the next entry while all are read.
const NEXT: Duration = Duration::from_secs(10);

/// Idempotency that all processes share, on a key-value bucket. Cheap to clone. See the [module docs](self).
///
/// ```no_run
/// # use dlq_core::idempotency::{Idempotency, IdempotencyClaim};
/// # use dlq_nats::idempotency::{IdempotencyBucket, NatsIdempotency};
/// # use std::time::Duration;
/// # async fn run(client: async_nats::Client) -> Result<(), dlq_core::StoreError> {
/// let keys = NatsIdempotency::open(&client, IdempotencyBucket::new().replicas(3)).await?;
/// let claim = keys.claim("payments".into(), "order-7".into(), Duration::from_secs(30)).await?;
/// if let IdempotencyClaim::New { token, .. } = claim {
///     keys.complete(token, Duration::from_secs(86_400)).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NatsIdempotency {
    client: Client,
    bucket: Store,
    settings: Arc<IdempotencyBucket>,
    time: Arc<ServerTime>,
}

impl NatsIdempotency {
    /// Opens the bucket, which is created when it is not there.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when it exists with other settings, or the server says that the user may not read or write it;
    /// `Unavailable` when it can neither be opened nor created.
    pub async fn open(
        jetstream: &impl JetStream,
        bucket: IdempotencyBucket,
    ) -> Result<Self, StoreError> {
        let context = jetstream.context();
        let client = context.client();
        let store = bucket.open(jetstream).await?;
        let time = Arc::new(ServerTime::new(context, &store.stream_name));
        Ok(Self { client, bucket: store, settings: Arc::new(bucket), time })
    }

    /// The entry of a key as the leader has it.
    async fn see(&self, key: &str, doing: &'static str) -> Result<Option<Seen>, StoreError> {
        let entry = buckets::read(&self.client, &self.bucket, key, doing).await?;
        entry.map(|entry| seen(&entry, doing)).transpose()
    }

    /// Writes an entry if it is as it was seen, and returns its revision; `None` when somebody was faster.
    async fn write(
        &self,
        key: &str,
        record: &Record,
        revision: u64,
        doing: &'static str,
    ) -> Result<Option<u64>, StoreError> {
        let value = serde_json::to_vec(record);
        let value = value.map_err(|error| corrupt(doing, error.to_string()))?;
        buckets::replace(&self.client, &self.bucket, key, value.into(), revision, doing).await
    }

    /// Changes the entry of `token` if the token was the last that was given out for its key; whether it is as wanted.
    async fn change(
        &self,
        token: &IdempotencyToken,
        doing: &'static str,
        change: impl Fn(&Record) -> Change,
    ) -> Result<bool, StoreError> {
        let key = name(&token.consumer, &token.key);
        for turn in 0..TRIES {
            // Without an entry, as where the bucket has removed it at its age, there is nothing left of the claim.
            let Some(seen) = self.see(&key, doing).await? else { return Ok(false) };
            // Somebody else has claimed the key since: a late word of the former owner changes nothing.
            let Some(record) = seen.record.filter(|_| seen.fence == token.fence) else {
                return Ok(false);
            };
            let changed = match change(&record) {
                Change::Is(so) => return Ok(so),
                // Each write has a revision of its own, so that the entry carries the fence of its claim from here on.
                Change::To(changed) => Record { fence: Some(token.fence), ..changed },
            };
            if self.write(&key, &changed, seen.revision, doing).await?.is_some() {
                return Ok(true);
            }
            wait(turn).await;
        }
        Err(busy(doing))
    }

    fn failed(&self, doing: &'static str, error: &(dyn std::error::Error + 'static)) -> StoreError {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        StoreError::new(StoreErrorKind::Unavailable, doing).with_detail(format!(
            "bucket `{}`: {error}{source}; see that it is there and can be reached",
            self.bucket.name
        ))
    }
}

enum Change {
    /// It is as wanted, or cannot be.
    Is(bool),
    To(Record),
}

impl Idempotency for NatsIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        const CLAIMING: &str = "claim a key";
        let entry = name(&consumer, &key);
        // The first try reads nothing: a key that is new costs one write.
        let mut seen: Option<Seen> = None;
        for turn in 0..TRIES {
            let (mut attempts, mut crashes) = (0, 0);
            if let Some(Seen { record: Some(record), at, .. }) = &seen {
                let until = at.after(record.span);
                let mut now = self.time.now().await?;
                if until <= now && record.phase != Phase::Free {
                    // A lease is not ended by a time that was kept for a while.
                    now = self.time.fresh().await?;
                }
                (attempts, crashes) = (record.attempts, record.crashes);
                match record.phase {
                    Phase::Held if until > now => {
                        return Ok(IdempotencyClaim::InFlight { remaining: until.since(now) });
                    }
                    Phase::Done if until > now => return Ok(IdempotencyClaim::Done { at: *at }),
                    // The lease has ended without a word: whoever held the key has died (G3).
                    Phase::Held => crashes = crashes.saturating_add(1),
                    // It was kept for long enough: from here on it is a key like one that nobody has seen.
                    Phase::Done => (attempts, crashes) = (0, 0),
                    Phase::Free => {}
                }
            }
            let revision = seen.as_ref().map_or(0, |seen| seen.revision);
            // The fence is the revision of this write, which only its confirmation tells.
            let held = Record { phase: Phase::Held, span: lease, attempts, crashes, fence: None };
            if let Some(fence) = self.write(&entry, &held, revision, CLAIMING).await? {
                let token = IdempotencyToken { consumer, key, fence };
                return Ok(IdempotencyClaim::New { token, attempts, crashes });
            }
            wait(turn).await;
            seen = self.see(&entry, CLAIMING).await?;
        }
        Err(busy(CLAIMING))
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let extend = |record: &Record| match record.phase {
            Phase::Held => Change::To(Record { span: lease, ..record.clone() }),
            Phase::Done | Phase::Free => Change::Is(false),
        };
        self.change(&token, "extend a key", extend).await
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        let longest = self.settings.max_age;
        if !longest.is_zero() && keep > longest {
            tracing::warn!(
                bucket = self.bucket.name,
                ?keep,
                max_age = ?longest,
                "a key is kept no longer than its bucket keeps entries; raise `max_age` of the bucket"
            );
        }
        let complete = |record: &Record| match record.phase {
            Phase::Held => Change::To(Record { phase: Phase::Done, span: keep, ..record.clone() }),
            // It was completed before, as where the answer was lost.
            Phase::Done => Change::Is(true),
            Phase::Free => Change::Is(false),
        };
        self.change(&token, "complete a key", complete).await
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        let release = |record: &Record| match record.phase {
            Phase::Held => Change::To({
                let (mut attempts, mut crashes) = (record.attempts, record.crashes);
                release.count(&mut attempts, &mut crashes);
                let (phase, span) = (Phase::Free, Duration::ZERO);
                Record { phase, span, attempts, crashes, ..record.clone() }
            }),
            // It was released before, as where the answer was lost.
            Phase::Free => Change::Is(true),
            Phase::Done => Change::Is(false),
        };
        self.change(&token, "release a key", release).await
    }

    async fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Result<KeyState, StoreError> {
        let seen = self.see(&name(&consumer, &key), "look up a key").await?;
        let Some(Seen { record: Some(record), at, .. }) = seen else { return Ok(KeyState::Free) };
        let until = at.after(record.span);
        let mut now = self.time.now().await?;
        if until <= now && record.phase != Phase::Free {
            // A lease is not ended by a time that was kept for a while.
            now = self.time.fresh().await?;
        }
        Ok(match record.phase {
            Phase::Held if until > now => KeyState::InFlight { remaining: until.since(now) },
            Phase::Done if until > now => KeyState::Done { at },
            _ => KeyState::Free,
        })
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        const PURGING: &str = "purge keys";
        if limit == 0 {
            return Ok(0);
        }
        let now = self.time.fresh().await?;
        let info = self.bucket.stream.get_info().await;
        if info.map_err(|error| self.failed(PURGING, &error))?.state.messages == 0 {
            // Nothing would come, not even an end.
            return Ok(0);
        }
        let entries = self.bucket.watch_with_history(">").await;
        let mut entries = entries.map_err(|error| self.failed(PURGING, &error))?;
        let mut purged = 0;
        let mut is_last = false;
        while !is_last && purged < u64::from(limit) {
            let next = tokio::time::timeout(NEXT, entries.next()).await;
            let next = next.map_err(|error| self.failed(PURGING, &error))?;
            let Some(entry) = next.transpose().map_err(|error| self.failed(PURGING, &error))?
            else {
                break;
            };
            // A watch waits for what comes next and never ends. The entry with none behind it is the last that is
            // there.
            is_last = entry.delta == 0;
            // What is not of ours is left alone, and so is the marker of an entry that was removed.
            let Ok(record) = serde_json::from_slice::<Record>(&entry.value) else { continue };
            let ended = buckets::timestamp(entry.created).after(record.span);
            let kept = if record.phase == Phase::Done { Duration::ZERO } else { KEEP_FREE };
            if ended.after(kept) > now {
                continue;
            }
            // Up to this revision: an entry that was written since then stays.
            let subject = format!("{}{}", self.bucket.prefix, entry.key);
            let gone = self.bucket.stream.purge().filter(subject).sequence(entry.revision + 1);
            let gone = gone.await.map_err(|error| self.failed(PURGING, &error))?;
            // Its history goes with it, and it is one key.
            purged += gone.purged.min(1);
        }
        Ok(purged)
    }

    fn purges_itself(&self) -> bool {
        true
    }

    fn store_identity(&self) -> Option<String> {
        // Buckets of one name in two accounts or on two servers are not made in the same nanosecond.
        let created = self.bucket.stream.cached_info().created;
        Some(format!("nats {} {}", self.bucket.name, created.unix_timestamp_nanos()))
    }
}

/// Reads an entry.
fn seen(entry: &StreamMessage, doing: &'static str) -> Result<Seen, StoreError> {
    let revision = entry.sequence;
    // It may have been removed by hand.
    let record = if buckets::is_removed(entry) {
        None
    } else {
        Some(serde_json::from_slice::<Record>(&entry.payload).map_err(|error| {
            corrupt(doing, format!("the entry `{}` is not of ours: {error}", entry.subject))
        })?)
    };
    let fence = record.as_ref().and_then(|record| record.fence).unwrap_or(revision);
    Ok(Seen { record, fence, revision, at: buckets::timestamp(entry.time) })
}

/// The name of the entry of a key: the consumer, as far as it is readable, and a hash of both.
fn name(consumer: &str, key: &[u8]) -> String {
    let mut hash = blake3::Hasher::new();
    // The length tells where the consumer ends and the key begins.
    hash.update(&(consumer.len() as u64).to_le_bytes());
    hash.update(consumer.as_bytes());
    hash.update(key);
    let mut readable = token(consumer);
    // A token is ASCII, so that it can be cut anywhere.
    readable.truncate(64);
    format!("{readable}.{}", hash.finalize().to_hex())
}

async fn wait(turn: u32) {
    // Mostly one other was faster, and has finished by the next try. Only a crowd is waited for.
    if turn > 2 {
        tokio::time::sleep(PAUSE).await;
    }
}

fn busy(doing: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, doing)
        .with_detail(format!("others were faster {TRIES} times in a row"))
}

fn corrupt(doing: &'static str, text: String) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, doing).with_detail(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_tell_keys_apart() {
        assert_ne!(name("a", b"b"), name("ab", b""));
        assert_ne!(name("a", b"b"), name("a", b"c"));
        let long = name(&"é.".repeat(500), &[7; 100_000]);
        assert!(long.len() < 200 && crate::client::names::is_subject(&long), "{long}");
    }
}
