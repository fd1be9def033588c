//! Write, confirm, settle: the cold path of dead-letter routing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlq_core::store::Receipt;
use dlq_core::{
    BoxRetryQueue, DeadLetter, DelayedRetry, DeliveredFrom, Delivery, Disposition, ErrorClass,
    Failure, Reason, RetryQueue, SharedClock, StoreError, StoreErrorKind,
};
use futures_util::future::join_all;

use super::hook::guarded;
use super::layer::Attribute;
use super::unfinished::{Routing, Undone, Unfinished};
use super::writer::Writer;
use super::{OnDeath, PARKED};
use crate::metrics::Recorder;
use crate::stage::{GivenUp, Postponed, RouteError, Settlement, is_refusal};

/// State that every clone of one routing service shares.
pub(super) struct Inner {
    pub(super) sink: Writer,
    pub(super) feeds: Vec<(Arc<str>, Writer)>,
    /// For what one of these refuses.
    pub(super) parking: Option<Writer>,
    pub(super) retry_queue: Option<BoxRetryQueue>,
    pub(super) unfinished: Unfinished,
    pub(super) on_death: Option<Arc<dyn OnDeath>>,
    pub(super) service_name: Option<String>,
    pub(super) attributes: Vec<(String, Attribute)>,
    pub(super) clock: SharedClock,
    pub(super) recorder: Recorder,
    /// True if it was reported that nothing keeps waiting messages.
    pub(super) has_warned: AtomicBool,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("sink", &self.sink)
            .field("feeds", &self.feeds)
            .field("parking", &self.parking)
            .field("retry_queue", &self.retry_queue)
            .field("service_name", &self.service_name)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Writes the letter of a death where it belongs and has not `confirmed` yet, then makes the settlement.
    pub(super) async fn bury(
        self: Arc<Self>,
        delivery: Delivery,
        given_up: GivenUp,
        mut confirmed: Vec<bool>,
    ) -> Result<Settlement, RouteError> {
        // Both clones share the history.
        let letter = self.letter(&delivery, given_up.clone());
        // Part 0 is the authoritative sink, the feeds follow.
        confirmed.resize(1 + self.feeds.len(), false);
        // What has confirmed is remembered with the verdict, so that only the rest is written when the message comes again.
        if let Err(error) = self.write(&letter, &delivery, &mut confirmed).await {
            let routing = Routing::new(&delivery, Undone::Dead(given_up), confirmed);
            self.unfinished.remember(&delivery, routing);
            return Err(RouteError::new(letter.error(), error));
        }
        self.unfinished.finished(&delivery);
        let death = letter.death();
        // It is told before the settlement: a process that dies in between tells the death again, and none is left out.
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

    async fn write(
        &self,
        letter: &DeadLetter,
        delivery: &Delivery,
        confirmed: &mut [bool],
    ) -> Result<(), StoreError> {
        let Some((is_kept, copied)) = confirmed.split_first_mut() else { return Ok(()) };
        if !*is_kept {
            // The record of a letter is the claimed row; settling writes and counts it.
            if delivery.delivered_from() != DeliveredFrom::Store {
                let put = self.sink.put(letter).await;
                self.received(letter, self.parked(letter, "the sink", put).await?);
            }
            *is_kept = true;
        }
        // The feeds come after the authoritative sink: none has a copy of a letter that is kept nowhere.
        let feeds = self.feeds.iter().zip(copied).filter(|(_, done)| !**done).map(
            |((name, feed), done)| async move {
                let written = self.parked(letter, name, feed.put(letter).await).await;
                *done = written.is_ok();
                written.map_err(|error| (Arc::clone(name), error))
            },
        );
        let death = letter.death();
        let mut first = None;
        // All feeds are tried, also when one fails: each keeps its own confirmation.
        for (feed, error) in join_all(feeds).await.into_iter().filter_map(Result::err) {
            tracing::error!(%death, feed = &*feed, %error, "a feed did not take a dead letter");
            first.get_or_insert(error);
        }
        first.map_or(Ok(()), Err)
    }

    /// Writes a letter to the second place where the first one, called `by`, refuses it.
    async fn parked(
        &self,
        letter: &DeadLetter,
        by: &str,
        put: Result<Receipt, StoreError>,
    ) -> Result<Receipt, StoreError> {
        let (Err(refused), Some(parking)) = (&put, &self.parking) else { return put };
        // What passes is no reason to park: the letter is written to its own place when the message comes again.
        if !is_refusal(refused.kind()) {
            return put;
        }
        let mut parked = letter.clone();
        parked.attributes.insert(PARKED.to_owned(), dlq_core::bounded(&format!("{by}: {refused}")));
        // Boxed: this path is cold, and boxing keeps the hot future small.
        let receipt = Box::pin(parking.put(&parked)).await?;
        tracing::error!(
            death = %letter.death(), by, error = %refused,
            "a dead letter was refused; it is parked in the second place"
        );
        Ok(receipt)
    }

    fn received(&self, letter: &DeadLetter, receipt: Receipt) {
        let subject = letter.message.subject_shared();
        match receipt {
            // The store has this death, or a later one. No letter was added, so that none is counted (G2).
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
        // A letter from the store waits in its own row, which the settlement makes due again.
        if delivery.delivered_from() != DeliveredFrom::Store {
            let Some(queue) = &self.retry_queue else {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        handler = &*consumer,
                        ?after,
                        "a message waits at its broker, which forgets its attempts: one that goes on failing like this never \
                         dies; add `retry_queue(…)`, or a store (`dead_letters`)"
                    );
                }
                return Ok(Settlement::new(Disposition::Deferred { after }));
            };
            let delayed_retry = DelayedRetry {
                delivery: delivery.clone(),
                consumer: Arc::clone(&consumer),
                due,
                history: history.clone(),
                attempts,
            };
            match queue.enqueue(delayed_retry).await {
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
                    // Boxed: this path is cold, and boxing keeps the hot future small.
                    return Box::pin(self.bury(delivery, given_up, Vec::new())).await;
                }
                Err(error) => {
                    let cause = cause(history.last());
                    let undone = Undone::Retry(Postponed { consumer, after, history, attempts });
                    let routing = Routing::new(&delivery, undone, Vec::new());
                    self.unfinished.remember(&delivery, routing);
                    return Err(RouteError::new(cause, error));
                }
            }
        }
        self.unfinished.finished(&delivery);
        Ok(Settlement::new(Disposition::DelayedRetry { due, history, attempts }))
    }
}

fn cause(failure: Option<&Failure>) -> String {
    failure.map_or_else(|| "no attempt was made".to_owned(), Failure::report)
}
