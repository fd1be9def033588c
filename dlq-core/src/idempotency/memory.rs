//! [`MemoryIdempotency`]: idempotency that lasts as long as the process, and the reference for every other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rapidhash::fast::RandomState;

use super::key::Key;
use super::{
    Idempotency, IdempotencyClaim, IdempotencyToken, Immediate, ImmediateClaim, KEEP_FREE, Release,
};
use crate::clock::{CoarseClock, SharedClock};
use crate::{StoreError, Timestamp};

/// Idempotency in memory. Clones share the keys.
#[derive(Clone, Debug)]
pub struct MemoryIdempotency {
    shards: Arc<[Shard; SHARDS]>,
    clock: SharedClock,
}

/// How many parts the keys are spread over: neither a lock nor the growth of a part stops all of them.
const SHARDS: usize = 64;

/// In a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    /// By name. Not many: those that the program knows.
    consumers: Vec<Consumer>,
    /// The last token given out; shared by all keys, so that a forgotten key does not begin again.
    fence: u64,
}

impl Shard {
    /// Which one `key` belongs to. Only spreads the load: keys chosen to fall into one shard are as fast as with one
    /// shard.
    #[inline]
    fn of(key: &[u8]) -> usize {
        let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let ends = match key.len() {
            0..8 => key.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)),
            _ => word(key.first_chunk()).rotate_left(32) ^ word(key.last_chunk()),
        };
        (ends.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
    }

    #[inline]
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Consumer {
    name: Arc<str>,
    /// Keys may come from whoever publishes: they are spread by a seed that only we know.
    entries: HashMap<Key, Entry, RandomState>,
}

impl Keys {
    #[inline]
    fn find(&self, consumer: &Arc<str>) -> Option<usize> {
        // Mostly it is the very name that was seen before.
        let is = |known: &Consumer| Arc::ptr_eq(&known.name, consumer) || known.name == *consumer;
        self.consumers.iter().position(is)
    }
}

#[derive(Debug)]
struct Entry {
    fence: u64,
    attempts: u32,
    crashes: u32,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// In flight until the lease ends.
    Held {
        until: Timestamp,
    },
    Done {
        at: Timestamp,
        until: Timestamp,
    },
    Free {
        since: Timestamp,
    },
}

impl MemoryIdempotency {
    /// No keys yet, by the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shards: Arc::new(std::array::from_fn(|_| Shard::default())),
            clock: Arc::new(CoarseClock),
        }
    }

    /// Sets the clock by which this handle tells the time. Defaults to the machine's.
    #[must_use]
    pub fn with_clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    #[inline]
    fn keys(&self, key: &[u8]) -> MutexGuard<'_, Keys> {
        self.shards[Shard::of(key)].keys()
    }

    /// Changes the entry of a claim if it was the last one of its key.
    #[inline]
    fn with_entry(
        &self,
        consumer: &Arc<str>,
        key: &[u8],
        fence: u64,
        change: impl FnOnce(&mut Entry) -> bool,
    ) -> bool {
        let mut keys = self.keys(key);
        let Some(index) = keys.find(consumer) else { return false };
        keys.consumers[index]
            .entries
            .get_mut(key)
            .filter(|entry| entry.fence == fence)
            .is_some_and(change)
    }
}

impl Default for MemoryIdempotency {
    fn default() -> Self {
        Self::new()
    }
}

impl Immediate for MemoryIdempotency {
    #[inline]
    fn claim_now(&self, consumer: &Arc<str>, key: &[u8], lease: Duration) -> ImmediateClaim {
        let now = self.clock.now();
        let until = now.after(lease);
        let mut guard = self.keys(key);
        let keys = &mut *guard;
        let index = keys.find(consumer).unwrap_or_else(|| {
            let (name, entries) = (Arc::clone(consumer), HashMap::default());
            keys.consumers.push(Consumer { name, entries });
            keys.consumers.len() - 1
        });
        let entry = keys.consumers[index].entries.entry(Key::from(key)).or_insert(Entry {
            fence: 0,
            attempts: 0,
            crashes: 0,
            phase: Phase::Free { since: now },
        });
        match entry.phase {
            Phase::Held { until } if until > now => {
                return ImmediateClaim::InFlight { remaining: until.since(now) };
            }
            Phase::Done { at, until } if until > now => return ImmediateClaim::Done { at },
            Phase::Held { .. } => entry.crashes = entry.crashes.saturating_add(1),
            Phase::Done { .. } => (entry.attempts, entry.crashes) = (0, 0),
            Phase::Free { .. } => {}
        }
        keys.fence += 1;
        entry.fence = keys.fence;
        entry.phase = Phase::Held { until };
        let Entry { fence, attempts, crashes, .. } = *entry;
        ImmediateClaim::New { fence, attempts, crashes }
    }

    #[inline]
    fn complete_now(&self, consumer: &Arc<str>, key: &[u8], fence: u64, keep: Duration) -> bool {
        let now = self.clock.now();
        self.with_entry(consumer, key, fence, |entry| match entry.phase {
            Phase::Held { .. } => {
                entry.phase = Phase::Done { at: now, until: now.after(keep) };
                true
            }
            Phase::Done { .. } => true,
            Phase::Free { .. } => false,
        })
    }

    fn release_now(&self, consumer: &Arc<str>, key: &[u8], fence: u64, release: Release) -> bool {
        let now = self.clock.now();
        self.with_entry(consumer, key, fence, |entry| match entry.phase {
            Phase::Held { .. } => {
                entry.attempts =
                    entry.attempts.saturating_add(u32::from(release == Release::Failed));
                entry.phase = Phase::Free { since: now };
                true
            }
            Phase::Free { .. } => true,
            Phase::Done { .. } => false,
        })
    }
}

impl Idempotency for MemoryIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        Ok(match self.claim_now(&consumer, &key, lease) {
            ImmediateClaim::New { fence, attempts, crashes } => {
                let token = IdempotencyToken { consumer, key, fence };
                IdempotencyClaim::New { token, attempts, crashes }
            }
            ImmediateClaim::InFlight { remaining } => IdempotencyClaim::InFlight { remaining },
            ImmediateClaim::Done { at } => IdempotencyClaim::Done { at },
        })
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let extended = self.clock.now().after(lease);
        let IdempotencyToken { consumer, key, fence } = token;
        Ok(self.with_entry(&consumer, &key, fence, |entry| match &mut entry.phase {
            Phase::Held { until } => {
                *until = extended;
                true
            }
            _ => false,
        }))
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        Ok(self.complete_now(&token.consumer, &token.key, token.fence, keep))
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        Ok(self.release_now(&token.consumer, &token.key, token.fence, release))
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let ended = |entry: &Entry| match entry.phase {
            Phase::Done { until, .. } => until <= now,
            Phase::Free { since } => since.after(KEEP_FREE) <= now,
            Phase::Held { until } => until.after(KEEP_FREE) <= now,
        };
        let mut left = limit as usize;
        for shard in &*self.shards {
            let mut keys = shard.keys();
            let consumers = keys.consumers.iter_mut();
            let forgotten = consumers.flat_map(|c| c.entries.extract_if(|_, entry| ended(entry)));
            left -= forgotten.take(left).count();
        }
        Ok(u64::from(limit) - left as u64)
    }

    #[inline]
    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}
