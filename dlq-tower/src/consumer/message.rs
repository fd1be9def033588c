//! One message in hand, from its receipt to its settlement. See the states in the [module docs](super).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::{
    BoxCrashMarks, CrashMarks, Delivery, Disposition, Lane, LetterId, SettleOnce, TransportError,
};
use metrics::{Counter, Gauge};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::hand::{HAND, Hand};
use super::health::report;
use super::keys::KeyTurn;
use super::lease::Leased;
use super::outage::Ticket;
use super::probation::{Probation, Suspicion, Turn};
use super::report::{Fate, Outcome};
use super::stack::{Program, Settling};
use crate::retry::{self, HoldSlots};
use crate::stage::RouteError;

/// How long a message is given back for when its crash mark could not be written.
const UNMARKED: Duration = Duration::from_secs(5);
/// How long the removal of a mark may take when the run was cut off.
const UNMARKING: Duration = Duration::from_millis(500);

/// What all messages of one run share.
pub(super) struct Shared {
    pub(super) program: Program,
    pub(super) gate: Arc<Gate>,
    pub(super) probation: Probation,
    pub(super) marks: Option<BoxCrashMarks>,
    /// How many may wait for a retry in the process, so that sleepers never fill what is in hand (G4).
    pub(super) slots: HoldSlots,
    /// What has not started or waits is given back.
    pub(super) stop: CancellationToken,
    /// What runs is cut off.
    pub(super) abort: CancellationToken,
    pub(super) settle_errors: Counter,
}

/// A message in hand.
pub(super) struct InHand {
    pub(super) delivery: Delivery,
    pub(super) settle: SettleOnce,
    /// Until it runs.
    pub(super) ticket: Option<Ticket>,
    /// Its place in the line of its key; its line waits for it, however long it takes.
    pub(super) key: Option<KeyTurn>,
    /// When it was received.
    pub(super) since: Instant,
    pub(super) place: Place,
}

/// What a message takes while it is in hand. Given back last, so that what is in hand is bounded.
pub(super) struct Place {
    pub(super) room: OwnedSemaphorePermit,
    pub(super) _counted: Counted,
}

/// A stack that has begun.
pub(super) struct Running {
    pub(super) stack: Settling,
    pub(super) hand: Arc<Hand>,
    pub(super) turn: Turn,
}

/// Counts a message as in hand while it lives.
pub(super) struct Counted(Gauge);

impl Counted {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Why something was not done: the consumer stops.
struct Stopping;

/// A run that ended.
struct Ran {
    disposition: Disposition,
    /// The delivery to go on with, when it goes on here.
    delivery: Delivery,
    routing_failed: bool,
    mark: Option<LetterId>,
}

/// Handles a message and settles it; from where it is, when its stack runs already.
pub(super) async fn handle(
    shared: Arc<Shared>,
    message: InHand,
    mut running: Option<Running>,
) -> Fate {
    let InHand { mut delivery, settle, mut ticket, mut key, since, place: _place } = message;
    let shared = &*shared;
    let mut settle = Leased::new(settle, since);
    let mut route_errors = 0;

    if let Some(key) = &mut key
        && !key.is_first()
    {
        // What waits in line probes nothing, and the one before it may be waiting for leave to probe.
        ticket = None;
        if settle.keep(shared.unless_stopped(key.first())).await.is_err() {
            return shared.give_back(settle, &delivery, route_errors).await;
        }
    }
    loop {
        // Pinned where they are: futures of this size are not worth moving.
        let (turn, ran) = match running.take() {
            Some(Running { stack, hand, turn }) => {
                let run = pin!(shared.run_on(delivery.clone(), stack, hand, None));
                (turn, settle.keep(run).await)
            }
            None => {
                let begun = async {
                    let ticket = match ticket.take() {
                        Some(ticket) => ticket,
                        None => {
                            shared.gate.admit().await;
                            shared.gate.ticket()
                        }
                    };
                    let suspicion = shared.probation.suspect(&delivery);
                    (ticket, suspicion, shared.probation.turn(suspicion).await)
                };
                let begun = {
                    let begun = pin!(shared.unless_stopped(begun));
                    settle.keep(begun).await
                };
                let Ok((admitted, suspicion, turn)) = begun else {
                    return shared.give_back(settle, &delivery, route_errors).await;
                };
                let run = pin!(shared.run(delivery.clone(), admitted, suspicion, key.is_some()));
                (turn, settle.keep(run).await)
            }
        };
        let Some(ran) = ran else {
            return Fate { outcome: Outcome::Unsettled, route_errors };
        };
        route_errors += u32::from(ran.routing_failed);
        if let (Some(_), Disposition::Deferred { after }) = (&key, &ran.disposition) {
            // Given back, it would be overtaken by the next of its key. So it waits here, and its line with it.
            let after = *after;
            shared.unmark(ran.mark).await;
            drop(turn);
            delivery = ran.delivery;
            if settle.keep(shared.unless_stopped(sleep(after))).await.is_err() {
                return shared.give_back(settle, &delivery, route_errors).await;
            }
            continue;
        }
        let outcome = shared.settle(settle, &delivery, ran.disposition).await;
        // After the settlement: a process that dies in between has not handled the message.
        shared.unmark(ran.mark).await;
        return Fate { outcome, route_errors };
    }
}

impl Shared {
    /// Does `work`, unless the consumer stops first.
    async fn unless_stopped<F: Future>(&self, work: F) -> Result<F::Output, Stopping> {
        // The stop first: what has not started when it comes is not started.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Stopping),
            output = work => Ok(output),
        }
    }

    /// Runs the stack; `None` when it was cut off.
    async fn run(
        &self,
        mut delivery: Delivery,
        ticket: Ticket,
        suspicion: Suspicion,
        ordered: bool,
    ) -> Option<Ran> {
        let mut mark = None;
        if let (Suspicion::Marked(letter), Some(marks)) = (suspicion, &self.marks) {
            match marks.begin(letter).await {
                Ok(crashes) => {
                    mark = Some(letter);
                    // What a store counts are claims that were lost, while the letter ran or waited to run.
                    let known = if delivery.lane() == Lane::Store { 0 } else { delivery.crashes() };
                    let crashes = crashes.max(known);
                    delivery = delivery.with_crashes(crashes);
                }
                Err(error) => {
                    tracing::error!(
                        origin = %delivery.origin(),
                        error = report(&error),
                        "a crash mark could not be written; the suspect is not run"
                    );
                    let disposition = Disposition::Deferred { after: UNMARKED };
                    return Some(Ran { disposition, delivery, routing_failed: false, mark });
                }
            }
        }
        let hand = Hand::new(ticket, ordered);
        let stack = self.program.stack.run(delivery.clone());
        self.run_on(delivery, stack, hand, mark).await
    }

    /// Runs a stack to its end; `None` when it was cut off.
    async fn run_on(
        &self,
        delivery: Delivery,
        stack: Settling,
        hand: Arc<Hand>,
        mark: Option<LetterId>,
    ) -> Option<Ran> {
        let stack = HAND.scope(Arc::clone(&hand), stack);
        let stack = retry::until_within(self.stop.clone(), self.slots.clone(), stack);
        let result = tokio::select! {
            biased;
            result = stack => result,
            () = self.abort.cancelled() => {
                // It was cut off, and did not crash.
                let _ = timeout(UNMARKING, self.unmark(mark)).await;
                return None;
            }
        };
        let routing_failed = result.is_err();
        let disposition = match result {
            Ok(settlement) => {
                let disposition = settlement.into_disposition();
                hand.judge(&disposition);
                disposition
            }
            Err(error) => Disposition::Deferred { after: self.routing_failed(&delivery, &error) },
        };
        Some(Ran { disposition, delivery: hand.continued(delivery), routing_failed, mark })
    }

    /// Nothing may be acknowledged. Says so, and slows down.
    fn routing_failed(&self, delivery: &Delivery, error: &RouteError) -> Duration {
        let why = report(error.store_error());
        let after = self.gate.routing_failed(why.clone());
        tracing::error!(
            origin = %delivery.origin(),
            failure = error.cause(),
            error = why,
            retry_in = ?after,
            "a message failed, and its dead letter could not be written: nothing is acknowledged"
        );
        after
    }

    /// Tells the broker.
    async fn settle(
        &self,
        settle: Leased,
        delivery: &Delivery,
        disposition: Disposition,
    ) -> Outcome {
        let outcome = self.will_be(&disposition);
        let settled = tokio::select! {
            biased;
            settled = settle.settle(disposition) => settled,
            () = self.abort.cancelled() => return Outcome::Unsettled,
        };
        self.settled(settled, outcome, delivery)
    }

    /// How a message is ended, unless the broker does not confirm it.
    pub(super) fn will_be(&self, disposition: &Disposition) -> Outcome {
        let outcome = Outcome::of(disposition);
        if matches!(outcome, Outcome::Dead | Outcome::Retried) {
            self.gate.routing_works();
        }
        outcome
    }

    /// How a message was ended.
    pub(super) fn settled(
        &self,
        settled: Result<(), TransportError>,
        outcome: Outcome,
        delivery: &Delivery,
    ) -> Outcome {
        match settled {
            Ok(()) => {
                if outcome == Outcome::Deferred {
                    self.probation.gave_back(delivery);
                }
                outcome
            }
            Err(error) => {
                self.settle_errors.increment(1);
                tracing::error!(
                    origin = %delivery.origin(),
                    ?outcome,
                    error = report(&error),
                    "a message could not be settled: the broker will hand it out again"
                );
                Outcome::Unsettled
            }
        }
    }

    /// Gives a message back uncounted, at once.
    async fn give_back(&self, settle: Leased, delivery: &Delivery, route_errors: u32) -> Fate {
        let now = Disposition::Deferred { after: Duration::ZERO };
        Fate { outcome: self.settle(settle, delivery, now).await, route_errors }
    }

    async fn unmark(&self, mark: Option<LetterId>) {
        let (Some(letter), Some(marks)) = (mark, &self.marks) else { return };
        if let Err(error) = marks.end(letter).await {
            tracing::error!(
                %letter,
                error = report(&error),
                "a crash mark could not be removed: it will count as a crash"
            );
        }
    }
}
