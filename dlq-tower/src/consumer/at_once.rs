//! Most handlers need not wait: what can be done about a message without waiting is done where it was received, and only
//! what is left gets a task.

use std::future::ready;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlq_core::{Delivery, Disposition, Settle as _, TransportError};

use super::hand::{Ending, Hand};
use super::keys::KeyTurn;
use super::message::{ConsumerState, InFlight, RoomTaken, Running};
use super::report::{Fate, Outcome};
use super::stack::{Repeat, Settling};
use super::suspects::Turn;
use crate::catch_panic::discard;
use crate::stage::Settlement;

/// A handler that keeps the thread for longer had better run beside others.
const BRIEF: Duration = Duration::from_micros(5);
/// Time for which a handler may keep the thread. A longer one is as bad as several of those.
const LONG: Duration = Duration::from_millis(1);
/// Time for which a handler may compute. A longer one does more than compute, and holds up the whole loop.
const BLOCKING: Duration = Duration::from_millis(20);
/// Number of messages that get tasks of their own at once when handlers were not brief.
const APART: u32 = 256;
/// The same after several that were blocking; and after how many brief ones that is forgotten.
const MOST_APART: u32 = 1 << 16;
/// Number of handlers in a row that may keep the thread until then.
const TRIES: u32 = 4;

/// Decides whether the next message may be handled where it was received.
///
/// A handler that computes for long would run on one thread, and keep all others waiting. So it is watched how long
/// they take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Grows with each handler that was not brief, by more than it shrinks with one that was.
    score: u32,
    /// Number of messages that get tasks of their own.
    apart: u32,
    /// Number of messages that did after the last blocking one.
    penalty: u32,
    /// Number of messages that were brief since then.
    calm: u32,
}

impl Pace {
    // One slow handler among eight brief ones keeps the score where it is; more of them raise it.
    const EACH: u32 = 8;

    pub(super) fn is_brief(&mut self) -> bool {
        let is_brief = self.apart == 0;
        self.apart = self.apart.saturating_sub(1);
        is_brief
    }

    /// The next messages had better get tasks.
    pub(super) fn spare(&mut self, messages: u32) {
        self.apart = self.apart.max(messages);
    }

    pub(super) fn took(&mut self, time: Duration) {
        if time <= BRIEF {
            self.score = self.score.saturating_sub(1);
            self.calm += 1;
            if self.calm == MOST_APART {
                (self.penalty, self.calm) = (0, 0);
            }
            return;
        }
        if time > BLOCKING {
            // Brief ones in between do not make up for it.
            self.penalty = (2 * self.penalty).clamp(APART, MOST_APART);
            self.calm = 0;
            return self.spare(self.penalty);
        }
        self.score += if time <= LONG { Self::EACH } else { TRIES / 2 * Self::EACH };
        if self.score >= TRIES * Self::EACH {
            // One more that is not brief, and it goes on so.
            self.score = (TRIES - 1) * Self::EACH;
            self.spare(APART);
        }
    }
}

/// Parts that the next message reuses from the one before, while no other task has a turn.
#[derive(Default)]
pub(super) struct Kept {
    turn: Option<Turn>,
    hand: Option<Arc<Hand>>,
}

/// Progress of a message without waiting. All but the first variant have boxes, so that the first is small.
pub(super) enum Begun {
    /// To the end.
    Ended(Fate, RoomTaken),
    /// Nowhere: it has to wait before it runs.
    Waits(Box<InFlight>),
    /// Its stack runs.
    Runs(Box<(InFlight, Running)>),
    /// The broker is being told.
    Settles(Box<Settles>),
}

pub(super) type Told = std::pin::Pin<Box<dyn Future<Output = Result<(), TransportError>> + Send>>;

/// A message of which the broker is being told.
pub(super) struct Settles {
    pub(super) told: Told,
    pub(super) outcome: Outcome,
    pub(super) delivery: Delivery,
    pub(super) _turn: Option<Turn>,
    pub(super) _key: Option<KeyTurn>,
    pub(super) _place: RoomTaken,
}

impl ConsumerState {
    /// Does what can be done without waiting. `None` if the stack panicked.
    pub(super) fn at_once(
        &self,
        stack: &mut Box<dyn Repeat>,
        message: InFlight,
        kept: &mut Kept,
    ) -> Option<Begun> {
        // The stack runs on the task of the loop here. A panic may end one message, and must not end the run (G9).
        let begun = catch_unwind(AssertUnwindSafe(|| self.begin(&mut **stack, message, kept)));
        begun
            .map_err(|payload| {
                tracing::error!(
                    "a stack panicked outside its panic guard; the message is unsettled"
                );
                // It may hold a permit or a claim still, for a message that is gone.
                let broken = mem::replace(stack, self.program.stack.repeat());
                discard(move || drop(broken));
                // The payload is the user's value, whose destructor may panic in turn.
                discard(move || drop(payload));
            })
            .ok()
    }

    fn begin(&self, stack: &mut dyn Repeat, mut message: InFlight, kept: &mut Kept) -> Begun {
        let is_first = message.key.as_mut().is_none_or(KeyTurn::is_first);
        // Its success would have something to wait for.
        if !is_first || self.may_have_letter(&message.delivery) {
            return Begun::Waits(Box::new(message));
        }
        // There is no turn while a suspect runs, or waits to run alone. What comes after it waits in a task, behind it.
        let Some(own) = kept.turn.take().or_else(|| self.suspects.runs().turn_now()) else {
            return Begun::Waits(Box::new(message));
        };
        let Some(ticket) = message.ticket.take() else { return Begun::Waits(Box::new(message)) };
        // Whoever goes on polls at once, with a waker of its own.
        let mut context = Context::from_waker(Waker::noop());
        let runs = self.suspects.runs();
        let is_ordered = message.key.is_some();
        // No suspect comes here: `begin_some` gives each a task, and the next ones as well.
        let hand = Hand::again(kept.hand.take(), &self.run_loop, ticket, is_ordered, runs);
        message.delivery = message.delivery.with_run_extension(Arc::clone(&hand));
        let disposition = match stack.step(message.delivery.clone(), &mut context) {
            Ok(Ok(settlement))
                if !waits_here(&message, &settlement)
                    && self.owes(settlement.disposition(), &hand).is_none() =>
            {
                settlement.into_disposition()
            }
            ended => {
                let stack = ended.map(|ended| Box::pin(ready(ended)) as Settling);
                let stack = stack.unwrap_or_else(|rest| rest);
                // From here on the turn belongs to the run, which gives it back when its handler has ended or waits (G4).
                hand.keep(own);
                return Begun::Runs(Box::new((message, Running { stack, hand: Ending(hand) })));
            }
        };
        hand.judge(&disposition);
        let outcome = self.will_be(&message.delivery, &disposition);
        let InFlight { delivery, mut settle, key, place, .. } = message;
        if let Some(settled) = settle.settle_now(&disposition) {
            // What the message used is reused by the next one, which saves the allocation and the lock.
            (kept.turn, kept.hand) = (Some(own), Some(hand));
            let outcome = self.settled(settled, outcome, &delivery);
            return Begun::Ended(Fate { outcome, route_errors: 0 }, place);
        }
        let mut told = settle.settle_boxed(disposition);
        match told.as_mut().poll(&mut context) {
            Poll::Ready(settled) => {
                (kept.turn, kept.hand) = (Some(own), Some(hand));
                let outcome = self.settled(settled, outcome, &delivery);
                Begun::Ended(Fate { outcome, route_errors: 0 }, place)
            }
            Poll::Pending => {
                // The line of its key and the room wait for the answer of the broker, as they do in `handle`.
                let (_turn, _key, _place) = (Some(own), key, place);
                Begun::Settles(Box::new(Settles { told, outcome, delivery, _turn, _key, _place }))
            }
        }
    }
}

/// Given back, it would be overtaken by the next of its key.
fn waits_here(message: &InFlight, settlement: &Settlement) -> bool {
    message.key.is_some() && matches!(settlement.disposition(), Disposition::Deferred { .. })
}

impl Settles {
    /// Waits until the broker has answered.
    pub(super) async fn end(mut self, shared: Arc<ConsumerState>) -> Fate {
        let settled = tokio::select! {
            biased;
            settled = &mut self.told => settled,
            () = shared.abort.cancelled() => return Fate::UNSETTLED,
        };
        let outcome = shared.settled(settled, self.outcome, &self.delivery);
        if outcome == Outcome::Deferred && shared.stop.is_cancelled() {
            // Boxed: this path is cold, and boxing keeps the hot future small.
            Box::pin(shared.explain(&self.delivery)).await;
        }
        Fate { outcome, route_errors: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief_of(pace: &mut Pace, count: u32, time: Duration) -> u32 {
        (0..count).map(|_| u32::from(pace.is_brief().then(|| pace.took(time)).is_some())).sum()
    }

    #[test]
    fn handlers_that_compute_get_tasks_of_their_own() {
        let mut pace = Pace::default();
        assert_eq!(brief_of(&mut pace, 1_000, BRIEF), 1_000);
        assert!(brief_of(&mut pace, 1_000, 2 * BRIEF) < 10);
        let mut pace = Pace::default();
        assert_eq!(brief_of(&mut pace, 200, 2 * LONG), 2, "two that are long are enough");
    }

    #[test]
    fn one_that_blocks_is_kept_apart_whatever_comes_between() {
        let mut pace = Pace::default();
        let blocked = |pace: &mut Pace| {
            brief_of(pace, 20, BRIEF);
            brief_of(pace, 1, 2 * BLOCKING)
        };
        let held_up: u32 = (0..1_000).map(|_| blocked(&mut pace)).sum();
        assert!((1..10).contains(&held_up), "{held_up}");
        brief_of(&mut pace, 2 * MOST_APART, BRIEF);
        assert_eq!((pace.penalty, brief_of(&mut pace, 500, BRIEF)), (0, 500), "it is forgotten");
    }

    #[test]
    fn one_that_was_held_up_says_nothing() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            assert_eq!(brief_of(&mut pace, 1, 5 * BRIEF), 1);
            assert_eq!(brief_of(&mut pace, 20, BRIEF), 20);
        }
    }
}
