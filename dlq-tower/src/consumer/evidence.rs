//! Evidence for operations that send letters to a broker: messages that came back and were handled.
//!
//! A letter that was sent is `sent` until something is heard of its message. Another death is heard by the store itself. A
//! success is told here: best effort, after the message is settled, so that it costs a message that was never dead one
//! comparison.

use std::time::Duration;

use dlq_core::store::{BoxStore, Dispatch as _};
use dlq_core::{Death, DeliveredFrom, Delivery};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::health::report;
use super::suspects::death_of;
use crate::backoff::Growing;

/// Number of successes that wait to be told.
const ROOM: usize = 16_384;
/// Number of successes that are told at once.
const BATCH: usize = 500;
/// Number of times that the store is told.
const TRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// Takes note of messages that were handled after they had been sent back.
#[derive(Debug)]
pub(super) struct Evidence(Sender<Death>);

/// Tells the store of them.
#[derive(Debug)]
pub(super) struct Witness {
    store: BoxStore,
    handled: Receiver<Death>,
}

/// A place for evidence, and who tells `store` of it.
pub(super) fn evidence(store: BoxStore) -> (Evidence, Witness) {
    let (sender, handled) = channel(ROOM);
    (Evidence(sender), Witness { store, handled })
}

impl Evidence {
    /// Notes that `delivery` was handled, if it is a letter that was sent back by a broker.
    #[inline]
    pub(super) fn note(&self, delivery: &Delivery) {
        // What the store handed out itself, it is told of by its claim.
        if delivery.generation() > 0 && delivery.delivered_from() != DeliveredFrom::Store {
            self.send(delivery);
        }
    }

    #[cold]
    fn send(&self, delivery: &Delivery) {
        let death = death_of(delivery);
        // The letter is of the death before this life, and `note` has seen that there was one.
        let death = Death { generation: delivery.generation() - 1, ..death };
        // Waiting for room would let a slow store hold up messages (G4), and a letter that stays `sent` is not lost.
        if let Err(TrySendError::Full(death)) = self.0.try_send(death) {
            tracing::warn!(
                letter = %death.letter,
                "a letter that was sent back was handled, and its store is not told: it stays `sent`"
            );
        }
    }
}

impl Witness {
    /// Runs until `stop` is cancelled, then tells what is left.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            let more = tokio::select! {
                biased;
                more = self.handled.recv_many(&mut batch, BATCH) => more > 0,
                () = stop.cancelled() => false,
            };
            if !more {
                break;
            }
            self.tell(std::mem::take(&mut batch)).await;
        }
        // The run still holds a sender. A closed channel yields what is left and then ends.
        self.handled.close();
        while self.handled.recv_many(&mut batch, BATCH).await > 0 {
            self.tell(std::mem::take(&mut batch)).await;
        }
    }

    async fn tell(&self, batch: Vec<Death>) {
        let mut delay = Growing::new(FIRST_DELAY, LONGEST_DELAY);
        for left in (0..TRIES).rev() {
            match self.store.succeeded(batch.clone()).await {
                Ok(_) => return,
                // The tries are bounded, since the end of the run waits for this.
                Err(error) if left == 0 || !error.is_transient() => {
                    tracing::warn!(
                        letters = batch.len(),
                        error = report(&error),
                        "cannot tell the store of handled letters; they stay `sent`"
                    );
                    return;
                }
                Err(_) => sleep(delay.next()).await,
            }
        }
    }
}
