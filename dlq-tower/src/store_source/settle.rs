use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{ClaimToken, Claims, Finish, Finished};
use dlq_core::{
    Disposition, Resolution, Settle, StoreError, StoreErrorKind, TransportError, TransportErrorKind,
};
use tokio::time::{Instant, sleep};

use super::finish::{Finisher, Unfinished};
use crate::stage::instant_after;

const RECORDING: &str = "record the outcome of a claimed letter";
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

    /// Records how the claim ended. Asks again until then, unless the store refuses just that.
    async fn record(&self, finish: &Finish, give_up: Instant) -> Result<Finished, Arc<StoreError>> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.finisher.finish(self.token, finish.clone()).await {
                Ok(finished) => return Ok(finished),
                // The caller that wrote the batch was dropped. There is nothing to wait for, and the token makes a
                // second write harmless.
                Err(Unfinished::Interrupted) => continue,
                Err(Unfinished::Refused(error)) => error,
            };
            // Errors of other kinds may be set right by an operator while the lease lasts, so they are tried until
            // then.
            let is_refused = error.kind() == StoreErrorKind::Refused;
            if is_refused || Instant::now() + pause >= give_up {
                return Err(error);
            }
            tracing::warn!(letter = %self.token.letter, %error, "an outcome could not be recorded yet");
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Gives the claim back whose outcome the store does not record: a lease that ended unfinished would count as a crash of
    /// the message, and enough of those as its death.
    async fn give_back(&self, why: &StoreError, give_up: Instant) {
        let after = self.finisher.next_delay_after_refusal(self.token.letter);
        match self.record(&Finish::Released { after }, give_up).await {
            Ok(_) => tracing::error!(
                letter = %self.token.letter, error = %why, retry_in = ?after,
                "the store refuses the outcome of a letter; the letter was given back and runs again"
            ),
            Err(error) => tracing::error!(
                letter = %self.token.letter, error = %why, release = %error,
                "the store refuses the outcome of a letter, which could not be given back either: when its lease ends, that counts as a crash"
            ),
        }
    }
}

impl<C: Claims> Settle for StoreSettle<C> {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        // Later than that the letter may be claimed by another process, and the token is stale.
        let give_up = instant_after(self.lease);
        let finish = match finish_of(disposition) {
            Ok(finish) => finish,
            Err(unknown) => {
                let why = StoreError::new(StoreErrorKind::Refused, RECORDING);
                self.give_back(&why.with_detail(unknown.to_string()), give_up).await;
                return Err(unknown);
            }
        };
        match self.record(&finish, give_up).await {
            Ok(Finished::Applied) => {
                if let Finish::Dead(letter) = &finish {
                    let subject = letter.message.subject_shared();
                    self.finisher.recorder().letter_written(subject, letter.class);
                }
                self.finisher.forget_refusals(self.token.letter);
                Ok(())
            }
            // It is no error, for there is nothing left to do: this claim is over.
            Ok(Finished::Stale) => {
                tracing::warn!(
                    letter = %self.token.letter,
                    generation = self.token.generation,
                    "an outcome came too late and was not recorded: the letter was claimed again, marked or deleted meanwhile"
                );
                // Somebody else decides about the letter now; kept, its delay would take up room for ever.
                self.finisher.forget_refusals(self.token.letter);
                Ok(())
            }
            Err(error) => {
                // A store that does not answer takes no release either. The claim then ends with its lease.
                if !error.is_transient() {
                    self.give_back(&error, give_up).await;
                }
                Err(unavailable(RECORDING, error))
            }
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

/// The end of the claim; an error for a disposition that is not known here.
fn finish_of(disposition: Disposition) -> Result<Finish, TransportError> {
    Ok(match disposition {
        Disposition::Succeeded => Finish::Resolved(Resolution::Succeeded),
        Disposition::Duplicate => Finish::Resolved(Resolution::Duplicate),
        Disposition::Dead(letter) => Finish::Dead(letter),
        Disposition::DelayedRetry { due, history, attempts } => {
            Finish::Retry { due, history, attempts }
        }
        Disposition::Deferred { after } => Finish::Released { after },
        unknown => return Err(unknown.unsupported()),
    })
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
