//! Counts that a message whose run has ended leaves at its idempotency key, and what becomes of them.

use dlq_core::idempotency::Release;
use dlq_core::{Disposition, Reason};
use std::time::Duration;
use tokio::time::sleep;

use super::hand::Hand;
use super::health::report;
use super::lease::Leased;
use super::message::{ConsumerState, CutOff, Ran};

/// Time for which a dead message is given back when the counts of its key could not start over.
const UNCOUNTED: Duration = Duration::from_secs(1);

impl ConsumerState {
    /// Returns what the idempotency key of an ended message still has to be told, if anything: that it has died, and
    /// may have left counts, or that attempts of its run were an outage's. The counts of a permanent failure have
    /// started over with its release, if the layer saw it and the store has answered; at a first run there is little to
    /// leave.
    #[inline]
    pub(super) fn owes(&self, disposition: &Disposition, hand: &Hand) -> Option<Release> {
        if !self.has_keys {
            return None;
        }
        match disposition {
            Disposition::Dead(letter) => {
                let leaves =
                    letter.reason != Reason::Permanent || letter.attempts > 1 || letter.crashes > 0;
                leaves.then_some(Release::Dead)
            }
            Disposition::Deferred { .. } => {
                Some(hand.forgiven()).filter(|times| *times > 0).map(Release::Forgiven)
            }
            _ => None,
        }
    }

    /// Changes the counts of a message's idempotency key as `release` says.
    ///
    /// Those of a dead message start over after its letter is durable, or it might be run again; and before the broker is
    /// told, or a process that dies in between would leave the counts to the next message with the key (G3). The letter of
    /// what came from a store is its row, and durable only later. Where it cannot be done the message is to come again: what
    /// crashed too often dies unrun, any other has one more run. Attempts of an outage are taken back before the message is
    /// given back (G10); where that cannot be done they count. An error when it was cut off.
    pub(super) async fn change_counts(
        &self,
        settle: &mut Leased,
        ran: &mut Ran,
        release: Release,
    ) -> Result<(), CutOff> {
        let Ran { delivery, disposition, .. } = ran;
        let delivery = &*delivery;
        let crashed = matches!(&*disposition, Disposition::Dead(letter) if letter.reason == Reason::MaxCrashes);
        let over = async {
            for keys in self.program.key_janitors_for(delivery).iter().chain(&self.key_janitors) {
                // A claim of its own that was lost, with a process or with the answer of the store, ends with its lease.
                let mut waited = false;
                // There are three tries at most, so that the message does not stay here as long as the store is silent.
                for is_last in [false, false, true] {
                    let after = match keys.release(delivery, release).await {
                        Ok(None) => break,
                        // Another message is at the key, and goes on with the attempts.
                        Ok(Some(_)) if waited && !crashed => break,
                        Ok(Some(remaining)) => {
                            waited = true;
                            remaining
                        }
                        Err(error) => {
                            // What is at the key next may be this very claim.
                            waited = false;
                            tracing::warn!(
                                origin = %delivery.origin(),
                                ?release,
                                error = report(&error),
                                "the counts of a message's idempotency key could not be changed; it is not settled yet"
                            );
                            UNCOUNTED
                        }
                    };
                    if is_last || self.unless_stopped(sleep(after)).await.is_err() {
                        return Some(after);
                    }
                }
            }
            None
        };
        tokio::select! {
            biased;
            after = settle.keep(over) => {
                // Nothing is settled yet, so that the message comes again (G1). If it dies again, its letter is the same (G2).
                if let (Some(after), Release::Dead) = (after, release) {
                    *disposition = Disposition::Deferred { after };
                }
                Ok(())
            }
            () = self.abort.cancelled() => Err(CutOff),
        }
    }
}
