//! A message that is handled after its letter was written: the letter is resolved, or a replay would handle it once more (G6).

use std::time::Duration;

use dlq_core::store::rules::same_bytes;
use dlq_core::store::{Actor, BoxStore, Letters, Maintenance, Mark, Selection};
use dlq_core::{DeadLetter, DeliveredFrom, Delivery, Filter, Status, StoreError};
use tokio::time::sleep;

use super::health::report;
use super::message::ConsumerState;
use super::suspects::death_of;
use crate::backoff::Growing;

/// Number of times that the store is asked before a success is settled all the same.
const TRIES: u32 = 6;
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

impl ConsumerState {
    /// Returns true if the store may hold a letter of this very death: an earlier delivery ended without our knowing how, or
    /// its routing failed. Everything else has no letter, and costs no question.
    #[inline]
    pub(super) fn may_have_letter(&self, delivery: &Delivery) -> bool {
        delivery.deliveries() > 1
            && delivery.delivered_from() != DeliveredFrom::Store
            && self.letters.is_some()
            && (self.gate.has_failed() || !self.suspects.is_explained(delivery))
    }

    /// Resolves the letter of a message that was handled after all.
    ///
    /// Before the broker is told: a process that dies in between has the message run again. After some tries the message is
    /// settled all the same, since it is handled.
    pub(super) async fn resolve(&self, delivery: &Delivery) {
        let Some(store) = &self.letters else { return };
        let mut delay = Growing::new(FIRST_DELAY, LONGEST_DELAY);
        let mut is_stopping = false;
        for left in (0..TRIES).rev() {
            let Err(error) = resolve(store, delivery).await else { return };
            // A stop leaves one more try, at once: the message is handled, and its settlement must not wait for the store.
            if left == 0 || is_stopping {
                tracing::error!(
                    letter = %death_of(delivery).letter,
                    origin = %delivery.origin(),
                    error = report(&error),
                    "cannot resolve the letter of a message that was handled: the store does not answer; if the letter is \
                     pending, mark it as resolved, or a replay runs the handler again"
                );
                return;
            }
            tracing::warn!(
                letter = %death_of(delivery).letter,
                error = report(&error),
                "cannot ask whether a handled message has a letter; retrying"
            );
            is_stopping = self.unless_stopped(sleep(delay.next())).await.is_err();
        }
    }
}

async fn resolve(store: &BoxStore, delivery: &Delivery) -> Result<(), StoreError> {
    let death = death_of(delivery);
    let Some(letter) = store.get(death.letter).await? else { return Ok(()) };
    let statuses = open(delivery.delivered_from());
    let is_its_own = letter.death() == death && same_bytes(&letter.message, delivery.message());
    // A letter of another death, or of other bytes with the same identity, is not this message's to resolve (G2).
    if !is_its_own || !statuses.contains(&letter.state.status) {
        return Ok(());
    }
    let mut filter = Filter::new().with_id(letter.id);
    // The store checks the statuses again, since the letter may have changed since it was read.
    filter.statuses.extend(statuses);
    let Ok(selection) = Selection::matching(filter) else { return Ok(()) };
    let by = Actor::new(delivery.consumer().to_string()).with_note("its message was handled");
    let marked = store.mark(selection, Mark::Resolved, by).await?;
    if marked.changed > 0 {
        told(&letter);
    }
    Ok(())
}

/// The statuses in which something may still run for a letter. A retry record is open to the delivery that was to be
/// replaced by it; to the next one it is past.
fn open(from: DeliveredFrom) -> &'static [Status] {
    match from {
        DeliveredFrom::Main => &[Status::Pending, Status::Replaying, Status::Retrying],
        _ => &[Status::Pending, Status::Replaying],
    }
}

fn told(letter: &DeadLetter) {
    tracing::warn!(
        letter = %letter.id,
        origin = %letter.origin,
        status = letter.state.status.as_str(),
        "a message was handled after its letter had been written; the letter is resolved"
    );
}
