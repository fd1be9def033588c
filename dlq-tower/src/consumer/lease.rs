use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use dlq_core::{Disposition, Settle, SettleOnce, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep_until};

use crate::stage::{NEVER, instant_after};

/// The settle handle of a message in flight, whose lease is extended while something is done about the message.
#[derive(Debug)]
pub(super) struct Leased {
    settle: SettleOnce,
    /// A third of the lease, so that two extensions may fail. None when there is no lease.
    every: Option<Duration>,
    next: Instant,
    is_lost: bool,
}

/// The message is not ours any more: what waits with it waits in vain.
pub(super) struct Lost;

impl Leased {
    /// `since` is when the lease began.
    pub(super) fn new(settle: SettleOnce, since: Instant) -> Self {
        let every = settle.lease().map(|lease| (lease / 3).max(Duration::from_millis(1)));
        // The lease has run since the receipt, while the message was in its batch.
        let next = since + every.unwrap_or_default().min(NEVER);
        Self { settle, every, next, is_lost: false }
    }

    /// Runs `future`, and extends the lease when it takes long. A run goes on when the lease is lost.
    pub(super) async fn keep<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        // The future first: one that is done at once needs no timer.
        tokio::select! {
            biased;
            output = &mut future => return output,
            Lost = self.extend() => {}
        }
        future.await
    }

    /// The same for a future that only waits until the message may run: it ends when the lease is lost, since another one
    /// has the message then, and its outcome would count for nothing (G6); unless it `goes_on`.
    pub(super) async fn wait_unless<F: Future>(
        &mut self,
        goes_on: bool,
        future: F,
    ) -> Result<F::Output, Lost> {
        let mut future = pin!(future);
        if goes_on {
            return Ok(self.keep(future).await);
        }
        if self.is_lost {
            return Err(Lost);
        }
        tokio::select! {
            biased;
            output = &mut future => Ok(output),
            lost = self.extend() => Err(lost),
        }
    }

    /// Ends when the lease is lost.
    async fn extend(&mut self) -> Lost {
        if self.is_lost {
            return Lost;
        }
        loop {
            let Some(every) = self.every else { return pending().await };
            sleep_until(self.next).await;
            match self.settle.extend().await {
                Ok(()) => {}
                Err(error) if error.kind() == TransportErrorKind::Lost => {
                    tracing::warn!(
                        %error,
                        "the lease of a message was lost while it was in flight: it may run elsewhere as well"
                    );
                    self.is_lost = true;
                    return Lost;
                }
                // The lease is not lost yet: `every` leaves time for another try.
                Err(error) => tracing::warn!(%error, "a lease could not be extended"),
            }
            self.next = instant_after(every);
        }
    }

    pub(super) fn into_inner(self) -> SettleOnce {
        self.settle
    }

    pub(super) async fn settle(mut self, disposition: Disposition) -> Result<(), TransportError> {
        if let Some(settled) = self.settle.settle_now(&disposition) {
            return settled;
        }
        self.settle.settle(disposition).await
    }
}
