use std::future::pending;
use std::time::Duration;

use dlq_core::memory::{MemoryRetryQueue, MemorySettle, MemorySource};
use dlq_core::{
    Capabilities, DelayedRetry, Delivery, Disposition, Position, RetryQueue, Settle, Source,
    StoreError, StoreErrorKind, TransportError, TransportErrorKind,
};

use super::flaw::Flaw;
use super::gate::{Arrival, Process};
use super::headers::{over_the_queue, received};

pub(super) fn transport_down(operation: &'static str, _: StoreErrorKind) -> TransportError {
    TransportError::new(TransportErrorKind::Unavailable, operation)
        .with_detail("the plan says that it fails")
}

pub(super) fn store_down(operation: &'static str, kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, operation).with_detail("the plan says that it fails")
}

/// A source in memory whose every delivery is a step.
#[derive(Debug)]
pub struct SteppedSource {
    process: Process,
    inner: MemorySource,
    /// Arrived, and not yielded because the source was to fail.
    kept: Option<(Delivery, MemorySettle)>,
}

impl SteppedSource {
    pub(super) fn new(process: Process, inner: MemorySource) -> Self {
        Self { process, inner, kept: None }
    }
}

impl Source for SteppedSource {
    type Settle = SteppedSettle;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn next(&mut self) -> Result<Option<(Delivery, SteppedSettle)>, TransportError> {
        if self.kept.is_none() {
            self.kept = self.inner.next().await?;
        }
        // Kept while the process stands still, and when this future is dropped.
        self.process.live().await;
        let Some(arrived) = self.kept.take() else { return Ok(None) };
        match self.process.arrives("receive") {
            Ok(()) => {
                let (delivery, inner) = arrived;
                let position = delivery.origin().position().clone();
                let mut delivery = received(delivery);
                if self.process.world.flaw == Some(Flaw::CountsDeferrals) {
                    let counted = delivery.attempt() + self.process.world.given_back(&position);
                    delivery = delivery.with_attempt(counted);
                }
                let mut settle = SteppedSettle {
                    process: self.process.clone(),
                    position,
                    lease: inner.lease(),
                    inner: Some(inner),
                };
                if self.process.world.flaw == Some(Flaw::AcknowledgesOnReceipt) {
                    settle.acknowledge().await?;
                }
                Ok(Some((delivery, settle)))
            }
            Err(Arrival::Never) => pending().await,
            Err(Arrival::Later) => {
                self.kept = Some(arrived);
                Err(transport_down("receive", StoreErrorKind::Unavailable))
            }
        }
    }

    async fn close(&mut self) {
        // A process that has died gives nothing back.
        if !self.process.died().is_cancelled() {
            self.inner.close().await;
        }
    }
}

/// A settle handle in memory whose every call is a step.
#[derive(Debug)]
pub struct SteppedSettle {
    process: Process,
    position: Position,
    lease: Option<Duration>,
    /// `None` when it was acknowledged before its time.
    inner: Option<MemorySettle>,
}

impl SteppedSettle {
    /// Acknowledges a message on receipt: [`Flaw::AcknowledgesOnReceipt`].
    async fn acknowledge(&mut self) -> Result<(), TransportError> {
        if let Some(inner) = self.inner.take() {
            inner.settle(Disposition::Succeeded).await?;
            self.process.world.inspect("acknowledge on receipt");
        }
        Ok(())
    }
}

impl Settle for SteppedSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        let Self { process, inner, position, .. } = self;
        let Some(inner) = inner else { return Ok(()) };
        // This is noted before the call, whose answer may be lost although the broker has the message again.
        if let Disposition::Deferred { .. } = disposition {
            process.world.gives_back(position);
        }
        process.call("settle", || inner.settle(disposition), transport_down).await
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let Self { process, inner, .. } = self;
        let Some(inner) = inner else { return Ok(()) };
        process.call("extend", || inner.extend(), transport_down).await
    }

    fn lease(&self) -> Option<Duration> {
        self.lease
    }
}

/// A retry queue in memory whose every record is a step.
#[derive(Clone, Debug)]
pub struct SteppedRetryQueue {
    process: Process,
    inner: MemoryRetryQueue,
}

impl SteppedRetryQueue {
    pub(super) fn new(process: Process, inner: MemoryRetryQueue) -> Self {
        Self { process, inner }
    }
}

impl RetryQueue for SteppedRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let effect = || async { self.inner.enqueue(over_the_queue(delayed_retry)?).await };
        let answer = self.process.call("write to the queue", effect, store_down).await;
        match answer {
            Err(_) if self.process.world.flaw == Some(Flaw::ConfirmsUnwrittenRecords) => Ok(()),
            answer => answer,
        }
    }
}
