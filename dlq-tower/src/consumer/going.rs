//! A message whose stack runs already when it gets a task of its own. Many of these wait at the same time, for a write to
//! be confirmed, and so what they keep is small.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use dlq_core::{Disposition, Settle as _};

use super::at_once::Settles;
use super::lease::Leased;
use super::message::{ConsumerState, CutOff, InFlight, Running, handle};
use super::report::Fate;

/// Runs the stack to its end, and settles the message.
pub(super) fn go_on(
    shared: Arc<ConsumerState>,
    message: InFlight,
    running: Running,
) -> impl Future<Output = Fate> + Send {
    let InFlight { delivery, mut settle, key, since, place, .. } = message;
    let Running { stack, hand } = running;
    async move {
        let ended = {
            let mut run = pin!(async {
                tokio::select! {
                    biased;
                    ended = stack => Some(ended),
                    () = shared.abort.cancelled() => None,
                }
            });
            if settle.lease().is_none() {
                run.await
            } else {
                // Boxed: most of it is the lease's, and a message without one does not carry that.
                let kept = Box::pin(async {
                    let mut leased = Leased::new(settle, since);
                    let ended = leased.keep(run.as_mut()).await;
                    (ended, leased.into_inner())
                });
                let (ended, leased) = kept.await;
                settle = leased;
                ended
            }
        };
        let Some(ended) = ended else {
            // Boxed: this path is cold, and boxing keeps the hot future small.
            let outcome = Box::pin(shared.cut_off(settle, &delivery, None)).await;
            return Fate { outcome, route_errors: 0 };
        };
        let mut ran = shared.ran(ended, delivery, &hand);
        if let Some(release) = ran.owes {
            // Its run has ended, and what comes now may take as long as a lease.
            ran.turn = None;
            // Boxed: this path is cold, and boxing keeps the hot future small.
            let changed = Box::pin(async {
                let mut leased = Leased::new(settle, since);
                match shared.change_counts(&mut leased, &mut ran, release).await {
                    Ok(()) => Ok((ran, leased.into_inner())),
                    // It has no mark to remove.
                    Err(CutOff) => {
                        Err(shared.cut_off(leased.into_inner(), &ran.delivery, None).await)
                    }
                }
            });
            (ran, settle) = match changed.await {
                Ok(changed) => changed,
                Err(outcome) => return Fate { outcome, route_errors: 0 },
            };
        }
        let (delivery, turn, route_errors) =
            (ran.delivery, ran.turn, u32::from(ran.routing_failed));
        if let (true, Disposition::Deferred { after }) = (key.is_some(), &ran.disposition) {
            // Given back, it would be overtaken by the next of its key. So it waits here, and its line with it.
            let wait = Some(*after);
            // A message that waits holds up nobody who wants to run (G4).
            drop(turn);
            let message =
                InFlight { delivery, settle, ticket: None, key, unread: None, since, place };
            return Box::pin(handle(shared, message, wait, route_errors)).await;
        }
        // There is no mark to remove and no letter to resolve: messages that may have either are left to `handle`.
        let outcome = shared.will_be(&delivery, &ran.disposition);
        let told = settle.settle_boxed(ran.disposition);
        let settles = Settles { told, outcome, delivery, _turn: turn, _key: key, _place: place };
        Fate { route_errors, ..settles.end(shared).await }
    }
}
