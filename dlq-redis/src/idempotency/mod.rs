//! Idempotency on keys of Redis.
//!
//! ```no_run
//! # use dlq_core::idempotency::{Idempotency, IdempotencyClaim};
//! # use dlq_redis::{IdempotencyConfig, RedisClient, RedisIdempotency};
//! # use std::time::Duration;
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = RedisClient::open("redis://localhost:6379").await?;
//! let keys = RedisIdempotency::open(&client, IdempotencyConfig::new().prefix("shop")).await?;
//! let claim = keys.claim("payments".into(), "order-7".into(), Duration::from_secs(30)).await?;
//! if let IdempotencyClaim::New { token, .. } = claim {
//!     keys.complete(token, Duration::from_secs(86_400)).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! An idempotency key is one hash, `<prefix>:idem:<consumer>:<key>`: *held* under a lease, *done*, or *free* with its counts.
//! A key that is long or not plain text is named by a hash of consumer and key, `<prefix>:idem#<hash>`. Every step is one
//! script on one key, so that in a cluster the keys are spread over all nodes, unless the prefix has a hash tag.
//!
//! # Fences and times
//!
//! Each claim has a higher fence than the one before, and whoever extends, completes or releases must still find its fence
//! in the entry. The fence is at least the time of the server in microseconds. It therefore grows as well after the server
//! has forgotten the key. All times are those of the server that has the key, told inside the script.
//!
//! # If the process dies here
//!
//! | state | next |
//! |---|---|
//! | before the claim is written | nothing has happened |
//! | the claim is written, its answer is lost with the connection | the call is repeated, is known by its name, and gets the same answer |
//! | the claim is written, its answer is not read | the lease ends, and counts as a crash |
//! | held, the handler runs | the same |
//! | the handler succeeded, `done` is not written | the same: the handler runs again |
//! | `done` is written | a duplicate from then on |
//! | released, the answer is lost | the repeated call changes nothing and counts nothing |
//!
//! # If the server dies here
//!
//! | what happens | with what is confirmed |
//! |---|---|
//! | the server or its machine dies, `appendfsync always` | nothing is lost |
//! | the server is killed, `appendfsync everysec` | nothing is lost, unless the disk is busy: the server then answers before it writes, for up to two seconds |
//! | the machine dies, `appendfsync everysec` | the last two seconds are lost: a key that was done then is handled again when its message comes again |
//! | no append-only file | everything since the last snapshot is lost |
//! | a replica becomes the master | what it had not received is lost, and so are the fences: the two clocks must differ by less than the fail-over takes |
//! | memory is full, `noeviction` | claims fail and their messages are deferred; what is claimed can be extended, completed and released |
//! | memory is full, another policy | keys that are done are evicted: their messages are handled again |
//!
//! [`RedisIdempotency::check`] reports a server that evicts or forgets.
//!
//! # How long
//!
//! The server itself forgets keys, a minute after they have been kept long enough, so that nobody has to call
//! [`purge`](Idempotency::purge), and consumers do not: it looks at all keys of the server. What is not done is kept for
//! [`KEEP_FREE`]. Leases and times to keep are cut to 100 years.

mod answer;
mod check;
mod config;
mod names;
mod purge;
mod scripts;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::{
    Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, KeyState, Release,
};
use dlq_core::{StoreError, StoreErrorKind};

use crate::client::{RedisClient, ScriptCall, as_text};
use answer::Reply;

pub use config::IdempotencyConfig;
use names::Names;

/// The longest lease, and the longest time to keep a key: 100 years. Lua counts microseconds exactly up to the year 2255.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Idempotency that all processes share, on keys of Redis. Cheap to clone. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct RedisIdempotency {
    client: RedisClient,
    names: Arc<Names>,
    /// Name that the first handle has left at the server.
    identity: Arc<str>,
}

const _: () = {
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<RedisIdempotency>();
};

impl RedisIdempotency {
    /// Opens the keys of this prefix. The first to open them leaves a key of a few bytes, `<prefix>:idem#id`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a prefix that is empty or has spaces, for a key of that name that is no text, and for a user
    /// without the rights; `Unavailable` when the server does not answer.
    pub async fn open(client: &RedisClient, config: IdempotencyConfig) -> Result<Self, StoreError> {
        const OPENING: &str = "open the idempotency keys";
        let names = Names::new(&config.prefix).map_err(|text| {
            StoreError::new(StoreErrorKind::InvalidConfig, OPENING).with_detail(text)
        })?;
        let call = scripts::IDENTIFY.keys(&[names.identity()]).arg(random_name());
        let answer = client.script(&call).await.map_err(|error| error.for_store(OPENING))?;
        // Two handles that read the same name share their keys, by which handlers are told apart that would share them unasked.
        let identity = as_text(&answer).unwrap_or_default().into();
        Ok(Self { client: client.clone(), names: Arc::new(names), identity })
    }

    /// Runs a script on a key and returns its answer.
    async fn run(
        &self,
        doing: &'static str,
        name: &[u8],
        call: ScriptCall,
    ) -> Result<Reply, StoreError> {
        let answer = self.client.script(&call).await;
        let answer = answer.map_err(|error| error.for_running_store(doing))?;
        let answer = Reply(answer);
        // A key that somebody else uses is an error of its own: taken for free, it would be overwritten, and taken for
        // done, the message would be lost.
        if answer.word() == "foreign" {
            return Err(foreign(doing, name));
        }
        Ok(answer)
    }

    /// Settles or extends the claim of `token`; false when it is no longer ours.
    async fn settle(
        &self,
        doing: &'static str,
        token: &IdempotencyToken,
        arguments: impl FnOnce(ScriptCall) -> ScriptCall,
    ) -> Result<bool, StoreError> {
        let name = self.names.entry(&token.consumer, &token.key);
        let call = scripts::SETTLE.keys(&[&name]).arg(token.fence);
        Ok(self.run(doing, &name, arguments(call)).await?.word() == "ok")
    }
}

impl Idempotency for RedisIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        const CLAIMING: &str = "claim a key";
        let name = self.names.entry(&consumer, &key);
        // The name is made once for all repetitions of the call: a claim whose answer was lost is recognised by it (G3).
        let call = scripts::CLAIM.keys(&[&name]).arg(random_name());
        let call = call.arg(micros(lease)).arg(micros(KEEP_FREE));
        let answer = self.run(CLAIMING, &name, call).await?;
        match answer.word().as_str() {
            "new" => {
                let fence = answer.text(1).parse().map_err(|_| foreign(CLAIMING, &name))?;
                let token = IdempotencyToken { consumer, key, fence };
                let (attempts, crashes) = (answer.count(2), answer.count(3));
                Ok(IdempotencyClaim::New { token, attempts, crashes })
            }
            "held" => Ok(IdempotencyClaim::InFlight { remaining: answer.span(1) }),
            "done" => Ok(IdempotencyClaim::Done { at: answer.time(1) }),
            _ => Err(foreign(CLAIMING, &name)),
        }
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let extend =
            |call: ScriptCall| call.arg("extend").arg(micros(lease)).arg(micros(KEEP_FREE));
        self.settle("extend a key", &token, extend).await
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        let complete = |call: ScriptCall| call.arg("complete").arg(micros(keep));
        self.settle("complete a key", &token, complete).await
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        // What is added to the attempts, and by what both counts are multiplied before.
        let (added, kept) = match release {
            Release::Failed => (1, 1),
            Release::Unused => (0, 1),
            // The letter is durable by now and counts from here on; the next message with the key is another one.
            Release::Dead => (0, 0),
            Release::Forgiven(times) => (-i64::from(times), 1),
        };
        let release =
            |call: ScriptCall| call.arg("release").arg(added).arg(kept).arg(micros(KEEP_FREE));
        self.settle("release a key", &token, release).await
    }

    async fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Result<KeyState, StoreError> {
        let name = self.names.entry(&consumer, &key);
        let answer = self.run("look up a key", &name, scripts::LOOK.keys(&[&name])).await?;
        Ok(match answer.word().as_str() {
            "held" => KeyState::InFlight { remaining: answer.span(1) },
            "done" => KeyState::Done { at: answer.time(1) },
            _ => KeyState::Free,
        })
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.purge_ended(limit).await
    }

    fn purges_itself(&self) -> bool {
        true
    }

    fn store_identity(&self) -> Option<String> {
        Some(format!("redis {} {}", self.names.prefix(), self.identity))
    }
}

/// A time span as scripts take it.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.min(LONGEST).as_micros()).unwrap_or(u64::MAX)
}

/// A name by which a claim knows itself when its answer was lost.
fn random_name() -> String {
    // Seeded by the system, anew for each.
    format!("{:016x}", RandomState::new().hash_one(0))
}

fn foreign(doing: &'static str, name: &[u8]) -> StoreError {
    let name = name.escape_ascii();
    StoreError::new(StoreErrorKind::Corrupt, doing).with_detail(format!(
        "the key `{name}` of the server is not one that was written here; remove it, or use another prefix"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_where_lua_would_round() {
        assert_eq!(micros(Duration::from_micros(7)), 7);
        assert_eq!(micros(Duration::MAX), 3_153_600_000_000_000);
        // A time of today and two such spans are still whole.
        assert!(1_800_000_000_000_000 + 2 * micros(Duration::MAX) < 1 << 53);
    }

    #[test]
    fn claims_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = (0..1_000).map(|_| random_name()).collect();
        assert_eq!(names.len(), 1_000);
    }
}
