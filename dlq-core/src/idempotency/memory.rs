//! [`MemoryIdempotency`]: idempotency that lasts as long as the process, and the reference for every other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rapidhash::fast::RandomState;

use super::key::Key;
use super::{Idempotency, IdempotencyClaim, IdempotencyToken, KEEP_FREE, Release};
use crate::clock::{CoarseClock, SharedClock};
use crate::{StoreError, Timestamp};

/// Idempotency in memory. Clones share the keys.
#[derive(Clone, Debug)]
pub struct MemoryIdempotency {
    keys: Arc<Mutex<Keys>>,
    clock: SharedClock,
}

#[derive(Debug, Default)]
struct Keys {
    /// By name. Not many: those that the program knows.
    consumers: Vec<Consumer>,
    /// The last token given out; shared by all keys, so that a forgotten key does not begin again.
    fence: u64,
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
        Self { keys: Arc::default(), clock: Arc::new(CoarseClock) }
    }

    /// Sets the clock by which this handle tells the time. Defaults to the machine's.
    #[must_use]
    pub fn with_clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    #[inline]
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the entry of `token` if the token was the last that was given out for its key.
    #[inline]
    fn with_entry(&self, token: IdempotencyToken, change: impl FnOnce(&mut Entry) -> bool) -> bool {
        let mut keys = self.keys();
        let Some(index) = keys.find(&token.consumer) else { return false };
        keys.consumers[index]
            .entries
            .get_mut(&token.key[..])
            .filter(|entry| entry.fence == token.fence)
            .is_some_and(change)
    }
}

impl Default for MemoryIdempotency {
    fn default() -> Self {
        Self::new()
    }
}

impl Idempotency for MemoryIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        let now = self.clock.now();
        let until = now.after(lease);
        let mut guard = self.keys();
        let keys = &mut *guard;
        let index = keys.find(&consumer).unwrap_or_else(|| {
            let (name, entries) = (Arc::clone(&consumer), HashMap::default());
            keys.consumers.push(Consumer { name, entries });
            keys.consumers.len() - 1
        });
        let entry = keys.consumers[index].entries.entry(Key::from(&key[..])).or_insert(Entry {
            fence: 0,
            attempts: 0,
            crashes: 0,
            phase: Phase::Free { since: now },
        });
        match entry.phase {
            Phase::Held { until } if until > now => {
                return Ok(IdempotencyClaim::InFlight { remaining: until.since(now) });
            }
            Phase::Done { at, until } if until > now => return Ok(IdempotencyClaim::Done { at }),
            Phase::Held { .. } => entry.crashes = entry.crashes.saturating_add(1),
            Phase::Done { .. } => (entry.attempts, entry.crashes) = (0, 0),
            Phase::Free { .. } => {}
        }
        keys.fence += 1;
        entry.fence = keys.fence;
        entry.phase = Phase::Held { until };
        let token = IdempotencyToken { consumer, key, fence: entry.fence };
        let (attempts, crashes) = (entry.attempts, entry.crashes);
        Ok(IdempotencyClaim::New { token, attempts, crashes })
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let extended = self.clock.now().after(lease);
        Ok(self.with_entry(token, |entry| match &mut entry.phase {
            Phase::Held { until } => {
                *until = extended;
                true
            }
            _ => false,
        }))
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        let now = self.clock.now();
        Ok(self.with_entry(token, |entry| match entry.phase {
            Phase::Held { .. } => {
                entry.phase = Phase::Done { at: now, until: now.after(keep) };
                true
            }
            Phase::Done { .. } => true,
            Phase::Free { .. } => false,
        }))
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        let now = self.clock.now();
        Ok(self.with_entry(token, |entry| match entry.phase {
            Phase::Held { .. } => {
                entry.attempts =
                    entry.attempts.saturating_add(u32::from(release == Release::Failed));
                entry.phase = Phase::Free { since: now };
                true
            }
            Phase::Free { .. } => true,
            Phase::Done { .. } => false,
        }))
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut keys = self.keys();
        let ended = |entry: &Entry| match entry.phase {
            Phase::Done { until, .. } => until <= now,
            Phase::Free { since } => since.after(KEEP_FREE) <= now,
            Phase::Held { until } => until.after(KEEP_FREE) <= now,
        };
        let forgotten = keys
            .consumers
            .iter_mut()
            .flat_map(|consumer| consumer.entries.extract_if(|_, entry| ended(entry)))
            .take(limit as usize)
            .count();
        Ok(forgotten as u64)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}
