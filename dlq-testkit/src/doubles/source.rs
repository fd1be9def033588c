use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{Capabilities, Delivery, Recipients, Source, TransportError};
use tokio::time::timeout;

/// Defect of a [`FaultySource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceFault {
    /// A message that arrives while `next` is being dropped stays in nobody's hands until its lease ends.
    LosesWhenDropped,
    /// Fetched messages are not given back when the source is closed.
    KeepsWhenClosed,
    /// Two messages change places.
    Reorders,
    /// Every delivery says that it is the first.
    CountsNothing,
    /// Each message gets a header more.
    AddsHeaders,
}

/// A source that breaks a promise.
#[derive(Debug)]
pub struct FaultySource<S: Source> {
    inner: S,
    fault: Option<SourceFault>,
    ahead: VecDeque<(Delivery, S::Settle)>,
    closed: bool,
}

impl<S: Source> FaultySource<S> {
    /// Breaks a promise of `inner`; none, when there is no fault.
    #[must_use]
    pub fn new(inner: S, fault: Option<SourceFault>) -> Self {
        Self { inner, fault, ahead: VecDeque::new(), closed: false }
    }

    /// Takes messages ahead as long as some are there.
    async fn look_ahead(&mut self, most: usize) -> Result<(), TransportError> {
        while self.ahead.len() < most {
            // Without time the future is polled once, which yields what is there already.
            match timeout(Duration::ZERO, self.inner.next()).await {
                Ok(Ok(Some(next))) => self.ahead.push_back(next),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(None)) | Err(_) => break,
            }
        }
        Ok(())
    }
}

impl<S: Source> Source for FaultySource<S> {
    type Settle = S::Settle;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        self.inner.bind(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, S::Settle)>, TransportError> {
        if self.closed {
            return Ok(None);
        }
        match self.fault {
            Some(SourceFault::Reorders) => {
                // The later of two goes out, and the earlier one waits for a later call.
                self.look_ahead(2).await?;
                if let Some(later) = self.ahead.pop_back() {
                    return Ok(Some(later));
                }
            }
            Some(SourceFault::KeepsWhenClosed) => {
                // What is taken ahead and not yielded stays in `ahead` until its lease has ended: `close` does not look there.
                self.look_ahead(8).await?;
                if let Some(next) = self.ahead.pop_front() {
                    return Ok(Some(next));
                }
            }
            _ => {}
        }
        let Some((delivery, settle)) = self.inner.next().await? else { return Ok(None) };
        let delivery = match self.fault {
            Some(SourceFault::LosesWhenDropped) => {
                // Whoever drops the future here drops the message.
                tokio::task::yield_now().await;
                delivery
            }
            Some(SourceFault::CountsNothing) => delivery.with_deliveries(1),
            Some(SourceFault::AddsHeaders) => {
                let message = delivery.message().clone().with_header("seen-by", "us");
                Delivery::new(message, delivery.origin().clone())
            }
            _ => delivery,
        };
        Ok(Some((delivery, settle)))
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        self.inner.keep_alive_interval()
    }

    async fn keep_alive(&mut self) {
        self.inner.keep_alive().await;
    }

    async fn close(&mut self) {
        self.closed = true;
        self.inner.close().await;
    }
}
