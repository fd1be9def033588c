//! Deliveries that ended in good order: a process that was stopped gave the message back, or cut its run off.
//!
//! The broker counts such a delivery like one whose process died. This process remembers what it gave back; for the next
//! one it is kept beside the crash marks, where the message would be a suspect without it.
//!
//! | the message | what is durable | if the process dies now |
//! |---|---|---|
//! | is given back or cut off by a stop, and that is not counted yet | nothing | it comes again, and may be a suspect: it runs alone, once more than it need |
//! | the same, and counted | so many good ends | it comes again, and they explain as many of its deliveries |
//! | comes again, and the count was read: one more, then as many as before | as many, or one more | it comes again; one more delivery may be explained |
//! | is over | as many | it does not come again; the count is left behind, as a mark may be |

use std::time::Duration;

use dlq_core::{CrashMarks as _, DeliveredFrom, Delivery, Disposition, Settle as _, SettleOnce};
use tokio::time::timeout;

use super::message::{ConsumerState, UNMARKING, Unmark};
use super::report::Outcome;
use super::suspects::{Suspicion, death_of};

impl ConsumerState {
    /// Returns true if `delivery` is a suspect, also by what stopped processes have told of it.
    pub(super) async fn suspicion(&self, delivery: &Delivery) -> Suspicion {
        if let Some(marks) = &self.marks
            && self.counts_stops
            && self.suspects.is_unexplained(delivery)
        {
            let letter = death_of(delivery).letter;
            // Where it is not known, the message is a suspect.
            if let Ok(ends) = marks.explained(letter).await {
                self.suspects.heard_of(letter, ends);
            }
        }
        self.suspects.suspect(delivery)
    }

    /// Tells the next process that `delivery` ended in good order, if it would be a suspect there.
    pub(super) async fn explain(&self, delivery: &Delivery) {
        let Some(marks) = self.marks.as_ref().filter(|_| self.counts_stops) else { return };
        // Where routing has failed, a part of a letter may be durable. A delivery that nobody explains has the next process
        // look for it when the message is handled, or that letter would be pending for good.
        if self.gate.has_failed() {
            return;
        }
        let letter = death_of(delivery).letter;
        let tell = async {
            for _ in 0..self.suspects.untold(delivery) {
                if marks.explain(letter).await.is_err() {
                    return;
                }
            }
        };
        // The time is bounded, since a stop is under way. What is not told costs the message a run alone.
        let _ = timeout(UNMARKING, tell).await;
    }

    /// Forgets the good ends of a message that is over.
    pub(super) async fn forget_good_ends(&self, delivery: &Delivery) {
        let Some(marks) = &self.marks else { return };
        let letter = death_of(delivery).letter;
        if self.suspects.has_heard_of(letter) {
            // An error is swallowed: the message is over, and what stays can only make its replay a suspect later.
            let _ = marks.forget_explained(letter).await;
        }
    }

    /// Returns how a message has ended whose run was cut off by a stop: that is no crash. A letter is given back, since its claim
    /// would count one when its lease ends. Its mark is removed beside that, since time is short.
    pub(super) async fn cut_off(
        &self,
        settle: SettleOnce,
        delivery: &Delivery,
        unmark: Option<Unmark>,
    ) -> Outcome {
        let unmark = async {
            if let Some(unmark) = unmark {
                // The time is bounded, since the deadline has passed. A mark that stays counts as a crash in the next
                // process.
                let _ = timeout(UNMARKING, self.unmark(unmark)).await;
            }
        };
        tokio::join!(self.left_behind(settle, delivery), unmark).0
    }

    async fn left_behind(&self, settle: SettleOnce, delivery: &Delivery) -> Outcome {
        if delivery.delivered_from() == DeliveredFrom::Store {
            let now = Disposition::Deferred { after: Duration::ZERO };
            return match timeout(UNMARKING, settle.settle(now)).await {
                Ok(settled) => self.settled(settled, Outcome::Deferred, delivery),
                Err(_) => Outcome::Unsettled,
            };
        }
        self.suspects.gave_back(delivery);
        // Unsettled, so that it comes again when its lease ends: what it did elsewhere may need as long to end.
        self.explain(delivery).await;
        Outcome::Unsettled
    }
}
