//! [`MemoryIdempotency`]: idempotency that lasts as long as the process, and the reference for every other.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use rapidhash::fast::RandomState;

use super::keys::{Entry, Keys, Phase};
use super::{
    Idempotency, IdempotencyClaim, IdempotencyToken, Immediate, ImmediateClaim, KEEP_FREE,
    KeyState, Proof, Release,
};
use crate::StoreError;
use crate::clock::{CoarseClock, SharedClock};

/// Idempotency in memory. Clones share the keys.
#[derive(Clone, Debug)]
pub struct MemoryIdempotency {
    shards: Arc<[Shard; SHARDS]>,
    /// Keys may come from whoever publishes: they are spread by a seed that only we know.
    spread: RandomState,
    clock: SharedClock,
    /// Position at which the next purge continues: the shard, and the number of the entry there.
    purged: Arc<Mutex<(usize, usize)>>,
}

/// Number of entries that are visited while a shard is locked. A caller that wants a key of this shard meanwhile waits
/// for some microseconds.
const LOOKS: usize = 256;

/// Number of shards that the keys are spread over, so that threads seldom meet at a lock: a power of two.
const SHARDS: usize = 32;

/// In a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Keys>);

impl Shard {
    #[inline]
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryIdempotency {
    /// No keys yet, by the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shards: Arc::new(std::array::from_fn(|_| Shard::default())),
            spread: RandomState::default(),
            clock: Arc::new(CoarseClock),
            purged: Arc::default(),
        }
    }

    /// Sets the clock by which this handle tells the time. Defaults to the machine's.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the shard of `key`, and the key's hash there.
    #[inline]
    fn spread(&self, key: &[u8]) -> (usize, u32) {
        let mut hasher = self.spread.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        // The shard and the place in its table come from different halves of the hash. Otherwise the keys of a shard
        // would share bits of their places.
        (hash as usize % SHARDS, (hash >> 32) as u32)
    }

    /// Changes the entry of a claim if it was the last one of its key.
    #[inline]
    fn with_entry(
        &self,
        consumer: &Arc<str>,
        key: &[u8],
        proof: Proof,
        change: impl FnOnce(&mut Entry) -> bool,
    ) -> bool {
        let (shard, number) = place_of(proof.place);
        let mut keys = self.shards[shard].keys();
        // No two claims in a shard have one fence.
        let hinted = keys.at(number).filter(|entry| entry.fence == proof.fence && entry.is(key));
        if let Some(entry) = hinted {
            return change(entry);
        }
        // The key may be in the shard that is locked here, and a lock cannot be taken twice.
        drop(keys);
        let (shard, hash) = self.spread(key);
        let mut keys = self.shards[shard].keys();
        let number = keys.find(hash, consumer, key);
        number
            .and_then(|number| keys.at(number))
            .filter(|entry| entry.fence == proof.fence)
            .is_some_and(change)
    }
}

/// The place of the entry `number` in `shard`, as a proof has it. The first is not 0, which is nowhere.
#[inline]
fn place(shard: usize, number: u32) -> u64 {
    (u64::from(number) + 1) * SHARDS as u64 + shard as u64
}

/// The shard and the number of the entry there; a number that there is not for nowhere.
#[inline]
fn place_of(place: u64) -> (usize, u32) {
    let shards = SHARDS as u64;
    ((place % shards) as usize, (place / shards).wrapping_sub(1) as u32)
}

/// For a token, which does not know where its key is.
const fn anywhere(fence: u64) -> Proof {
    Proof { fence, place: 0 }
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
        let (shard, hash) = self.spread(key);
        let mut keys = self.shards[shard].keys();
        let number = keys.find_or_add(hash, consumer, key, now);
        let (fence, entry) = keys.claimed(number);
        let (attempts, crashes) = match entry.phase {
            Phase::Held { until, .. } if until > now => {
                return ImmediateClaim::InFlight { remaining: until.since(now) };
            }
            Phase::Done { at, until } if until > now => return ImmediateClaim::Done { at },
            // The lease ended without a word, so its run counts as one that ended with the process (G3).
            Phase::Held { attempts, crashes, .. } => (attempts, crashes.saturating_add(1)),
            Phase::Done { .. } => (0, 0),
            Phase::Free { attempts, crashes, .. } => (attempts, crashes),
        };
        // A new fence makes every earlier proof of the key worthless.
        *fence += 1;
        entry.fence = *fence;
        entry.phase = Phase::Held { attempts, crashes, until: now.after(lease) };
        let proof = Proof { fence: entry.fence, place: place(shard, number) };
        ImmediateClaim::New { proof, attempts, crashes }
    }

    #[inline]
    fn complete_now(&self, consumer: &Arc<str>, key: &[u8], proof: Proof, keep: Duration) -> bool {
        let now = self.clock.now();
        self.with_entry(consumer, key, proof, |entry| match entry.phase {
            Phase::Held { .. } => {
                entry.phase = Phase::Done { at: now, until: now.after(keep) };
                true
            }
            // The same claim is completed again, as after a lost answer: nothing changes.
            Phase::Done { .. } => true,
            Phase::Free { .. } => false,
        })
    }

    fn release_now(&self, consumer: &Arc<str>, key: &[u8], proof: Proof, release: Release) -> bool {
        let since = self.clock.now();
        self.with_entry(consumer, key, proof, |entry| match entry.phase {
            Phase::Held { mut attempts, mut crashes, .. } => {
                release.count(&mut attempts, &mut crashes);
                entry.phase = Phase::Free { attempts, crashes, since };
                true
            }
            // It was released before, as where the answer was lost.
            Phase::Free { .. } => true,
            Phase::Done { .. } => false,
        })
    }
}

/// Lets other tasks have their turn.
async fn others_first() {
    let mut had = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut had, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Idempotency for MemoryIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        Ok(match self.claim_now(&consumer, &key, lease) {
            ImmediateClaim::New { proof, attempts, crashes } => {
                let token = IdempotencyToken { consumer, key, fence: proof.fence };
                IdempotencyClaim::New { token, attempts, crashes }
            }
            ImmediateClaim::InFlight { remaining } => IdempotencyClaim::InFlight { remaining },
            ImmediateClaim::Done { at } => IdempotencyClaim::Done { at },
        })
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let extended = self.clock.now().after(lease);
        let IdempotencyToken { consumer, key, fence } = token;
        let proof = anywhere(fence);
        Ok(self.with_entry(&consumer, &key, proof, |entry| match &mut entry.phase {
            // A lease that has ended is extended too: the fence tells whether somebody else has claimed since, and time
            // alone does not.
            Phase::Held { until, .. } => {
                *until = extended;
                true
            }
            _ => false,
        }))
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        Ok(self.complete_now(&token.consumer, &token.key, anywhere(token.fence), keep))
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        Ok(self.release_now(&token.consumer, &token.key, anywhere(token.fence), release))
    }

    async fn look_up(&self, consumer: Arc<str>, key: Bytes) -> Result<KeyState, StoreError> {
        let now = self.clock.now();
        let (shard, hash) = self.spread(&key);
        let mut keys = self.shards[shard].keys();
        let number = keys.find(hash, &consumer, &key);
        let entry = number.and_then(|number| keys.at(number));
        Ok(match entry.map(|entry| &entry.phase) {
            Some(&Phase::Held { until, .. }) if until > now => {
                KeyState::InFlight { remaining: until.since(now) }
            }
            Some(&Phase::Done { at, until }) if until > now => KeyState::Done { at },
            // An ended lease is free as well. The next claim counts its crash; looking changes nothing.
            _ => KeyState::Free,
        })
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let ended = |entry: &Entry| match entry.phase {
            Phase::Done { until, .. } => until <= now,
            Phase::Free { since, .. } => since.after(KEEP_FREE) <= now,
            // A lease that has ended tells of a crash, which is remembered for as long as the counts of a free key
            // are.
            Phase::Held { until, .. } => until.after(KEEP_FREE) <= now,
        };
        let mut left = limit as usize;
        let next = || self.purged.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, from) = *next();
        // Once around, from where the last one stopped: those before it are looked at last.
        let rest = std::iter::once((first, from..usize::MAX));
        let others = (1..SHARDS).map(|shard| ((first + shard) % SHARDS, 0..usize::MAX));
        for (shard, mut numbers) in rest.chain(others).chain([(first, 0..from)]) {
            loop {
                if left == 0 {
                    return Ok(u64::from(limit));
                }
                // The lock is released at the end of this block, before the task lets others run.
                let looks = {
                    let mut keys = self.shards[shard].keys();
                    numbers.end = numbers.end.min(keys.entries());
                    let looks = numbers.len().min(LOOKS).min(left);
                    let these = numbers.start..numbers.start + looks;
                    left -= keys.forget(these, |key| self.spread(key).1, ended);
                    looks
                };
                numbers.start += looks;
                if numbers.is_empty() {
                    *next() = ((shard + 1) % SHARDS, 0);
                    break;
                }
                // The position is kept before the task can be dropped at the await, so that the next purge goes on from here.
                *next() = (shard, numbers.start);
                // There may be a great many keys, and to look at all of them takes its time.
                others_first().await;
            }
        }
        Ok(u64::from(limit) - left as u64)
    }

    fn store_identity(&self) -> Option<String> {
        Some(format!("memory keys {:p}", Arc::as_ptr(&self.shards)))
    }

    #[inline]
    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Timestamp, TokioClock};

    const LEASE: Duration = Duration::from_secs(60);

    fn claim(store: &MemoryIdempotency, consumer: &Arc<str>, key: &[u8]) -> Proof {
        match store.claim_now(consumer, key, LEASE) {
            ImmediateClaim::New { proof, .. } => proof,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_proof_holds_with_and_without_its_place_and_for_its_claim_only() {
        let (store, consumer) = (MemoryIdempotency::new(), Arc::from("billing"));
        let keys: Vec<String> = (0..1_000).map(|number| format!("order-{number}")).collect();
        let proofs: Vec<Proof> =
            keys.iter().map(|key| claim(&store, &consumer, key.as_bytes())).collect();
        for (index, (key, proof)) in keys.iter().zip(&proofs).enumerate() {
            let key = key.as_bytes();
            let wrong = [
                Proof { fence: proof.fence + 1_000_000, ..*proof },
                Proof { fence: proof.fence + 1_000_000, place: 0 },
            ];
            for wrong in wrong {
                assert!(!store.complete_now(&consumer, key, wrong, LEASE));
                assert!(!store.release_now(&consumer, key, wrong, Release::Failed));
            }
            // A hint that leads elsewhere leads nobody astray.
            let place = match index % 4 {
                0 => proof.place,
                1 => 0,
                2 => u64::MAX,
                _ => proofs[index - 1].place,
            };
            assert!(
                store.complete_now(&consumer, key, Proof { place, ..*proof }, LEASE),
                "{index}"
            );
            let found = store.claim_now(&consumer, key, LEASE);
            assert!(matches!(found, ImmediateClaim::Done { .. }), "{index}: {found:?}");
        }
    }

    /// A purge goes on where the last one stopped, and every one of them looks at everything if it has to.
    #[tokio::test]
    async fn what_has_ended_is_found_wherever_the_last_purge_stopped() {
        let clock: SharedClock = Arc::new(TokioClock::starting_at(Timestamp::from_millis(1)));
        let (store, consumer) = (MemoryIdempotency::new().clock(clock), Arc::from("billing"));
        // What is kept for no time has ended at once.
        let keep = |number: u32| if number.is_multiple_of(3) { Duration::ZERO } else { LEASE };
        let key = |number: u32| format!("order-{number}");
        for number in 0..30_000 {
            let proof = claim(&store, &consumer, key(number).as_bytes());
            assert!(store.complete_now(&consumer, key(number).as_bytes(), proof, keep(number)));
        }
        let mut places = std::collections::HashSet::new();
        for _ in 0..99 {
            assert_eq!(store.purge(100).await.unwrap(), 100);
            places.insert(*store.purged.lock().unwrap());
        }
        assert_eq!(places.len(), 99, "it goes on");
        assert_eq!(store.purge(1_000).await.unwrap(), 100);
        assert_eq!(store.purge(1_000).await.unwrap(), 0);
        for number in 0..30_000 {
            let found = store.claim_now(&consumer, key(number).as_bytes(), LEASE);
            let is_done = matches!(found, ImmediateClaim::Done { .. });
            assert_eq!(is_done, number % 3 > 0, "{number}: {found:?}");
        }
        for number in 0..200 {
            let late = format!("late-{number}");
            let proof = claim(&store, &consumer, late.as_bytes());
            assert!(store.complete_now(&consumer, late.as_bytes(), proof, Duration::ZERO));
        }
        assert_eq!(store.purge(1_000).await.unwrap(), 200, "in every shard");
    }

    #[test]
    fn another_store_does_not_take_a_proof_for_its_own() {
        let (one, other) = (MemoryIdempotency::new(), MemoryIdempotency::new());
        let consumer = Arc::from("billing");
        // Every shard of the other has keys with the same fences at the same places.
        let proofs: Vec<Proof> = (0..2_000_u32)
            .map(|number| claim(&one, &consumer, format!("a-{number}").as_bytes()))
            .collect();
        for number in 0..2_000_u32 {
            claim(&other, &consumer, format!("b-{number}").as_bytes());
        }
        for (number, proof) in proofs.into_iter().enumerate() {
            let key = format!("a-{number}");
            assert!(!other.complete_now(&consumer, key.as_bytes(), proof, LEASE));
        }
    }
}
