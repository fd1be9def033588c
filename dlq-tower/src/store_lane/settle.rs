use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{ClaimToken, Claims, Finish, Finished};
use dlq_core::{Disposition, Resolution, Settle, StoreError, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep};

use super::finish::{Finisher, Unfinished};
use crate::stage::instant_after;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Ends a claim. See the [module docs](super).
#[must_use = "a claim that is not ended is claimed again when its lease ends"]
pub struct StoreSettle<C> {
    token: ClaimToken,
    lease: Duration,
    finisher: Arc<Finisher<C>>,
}

impl<C: Claims> StoreSettle<C> {
    pub(super) fn new(token: ClaimToken, lease: Duration, finisher: Arc<Finisher<C>>) -> Self {
        Self { token, lease, finisher }
    }
}

impl<C: Claims> Settle for StoreSettle<C> {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        let finish = finish_of(disposition);
        let give_up = instant_after(self.lease);
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.finisher.finish(self.token, finish.clone()).await {
                Ok(Finished::Applied) => {
                    if let Finish::Dead(letter) = &finish {
                        let subject = letter.message.subject_shared();
                        self.finisher.recorder().letter_written(subject, letter.class);
                    }
                    return Ok(());
                }
                Ok(Finished::Stale) => {
                    tracing::warn!(
                        letter = %self.token.letter,
                        generation = self.token.generation,
                        "an outcome came too late and was not recorded: the letter was claimed again, marked or deleted meanwhile"
                    );
                    return Ok(());
                }
                Err(Unfinished::Interrupted) => continue,
                Err(Unfinished::Refused(error)) => error,
            };
            if !error.is_transient() || Instant::now() + pause >= give_up {
                return Err(unavailable("record the outcome of a claimed letter", error));
            }
            tracing::warn!(letter = %self.token.letter, %error, "an outcome could not be recorded yet");
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let extend = self.finisher.claims().extend(vec![self.token], self.lease);
        let valid = extend.await.map_err(|error| unavailable("extend a claim", Arc::new(error)))?;
        if valid.first().copied().unwrap_or(false) {
            return Ok(());
        }
        Err(TransportError::new(TransportErrorKind::Lost, "extend a claim"))
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }
}

fn finish_of(disposition: Disposition) -> Finish {
    match disposition {
        Disposition::Succeeded => Finish::Resolved(Resolution::Succeeded),
        Disposition::Duplicate => Finish::Resolved(Resolution::Duplicate),
        Disposition::Dead(letter) => Finish::Dead(letter),
        Disposition::Escalated { due, history, attempts } => {
            Finish::Retry { due, history, attempts }
        }
        Disposition::Deferred { after } => Finish::Released { after },
    }
}

/// An error of the store, as one of a transport.
pub(super) fn unavailable(operation: &'static str, error: Arc<StoreError>) -> TransportError {
    let kind = if error.is_transient() {
        TransportErrorKind::Unavailable
    } else {
        TransportErrorKind::Unexpected
    };
    TransportError::new(kind, operation).with_source(error)
}

impl<C> fmt::Debug for StoreSettle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettle").field("token", &self.token).finish_non_exhaustive()
    }
}
