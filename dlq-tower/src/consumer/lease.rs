use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use dlq_core::{Disposition, Settle, SettleOnce, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep_until};

use crate::stage::{NEVER, instant_after};

/// The settle handle of a message in hand, whose lease is extended while something is done about the message.
#[derive(Debug)]
pub(super) struct Leased {
    settle: SettleOnce,
    /// A third of the lease, so that two extensions may fail. None when there is no lease, or it was lost.
    every: Option<Duration>,
    next: Instant,
}

impl Leased {
    /// `since` is when the lease began.
    pub(super) fn new(settle: SettleOnce, since: Instant) -> Self {
        let every = settle.lease().map(|lease| (lease / 3).max(Duration::from_millis(1)));
        let next = since + every.unwrap_or_default().min(NEVER);
        Self { settle, every, next }
    }

    /// Runs `future`, and extends the lease when it takes long.
    pub(super) async fn keep<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        // The future first: one that is done at once needs no timer.
        tokio::select! {
            biased;
            output = &mut future => output,
            never = self.extend() => match never {},
        }
    }

    async fn extend(&mut self) -> Infallible {
        loop {
            let Some(every) = self.every else { return pending().await };
            sleep_until(self.next).await;
            match self.settle.extend().await {
                Ok(()) => {}
                Err(error) if error.kind() == TransportErrorKind::Lost => {
                    tracing::warn!(
                        %error,
                        "the lease of a message was lost while it was in hand: it may run elsewhere as well"
                    );
                    self.every = None;
                }
                Err(error) => tracing::warn!(%error, "a lease could not be extended"),
            }
            self.next = instant_after(every);
        }
    }

    pub(super) fn into_inner(self) -> SettleOnce {
        self.settle
    }

    pub(super) async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        self.settle.settle(disposition).await
    }
}
