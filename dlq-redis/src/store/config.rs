use std::time::Duration;

use dlq_core::{SharedClock, StoreError};

use super::RedisStore;
use crate::client::RedisClient;

/// Durability of a write that was confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The memory of the master: a crash of the server loses it.
    Memory,
    /// The append-only file of the master. With `appendfsync` `always` or `no`, a crash of the server process loses nothing;
    /// with `everysec` it may lose up to two seconds while the disk is busy, since the server then answers before it writes.
    /// Loss of power loses what `appendfsync` allows, and a fail-over what the replica did not have yet.
    #[default]
    Aof,
    /// The memory of so many replicas, too, waited for after each write. A write that they do not confirm is an error.
    Replicas(u32),
}

/// Settings of a [`RedisStore`].
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// use dlq_redis::store::{Durability, RedisStore};
///
/// let client = dlq_redis::RedisClient::open("redis://localhost:6379").await?;
/// let store = RedisStore::builder(&client).prefix("{payments}").durability(Durability::Aof).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until the store is opened"]
pub struct RedisStoreBuilder {
    pub(super) client: RedisClient,
    pub(super) prefix: String,
    pub(super) durability: Durability,
    pub(super) replica_timeout: Duration,
    pub(super) dedup: Option<bool>,
    pub(super) clock: Option<SharedClock>,
}

impl RedisStoreBuilder {
    pub(super) fn new(client: RedisClient) -> Self {
        Self {
            client,
            prefix: "{dlq}".to_owned(),
            durability: Durability::default(),
            replica_timeout: Duration::from_secs(1),
            dedup: None,
            clock: None,
        }
    }

    /// Sets what the names of all keys begin with. It has a hash tag, such as `{payments}` or `shop:{dlq}`, since all keys of
    /// a store are on one node of a cluster. Defaults to `{dlq}`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets what a confirmed write survives. Defaults to [`Durability::Aof`].
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets for how long replicas may take to confirm a write. Defaults to 1 second.
    pub const fn replica_timeout(mut self, timeout: Duration) -> Self {
        self.replica_timeout = timeout;
        self
    }

    /// Sets whether letters of the same original message are kept as one; for everybody who uses the store. Letters that are
    /// there already stay as they are; [`Maintenance::deduplicate`](dlq_core::store::Maintenance::deduplicate) collapses them.
    /// Defaults to what the store was set to last, which is no at first.
    pub const fn dedup(mut self, dedup: bool) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Sets the clock by which the store tells the time. Defaults to that of the server.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Returns true if there is a store. Changes nothing.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a prefix without a hash tag; `Unavailable` if the server does not respond.
    pub async fn exists(&self) -> Result<bool, StoreError> {
        RedisStore::exists(self).await
    }

    /// Opens the store, and creates it where there is none.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a prefix without a hash tag, and where the server contradicts the durability; `Incompatible` for a
    /// store of a newer version; `Unavailable` if the server does not respond.
    pub async fn open(self) -> Result<RedisStore, StoreError> {
        RedisStore::open(self).await
    }
}
