//! [`RedisStore`]: dead letters in Redis or Valkey.
//!
//! ```no_run
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! use dlq_redis::{RedisClient, store::RedisStore};
//!
//! let client = RedisClient::open("redis://localhost:6379").await?;
//! let store = RedisStore::builder(&client).prefix("{payments}").open().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Redis 6.2 and later, Valkey, one server, a master with replicas, or a cluster. A store has one hash tag, so that all of it
//! is on one node; several stores divide the load.
//!
//! # Promises, and what cannot be promised
//!
//! A call that was answered has been written. What that is worth is the [durability](Durability) of the store:
//!
//! | | a consumer dies | the server process dies | power is lost | fail-over |
//! |---|---|---|---|---|
//! | `Memory` | nothing is lost | all since the last snapshot | the same | what the replica did not have |
//! | `Aof`, `appendfsync always` | nothing is lost | nothing is lost | nothing is lost | what the replica did not have |
//! | `Aof`, `appendfsync everysec` | nothing is lost | nothing; up to 2 s while the disk cannot keep up | up to 2 s | what the replica did not have |
//! | `Replicas(n)` | nothing is lost | nothing, if a replica takes over | as the replicas' files | nothing that one of the `n` had, if that one is elected |
//!
//! Replication is asynchronous: **a fail-over may forget letters that were confirmed.** Where the message comes from the same
//! Redis, its acknowledgement is forgotten with the letter, and it comes again. A message of Kafka or NATS was acknowledged
//! there, and is gone. For letters of another broker use a database, or `Replicas(n)`, or accept that.
//!
//! A full server (`maxmemory` with `noeviction`) refuses letters, and nothing is acknowledged then; letters can still be
//! deleted. A server that evicts is refused when the client is opened.
//!
//! # Each step is one script
//!
//! A call reads, decides in this process, and writes by one script that compares the versions of everything that was looked at.
//! Where something has changed it reads and decides again, after a pause that grows with each loss. Versions are numbers of
//! commits, so that a letter that was deleted and put again has another one. Of an operation only who releases its letters or
//! steers it compares; counts are increments.
//!
//! A script writes at most 100 letters, and a walk looks at 500 entries of the index at a time, so that nobody else waits for
//! long. Scripts check the types of keys before they write.
//!
//! | what happens | stored | then |
//! |---|---|---|
//! | the process dies before the script begins | nothing | the message is handed out again; a claim is still due |
//! | the server dies in the script | all or nothing: its effects are one unit of the append-only file | as before, or as after |
//! | the script ran, and its answer is lost | all | a death or an outcome is told again and found done; a claim, and what operators do, ask by the token of the commit, which the script wrote, and which nobody can use once it was asked for |
//! | the process dies with a claim | the claim | its lease ends, and another claims it |
//! | memory is full; a key has another type | nothing | an error of the kind `Unavailable` |
//! | somebody deletes all keys | nothing | an error of the kind `Unavailable` until the store is opened anew |
//! | a fail-over forgets the last commits | as before them | fencing tokens are no lower than the server's time in microseconds, so that none comes again |
//!
//! # Layout
//!
//! | key, after the prefix | | |
//! |---|---|---|
//! | `:meta` | hash | version of the layout, identity, deduplication, number of the last commit, last fencing token |
//! | `:l:` and the 16 bytes of the id | hash | a letter; the fields are told in `codec.rs` |
//! | `:i` | sorted set | the index, ordered by its bytes: a part, then the time of storing and the id |
//! | `:b:i`, `:b:m` and three digits | set | ids that begin with them; digests of producers' ids, with the letter |
//! | `:n`, `:groups`, `:lines` | hash | counts: by status, reason, cause, class, consumer and subject; by fingerprint and consumer; of letters in line |
//! | `:own`, `:alias` | hash | owners of original messages; letters that were merged |
//! | `:ops`, `:live` | list, sorted set | all operations; those that are not over |
//! | `:op:` and the id, `:i`, `:c` | hash | an operation; its items; its consumers |
//! | `:audit`, `:audit:more` | list, hash | what operators did; what later steps add to it |
//! | `:processed` | stream | the processing audit. Nothing shortens it: `XTRIM` it as you like |
//! | `:sched`, `:marks` | hash | last runs of the schedule; marks of runs that began |
//! | `:done:` and a token | string | what became of a commit, for an hour |
//!
//! The parts of the index: every letter (`a`), status (`s`), consumer (`c`), subject (`j`), fingerprint (`f`), operation (`o`),
//! lines of what is due by consumer and of all (`d`), items that are queued (`q`), released (`r`) and being sent (`z`), and
//! aliases (`A`). So a page costs the same at any depth, and a claim is one range.

mod audit;
mod backend;
mod check;
mod codec;
mod config;
mod counts;
mod dedup;
mod due;
mod fault;
mod letters;
mod link;
mod load;
mod marks;
mod names;
mod open;
mod operations;
mod ops;
mod plan;
mod run;
mod scripts;
mod search;
mod seen;
mod select;
mod vitals;
mod write;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::{SharedClock, StoreError, Timestamp};
use tokio::time::Instant;

pub use config::{Durability, RedisStoreBuilder};
use fault::Result;
use link::Link;

use crate::client::RedisClient;

/// A store in Redis or Valkey. Clones share a connection; see the [module docs](self).
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    durability: Durability,
    replica_timeout: Duration,
    clock: Option<SharedClock>,
    /// The time of the server as it was at an instant.
    time: Mutex<Option<(Timestamp, Instant)>>,
    /// Identity of the stored data.
    identity: String,
}

/// For how long the time of the server is told from what it was.
const TIME_KEEPS: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Opens the store with the default [settings](RedisStoreBuilder), and creates it where there is none.
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::open`].
    pub async fn connect(client: &RedisClient) -> std::result::Result<Self, StoreError> {
        Self::builder(client).open().await
    }

    /// Begins with the settings of a store.
    pub fn builder(client: &RedisClient) -> RedisStoreBuilder {
        RedisStoreBuilder::new(client.clone())
    }
}

impl Inner {
    /// The time of the store.
    async fn now(&self) -> Result<Timestamp> {
        match &self.clock {
            Some(clock) => Ok(clock.now()),
            None => self.link.time().await,
        }
    }

    /// The time of the store, from what the server said a moment ago: never ahead of it.
    async fn about_now(&self) -> Result<Timestamp> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        let known = *self.time.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((time, at)) = known
            && at.elapsed() < TIME_KEEPS
        {
            return Ok(time.after(at.elapsed()));
        }
        // The instant is taken after the answer, so that the time lags behind the server's by the way back and is never
        // ahead.
        let time = self.link.time().await?;
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, Instant::now()));
        Ok(time)
    }

    /// Tells others that letters of these consumers may have become due.
    #[expect(clippy::unused_self, reason = "others look now and then")]
    fn wake(&self, _consumers: &BTreeSet<String>) {}
}

/// A number below `most`, which is not known beforehand; 0 if that is 0.
fn random(most: u64) -> u64 {
    RandomState::new().build_hasher().finish().checked_rem(most).unwrap_or(0)
}

/// A text that no other call has.
fn token() -> String {
    let part = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", part(), part())
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.link.names.prefix)
            .field("durability", &self.inner.durability)
            .finish_non_exhaustive()
    }
}

dlq_letters::store!(RedisStore);

const _: () = {
    const fn store<S: dlq_core::Store + Clone>() {}
    store::<RedisStore>();
};
