//! Write, confirm, settle: the cold path of dead-letter routing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlq_core::store::Receipt;
use dlq_core::{
    Binding, BoxRetryLane, DeadLetter, Delivery, Disposition, ErrorClass, Escalation, Failure,
    Lane, Reason, RetryLane, SharedClock, StoreError, StoreErrorKind,
};
use futures_util::future::join_all;

use super::OnDeath;
use super::confirmed::Confirmed;
use super::hook::guarded;
use super::layer::Attribute;
use super::writer::Writer;
use crate::metrics::Recorder;
use crate::stage::{GivenUp, Postponed, RouteError, Settlement};

/// What every clone of one routing service shares.
pub(super) struct Shared {
    pub(super) sink: Writer,
    pub(super) feeds: Vec<(Arc<str>, Writer)>,
    pub(super) retry_lane: Option<BoxRetryLane>,
    pub(super) confirmed: Confirmed,
    pub(super) on_death: Option<Arc<dyn OnDeath>>,
    pub(super) service_name: Option<String>,
    pub(super) attributes: Vec<(String, Attribute)>,
    pub(super) clock: SharedClock,
    pub(super) recorder: Recorder,
    /// Whether it was told that nothing keeps what waits.
    pub(super) has_warned: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("sink", &self.sink)
            .field("feeds", &self.feeds)
            .field("retry_lane", &self.retry_lane)
            .field("service_name", &self.service_name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Writes the letter of a death where it belongs, then makes the settlement.
    pub(super) async fn bury(
        self: Arc<Self>,
        delivery: Delivery,
        given_up: GivenUp,
    ) -> Result<Settlement, RouteError> {
        let letter = self.letter(&delivery, given_up);
        let death = letter.death();
        // Part 0 is the authoritative sink, the feeds follow.
        let binding = || Binding::of(&letter.id, &letter.message);
        let mut confirmed = self.confirmed.take(death, binding, 1 + self.feeds.len());
        if !confirmed[0] {
            // The record of a letter is the claimed row; settling writes and counts it.
            if delivery.lane() != Lane::Store {
                let put = self.sink.put(&letter).await;
                self.received(&letter, put.map_err(|error| unwritten(&letter, error))?);
            }
            confirmed[0] = true;
        }
        let feeds = self.feeds.iter().zip(&mut confirmed[1..]).filter(|(_, done)| !**done).map(
            |((name, feed), done)| {
                let letter = &letter;
                async move {
                    let written = feed.put(letter).await;
                    *done = written.is_ok();
                    written.map_err(|error| (Arc::clone(name), error))
                }
            },
        );
        let mut failed = join_all(feeds).await.into_iter().filter_map(Result::err);
        if let Some((feed, error)) = failed.next() {
            tracing::error!(%death, feed = &*feed, %error, "a feed did not take a dead letter");
            for (feed, error) in failed {
                tracing::error!(%death, feed = &*feed, %error, "a feed did not take a dead letter");
            }
            self.confirmed.remember(death, binding(), confirmed);
            return Err(unwritten(&letter, error));
        }
        if let Some(hook) = &self.on_death {
            guarded("on_death", || hook.on_death(&letter));
        }
        tracing::error!(
            %death,
            consumer = letter.consumer,
            subject = letter.message.subject(),
            reason = letter.reason.as_str(),
            error = %letter.error(),
            "a message died"
        );
        Ok(Settlement::new(Disposition::Dead(Box::new(letter))))
    }

    fn received(&self, letter: &DeadLetter, receipt: Receipt) {
        let subject = letter.message.subject_shared();
        match receipt {
            Receipt::Unchanged | Receipt::Superseded => {}
            Receipt::Conflicting(id) => {
                tracing::error!(
                    death = %letter.death(), kept_as = %id,
                    "the identity of a dead letter is taken by other bytes; both are kept"
                );
                self.recorder.letter_conflicted(subject);
                self.recorder.letter_written(subject, letter.class);
            }
            _ => self.recorder.letter_written(subject, letter.class),
        }
    }

    /// Writes the retry record where it belongs, then makes the settlement.
    pub(super) async fn postpone(
        self: Arc<Self>,
        delivery: Delivery,
        postponed: Postponed,
    ) -> Result<Settlement, RouteError> {
        let Postponed { consumer, after, history, attempts } = postponed;
        let due = self.clock.now().after(after);
        if delivery.lane() != Lane::Store {
            let Some(lane) = &self.retry_lane else {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        handler = &*consumer,
                        ?after,
                        "a message waits at its broker, which forgets its attempts: one that goes on failing like this never \
                         dies; add `retry_lane(…)`, or a store (`dead_letters`)"
                    );
                }
                return Ok(Settlement::new(Disposition::Deferred { after }));
            };
            let escalation = Escalation {
                delivery: delivery.clone(),
                consumer: Arc::clone(&consumer),
                due,
                history: history.clone(),
                attempts,
            };
            match lane.escalate(escalation).await {
                Ok(()) => {}
                Err(error) if error.kind() == StoreErrorKind::Refused => {
                    // It could be tried for ever, and would be.
                    tracing::error!(
                        origin = %delivery.origin(), %error,
                        "a message cannot wait for its next attempt: it dies"
                    );
                    let given_up = GivenUp {
                        consumer,
                        reason: Reason::Exhausted,
                        class: history.last().map_or(ErrorClass::Transient, |last| last.class),
                        cause: history.last().map(|last| last.cause),
                        history,
                        attempts,
                        crashes: delivery.crashes(),
                    };
                    // Apart, since it is rare, and large in memory.
                    return Box::pin(self.bury(delivery, given_up)).await;
                }
                Err(error) => return Err(RouteError::new(cause(history.last()), error)),
            }
        }
        Ok(Settlement::new(Disposition::Escalated { due, history, attempts }))
    }
}

fn cause(failure: Option<&Failure>) -> String {
    failure.map_or_else(|| "no attempt was made".to_owned(), Failure::report)
}

fn unwritten(letter: &DeadLetter, error: StoreError) -> RouteError {
    RouteError::new(letter.error(), error)
}
