use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::idempotency::{Idempotency, IdempotencyClaim, IdempotencyToken, KeyState, Release};

use crate::account::Entry;
use crate::fixtures::ManualClock;

/// A place where an idempotency store can be opened.
pub trait IdempotencyFixture: Send + Sync + 'static {
    /// The store.
    type Store: Idempotency + Clone;

    /// Returns true if a server is available on this machine. Without one the checks prove nothing; the fixture says so
    /// aloud. Defaults to yes.
    #[must_use]
    fn is_available() -> bool {
        true
    }

    /// An empty place of its own for the check of this name. Checks run side by side.
    fn fresh(check: &'static str) -> impl Future<Output = Self> + Send
    where
        Self: Sized;

    /// Opens the store at this place, as another process would.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;

    /// The clock that every store opened here tells the time by; `None` where the store has a time of its own.
    fn clock(&self) -> Option<&ManualClock>;
}

/// Idempotency in memory.
#[derive(Debug)]
pub struct MemoryIdempotencyFixture {
    store: MemoryIdempotency,
    clock: ManualClock,
}

impl IdempotencyFixture for MemoryIdempotencyFixture {
    type Store = MemoryIdempotency;

    async fn fresh(_check: &'static str) -> Self {
        let clock = ManualClock::new();
        Self { store: MemoryIdempotency::new().clock(clock.shared()), clock }
    }

    async fn open(&self) -> MemoryIdempotency {
        self.store.clone()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// Context of a check: a store of its own, and shorthands that panic when the store does not answer.
#[derive(Debug)]
pub struct IdempotencyCheck<F: IdempotencyFixture> {
    pub(super) fixture: F,
    /// The store.
    pub store: F::Store,
}

/// Runs one check against a fresh store.
///
/// # Panics
///
/// When the store breaks the promise that the check is about.
pub fn run<F: IdempotencyFixture, R: Future<Output = ()>>(
    name: &'static str,
    check: impl FnOnce(IdempotencyCheck<F>) -> R,
) {
    if !Entry::new::<F>("idempotency", name).begin(F::is_available()) {
        return;
    }
    crate::run(name, async {
        let fixture = F::fresh(name).await;
        let store = fixture.open().await;
        check(IdempotencyCheck { fixture, store }).await;
    });
}

impl<F: IdempotencyFixture> IdempotencyCheck<F> {
    pub(super) fn controls_time(&self) -> bool {
        self.fixture.clock().is_some()
    }

    /// A lease that does not end while a check runs, unless time is passed for it.
    pub(super) const LEASE: Duration = Duration::from_secs(30);

    /// Returns a lease that a check waits for.
    pub(super) fn brief(&self) -> Duration {
        // A clock that is moved costs nothing. Real time is waited for, so the lease is short there.
        if self.controls_time() { Self::LEASE } else { Duration::from_millis(400) }
    }

    pub(super) async fn pass(&self, time: Duration) {
        match self.fixture.clock() {
            Some(clock) => clock.advance(time),
            None => tokio::time::sleep(time).await,
        }
    }

    pub(super) async fn outlast_leases(&self) {
        self.pass(self.brief() + Duration::from_millis(50)).await;
    }

    pub(super) async fn claim_as(
        &self,
        consumer: &str,
        key: &[u8],
        lease: Duration,
    ) -> IdempotencyClaim {
        let (consumer, key) = (Arc::from(consumer), Bytes::copy_from_slice(key));
        self.store.claim(consumer, key, lease).await.expect("claim answers")
    }

    pub(super) async fn claim(&self, key: &str) -> IdempotencyClaim {
        self.claim_as("orders.handle", key.as_bytes(), Self::LEASE).await
    }

    /// Claims a key that must be new, and returns the token, the attempts and the crashes.
    pub(super) async fn take(&self, key: &str) -> (IdempotencyToken, u32, u32) {
        self.take_for(key, Self::LEASE).await
    }

    /// The same with a lease that is to end.
    pub(super) async fn take_briefly(&self, key: &str) -> (IdempotencyToken, u32, u32) {
        self.take_for(key, self.brief()).await
    }

    async fn take_for(&self, key: &str, lease: Duration) -> (IdempotencyToken, u32, u32) {
        match self.claim_as("orders.handle", key.as_bytes(), lease).await {
            IdempotencyClaim::New { token, attempts, crashes } => (token, attempts, crashes),
            other => panic!("`{key}` is not new: {other:?}"),
        }
    }

    pub(super) async fn complete(&self, token: &IdempotencyToken, keep: Duration) -> bool {
        self.store.complete(token.clone(), keep).await.expect("complete answers")
    }

    pub(super) async fn release(&self, token: &IdempotencyToken, release: Release) -> bool {
        self.store.release(token.clone(), release).await.expect("release answers")
    }

    pub(super) async fn extend(&self, token: &IdempotencyToken, lease: Duration) -> bool {
        self.store.extend(token.clone(), lease).await.expect("extend answers")
    }

    pub(super) async fn look_up(&self, key: &str) -> KeyState {
        let (consumer, key) = (Arc::from("orders.handle"), Bytes::copy_from_slice(key.as_bytes()));
        self.store.look_up(consumer, key).await.expect("look_up answers")
    }

    pub(super) async fn purge(&self, limit: u32) -> u64 {
        self.store.purge(limit).await.expect("purge answers")
    }
}
