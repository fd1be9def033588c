use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dlq_core::StoreError;
use dlq_core::idempotency::memory::MemoryIdempotency;
use dlq_core::idempotency::{Idempotency, IdempotencyClaim, IdempotencyToken, Release};

use super::gate::Process;
use super::transport::store_down;

/// Idempotency in memory whose every call is a step.
#[derive(Clone, Debug)]
pub(super) struct SteppedIdempotency {
    process: Process,
    inner: MemoryIdempotency,
}

impl SteppedIdempotency {
    pub(super) fn new(process: Process, inner: MemoryIdempotency) -> Self {
        Self { process, inner }
    }
}

impl Idempotency for SteppedIdempotency {
    async fn claim(
        &self,
        consumer: Arc<str>,
        key: Bytes,
        lease: Duration,
    ) -> Result<IdempotencyClaim, StoreError> {
        let effect = || self.inner.claim(consumer, key, lease);
        self.process.call("claim key", effect, store_down).await
    }

    async fn extend(&self, token: IdempotencyToken, lease: Duration) -> Result<bool, StoreError> {
        let effect = || self.inner.extend(token, lease);
        self.process.call("extend key", effect, store_down).await
    }

    async fn complete(&self, token: IdempotencyToken, keep: Duration) -> Result<bool, StoreError> {
        let effect = || self.inner.complete(token, keep);
        self.process.call("complete key", effect, store_down).await
    }

    async fn release(&self, token: IdempotencyToken, release: Release) -> Result<bool, StoreError> {
        let effect = || self.inner.release(token, release);
        self.process.call("release key", effect, store_down).await
    }

    async fn purge(&self, limit: u32) -> Result<u64, StoreError> {
        self.inner.purge(limit).await
    }
}
