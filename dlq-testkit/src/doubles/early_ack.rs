use std::sync::Arc;
use std::time::Duration;

use dlq_core::{Capabilities, Delivery, Disposition, Recipients, Settle, Source, TransportError};

/// A source that acknowledges every message on receipt, as "auto-commit" and "no ack" modes of clients do: what is in
/// hand when the process dies is lost (against G1).
#[derive(Debug)]
pub struct EarlyAckSource<S> {
    inner: S,
}

impl<S> EarlyAckSource<S> {
    /// Acknowledges what `inner` yields.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S: Source> Source for EarlyAckSource<S> {
    type Settle = EarlyAckSettle;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        self.inner.bind(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, EarlyAckSettle)>, TransportError> {
        let Some((delivery, settle)) = self.inner.next().await? else { return Ok(None) };
        let lease = settle.lease();
        // The broker forgets the message here, before anybody has handled it.
        settle.settle(Disposition::Succeeded).await?;
        Ok(Some((delivery, EarlyAckSettle { lease })))
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        self.inner.keep_alive_interval()
    }

    async fn keep_alive(&mut self) {
        self.inner.keep_alive().await;
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

/// The handle of a message that has been acknowledged already.
#[derive(Debug)]
pub struct EarlyAckSettle {
    lease: Option<Duration>,
}

impl Settle for EarlyAckSettle {
    async fn settle(self, _: Disposition) -> Result<(), TransportError> {
        Ok(())
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        self.lease
    }
}
