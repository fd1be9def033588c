//! Decisions after an attempt: pure functions, no waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::policy::{Next, RetryPolicy};
use dlq_core::{
    Attempt, Cause, Death, Delivery, ErrorClass, Failure, History, Reason, SharedClock, Timestamp,
};

use super::InProcessDelays;
use super::in_process::InProcessDelay;
use crate::catch_panic::failure_of;
use crate::consumer::hand::{self, Conviction, Hand};
use crate::metrics::Recorder;
use crate::stage::{GivenUp, InFlight, Postponed, Setback, Verdict};

/// State that every clone of one retry service shares.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) policy: RetryPolicy,
    pub(super) consumer: Option<Arc<str>>,
    pub(super) slots: InProcessDelays,
    pub(super) clock: SharedClock,
    pub(super) recorder: Recorder,
}

/// Decision after a setback.
pub(super) enum Step {
    /// No more attempt here.
    Over(Verdict),
    /// The next attempt, after this delay.
    Again(Duration),
    /// The same attempt, when this key is not in flight any more.
    Wait(Box<InFlight>),
}

impl Inner {
    pub(super) fn consumer(&self, delivery: &Delivery) -> Arc<str> {
        self.consumer.as_ref().unwrap_or(delivery.consumer_shared()).clone()
    }

    /// Returns true if a message must not run at all.
    #[inline]
    pub(super) fn is_refused(&self, delivery: &Delivery) -> bool {
        let limit = self.policy.max_crashes();
        (limit > 0 && delivery.crashes() >= limit) || delivery.refusal().is_some()
    }

    /// The verdict on a message that is not to be run at all, if it is one.
    pub(super) fn refuse(&self, delivery: &Delivery) -> Option<Verdict> {
        self.is_refused(delivery).then(|| {
            // A refusal is looked at first: it says why no handler may run, and the crashes are in the letter beside
            // it.
            if let Some(failure) = delivery.refusal() {
                return Verdict::Dead(Box::new(self.refused(delivery, failure)));
            }
            // The finding is noted before the letter is written: if that fails the message comes again, and is
            // not run then either (G3).
            Conviction::Delivery.note(delivery);
            Verdict::Dead(Box::new(self.crashed(delivery, delivery.crashes())))
        })
    }

    /// The end of a message that its source has refused. No handler ran, so that no attempt is counted.
    fn refused(&self, delivery: &Delivery, failure: &Failure) -> GivenUp {
        let consumer = self.consumer(delivery);
        tracing::error!(
            consumer = &*consumer,
            subject = delivery.message().subject(),
            cause = failure.cause.as_str(),
            error = %failure.report(),
            "a message is given up without a run: its source has refused it"
        );
        let mut given_up = GivenUp::unattempted(delivery, consumer, Reason::Permanent);
        given_up.cause = Some(failure.cause);
        given_up.history.push(Attempt {
            number: delivery.attempt(),
            generation: delivery.generation(),
            failure: failure.clone().timed(self.clock.now(), Duration::ZERO),
        });
        given_up
    }

    fn crashed(&self, delivery: &Delivery, crashes: u32) -> GivenUp {
        let consumer = self.consumer(delivery);
        tracing::error!(
            consumer = &*consumer,
            subject = delivery.message().subject(),
            crashes,
            "a message is given up: the process died too often while it was handled"
        );
        let given_up = GivenUp::unattempted(delivery, consumer, Reason::MaxCrashes);
        GivenUp { crashes, ..given_up }
    }

    /// Decides what comes after `setback`, and takes the attempt into the history.
    pub(super) fn after(
        &self,
        setback: Setback,
        delivery: &mut Delivery,
        history: &mut Option<History>,
    ) -> Step {
        match setback {
            Setback::Deferred { after, why } => {
                Step::Over(self.defer(after, why, delivery, history))
            }
            Setback::InFlight(in_flight) => Step::Wait(in_flight),
            Setback::Crashed { crashes } => {
                Conviction::Key.note(delivery);
                let mut given_up = self.crashed(delivery, crashes);
                // Attempts that were made here belong in the letter, and the delivery knows only those before them.
                if let Some(history) = history.take() {
                    given_up.history = history;
                }
                Step::Over(Verdict::Dead(Box::new(given_up)))
            }
            Setback::Failed(attempt) => self.failed(*attempt, delivery, history),
        }
    }

    /// Not now. Attempts that were made here would be forgotten by a mere deferral, so they are handed on.
    pub(super) fn defer(
        &self,
        after: Duration,
        why: &'static str,
        delivery: &Delivery,
        history: &mut Option<History>,
    ) -> Verdict {
        if history.is_none() {
            return Verdict::Defer { after, why };
        }
        self.postpone(after, delivery, history)
    }

    /// A slot for waiting until a key is not in flight any more, unless too many wait already or others wait for this message.
    pub(super) fn slot_to_wait(&self, delivery: &Delivery) -> Option<InProcessDelay> {
        let is_probe = hand::of(delivery).is_some_and(Hand::is_probe);
        (!is_probe).then(|| self.slots.take_to_wait(delivery)).flatten()
    }

    /// Says that a message waits.
    pub(super) fn waits(&self, in_flight: &InFlight, delivery: &Delivery) {
        tracing::info!(
            consumer = &*self.consumer(delivery),
            subject = delivery.message().subject(),
            at_most = ?in_flight.remaining(),
            why = in_flight.why(),
            "waiting for the key of a message"
        );
    }

    /// To be retried elsewhere, with the attempts made so far. `delivery` is the next attempt.
    pub(super) fn postpone(
        &self,
        after: Duration,
        delivery: &Delivery,
        history: &mut Option<History>,
    ) -> Verdict {
        Verdict::Retry(Box::new(Postponed {
            consumer: self.consumer(delivery),
            after,
            history: history.take().unwrap_or_else(|| delivery.history().clone()),
            attempts: delivery.attempt().saturating_sub(1),
        }))
    }

    fn failed(
        &self,
        mut attempt: Attempt,
        delivery: &mut Delivery,
        history: &mut Option<History>,
    ) -> Step {
        // An error that a foreign layer made up knows neither attempt nor time.
        attempt.number = attempt.number.max(delivery.attempt());
        attempt.generation = delivery.generation();
        let failure = &mut attempt.failure;
        if failure.at == Timestamp::EPOCH {
            failure.at = self.clock.now();
        }
        if is_permanent(failure) {
            failure.class = ErrorClass::Permanent;
        }
        self.recorder.attempt_failed(delivery.message().subject_shared());

        let number = attempt.number;
        let next = match failure.class {
            ErrorClass::Permanent => Err(Reason::Permanent),
            _ => match self.next(number, failure.retry_after, delivery) {
                Next::After(delay) => Ok(delay),
                Next::Exhausted => Err(Reason::Exhausted),
            },
        };
        tracing::warn!(
            consumer = &*self.consumer(delivery),
            subject = delivery.message().subject(),
            attempt = number,
            class = failure.class.as_str(),
            cause = failure.cause.as_str(),
            error = %failure.report(),
            retry_in = ?next.as_ref().ok(),
            "an attempt failed"
        );
        let (class, cause) = (failure.class, failure.cause);
        // The history is copied at the first failure only, since most messages have none.
        history.get_or_insert_with(|| delivery.history().clone()).push(attempt);
        match next {
            Ok(delay) => {
                *delivery = delivery.clone().with_attempt(number.saturating_add(1));
                Step::Again(delay)
            }
            Err(reason) => Step::Over(Verdict::Dead(Box::new(GivenUp {
                consumer: self.consumer(delivery),
                reason,
                class,
                cause: Some(cause),
                history: history.take().unwrap_or_default(),
                attempts: number,
                crashes: delivery.crashes(),
            }))),
        }
    }

    /// Returns the decision of the policy. Its delays may be the user's code, which is outside the panic guard: if they
    /// panic there is no further attempt, for the message would come again without end.
    fn next(&self, number: u32, retry_after: Option<Duration>, delivery: &Delivery) -> Next {
        let next = || self.policy.next(number, retry_after, seed(self.death(delivery)));
        catch_unwind(AssertUnwindSafe(next)).unwrap_or_else(|payload| {
            let panic = failure_of(payload, ErrorClass::Permanent);
            tracing::error!(
                consumer = &*self.consumer(delivery),
                attempt = number,
                panic = panic.message(),
                "a custom backoff panicked: its message is given up"
            );
            Next::Exhausted
        })
    }

    fn death(&self, delivery: &Delivery) -> Death {
        delivery.death(&self.consumer(delivery))
    }
}

/// Returns true if no further run can help, whatever the policy grants.
pub(crate) fn is_permanent(failure: &Failure) -> bool {
    failure.class == ErrorClass::Permanent
        // The bytes of a message never change, so what could not be read once cannot be read later.
        || matches!(failure.cause, Cause::Decode | Cause::Malformed | Cause::Oversize)
}

/// The seed of a message's delays: the same for the same death, whichever process decides.
fn seed(death: Death) -> u64 {
    let mut low = [0; 8];
    // The id is a hash already, so a part of it is as good as random.
    low.copy_from_slice(&death.letter.as_bytes()[..8]);
    u64::from_le_bytes(low) ^ u64::from(death.generation).rotate_left(32)
}
