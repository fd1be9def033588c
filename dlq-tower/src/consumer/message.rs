//! A message in flight, from its receipt to its settlement. See the states in the [module docs](super).

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::idempotency::Release;
use dlq_core::store::BoxStore;
use dlq_core::{
    BoxCrashMarks, CrashMarks, Death, DeliveredFrom, Delivery, Disposition, Failure, SettleOnce,
    SharedClock, StoreError, TransportError,
};
use metrics::{Counter, Gauge};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::evidence::Evidence;
use super::gate::Gate;
use super::hand::{Conviction, Ending, Hand};
use super::health::report;
use super::keys::KeyTurn;
use super::lease::{Leased, Lost};
use super::outage::Ticket;
use super::report::{Fate, Outcome};
use super::stack::{Ended, Program, Settling};
use super::suspect::{NotRun, Suspect};
use super::suspects::{Owed, Suspects, Suspicion, Turn, death_of};
use crate::idempotency::KeyJanitor;
use crate::retry::RunLoop;
use crate::stage::RouteError;

/// Time for which a message is given back when its crash mark could not be written.
pub(super) const UNMARKED: Duration = Duration::from_secs(5);
/// Time limit for removing a mark when the run was cut off.
pub(super) const UNMARKING: Duration = Duration::from_millis(500);

/// State that all messages of one run share.
pub(super) struct ConsumerState {
    pub(super) program: Program,
    /// Keepers of the idempotency keys of a stack that was composed by hand.
    pub(super) key_janitors: Vec<KeyJanitor>,
    /// True if any message has an idempotency key.
    pub(super) has_keys: bool,
    pub(super) gate: Arc<Gate>,
    pub(super) suspects: Suspects,
    pub(super) marks: Option<BoxCrashMarks>,
    /// The store in which letters of handled messages are looked for.
    pub(super) letters: Option<BoxStore>,
    /// The place for evidence that letters which were sent back were handled.
    pub(super) evidence: Option<Evidence>,
    /// True if the source counts deliveries that an orderly stop ended.
    pub(super) counts_stops: bool,
    /// The stop, and slots for messages that wait for a retry in the process, so that sleepers never fill the room (G4).
    pub(super) run_loop: Arc<RunLoop>,
    /// Signal to give back messages that have not started or wait.
    pub(super) stop: CancellationToken,
    /// Signal to cut off runs.
    pub(super) abort: CancellationToken,
    pub(super) settle_errors: Counter,
    pub(super) clock: SharedClock,
}

/// A message in flight.
pub(super) struct InFlight {
    pub(super) delivery: Delivery,
    pub(super) settle: SettleOnce,
    /// Until it runs.
    pub(super) ticket: Option<Ticket>,
    /// Its place in the line of its key; its line waits for it, however long it takes.
    pub(super) key: Option<KeyTurn>,
    /// The panic of its order key: it is in no line, and fails of that unrun.
    pub(super) unread: Option<Box<Failure>>,
    /// When it was received.
    pub(super) since: Instant,
    pub(super) place: RoomTaken,
}

/// Room that a message takes while it is in flight. Given back last, so that the number in flight is bounded.
pub(super) struct RoomTaken {
    pub(super) room: OwnedSemaphorePermit,
    pub(super) _counted: Counted,
}

/// A stack that has begun.
pub(super) struct Running {
    pub(super) stack: Settling,
    pub(super) hand: Ending,
}

/// Counts a message as in flight while it lives.
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

/// Error that something was not done because the consumer stops.
pub(super) struct Stopping;

/// Error that something was not done because the deadline of the stop has passed.
pub(super) struct CutOff;

/// A run that ended.
pub(super) struct Ran {
    pub(super) disposition: Disposition,
    /// The delivery to go on with, when it goes on here.
    pub(super) delivery: Delivery,
    /// True if the run began: false for a suspect whose mark could not be written.
    pub(super) has_begun: bool,
    pub(super) routing_failed: bool,
    /// Release that its idempotency key still has to be told.
    pub(super) owes: Option<Release>,
    /// The right to run, until it is settled; none where it was given back before.
    pub(super) turn: Option<Turn>,
    pub(super) marked: Marked,
}

/// The crash mark that stands for a run, if one does.
#[derive(Clone, Copy, Default)]
pub(super) struct Marked {
    death: Option<Death>,
    /// Marks of earlier runs. They stay where the message is not over with this one: else what fails first and kills the
    /// process at a later attempt would be found to have crashed once, for ever (G3).
    earlier: u32,
    /// Evidence if the message was given up for its crashes, and so not run. Its marks say that it must not run, and
    /// stay until it is settled: otherwise it would run again whenever its letter cannot be written (G3).
    convicted: Option<Conviction>,
}

/// A run that has ended, whose mark is to be removed.
#[derive(Clone, Copy)]
pub(super) struct Unmark {
    pub(super) death: Death,
    /// Number of marks that it leaves.
    pub(super) left: u32,
}

/// Handles a message, after a wait that it has begun to spend here, and settles it.
pub(super) async fn handle(
    shared: Arc<ConsumerState>,
    message: InFlight,
    mut wait: Option<Duration>,
    mut route_errors: u32,
) -> Fate {
    let InFlight { mut delivery, settle, mut ticket, mut key, unread, since, place: _place } =
        message;
    let shared = &shared;
    let mut settle = Leased::new(settle, since);
    // What came with the message; a run may find out more, for itself.
    let known = delivery.crashes();
    // What has run and goes on here keeps its place also when it is lost: what comes again is behind those behind it (G5).
    let mut has_run = wait.is_some();

    if let Some(key) = &mut key
        && !key.is_first()
    {
        // What waits in line probes nothing, and the one before it may be waiting for leave to probe.
        ticket = None;
        // Kept to the end even when it is lost: those behind it wait for those before it.
        if settle.keep(shared.unless_stopped(key.first())).await.is_err() {
            return shared.give_back(settle, &delivery, route_errors).await;
        }
    }
    // Each round is one run. Only a deferred message with an order key has more than one.
    loop {
        if let Some(after) = wait.take() {
            match settle.wait_unless(has_run, shared.unless_stopped(sleep(after))).await {
                Ok(Ok(())) => {}
                ended => return shared.not_run(ended, settle, &delivery, route_errors).await,
            }
        }
        let begun = async {
            // The ticket of the fetch is for a run that begins at once. Later on an outage may have begun,
            // so that the gate is asked.
            let ticket = match ticket.take() {
                Some(ticket) => ticket,
                None => {
                    shared.gate.admit().await;
                    shared.gate.ticket()
                }
            };
            let suspicion = shared.suspicion(&delivery).await;
            // The turn comes last: whoever has one, or waits for one alone, would hold up others while
            // the gate is closed (G4).
            (ticket, suspicion, shared.suspects.runs().turn(suspicion).await)
        };
        // Pinned where they are: futures of this size are not worth moving.
        let begun = {
            let begun = pin!(shared.unless_stopped(begun));
            settle.wait_unless(has_run, begun).await
        };
        let (admitted, suspicion, turn) = match begun {
            Ok(Ok(begun)) => begun,
            ended => return shared.not_run(ended, settle, &delivery, route_errors).await,
        };
        let ran = {
            let begun = (admitted, suspicion, turn);
            let unread = unread.clone();
            let run = pin!(shared.run(delivery.clone(), begun, key.is_some(), unread));
            settle.keep(run).await
        };
        let mut ran = match ran {
            Ok(ran) => ran,
            // The broker is told nothing: the message belongs to whoever has it now.
            Err(Left::Elsewhere) => return Fate { outcome: Outcome::Unsettled, route_errors },
            Err(Left::CutOff(unmark)) => {
                // Boxed: this path is cold, and boxing keeps the hot future small.
                let ended = Box::pin(shared.cut_off(settle.into_inner(), &delivery, unmark));
                return Fate { outcome: ended.await, route_errors };
            }
        };
        has_run |= ran.has_begun;
        route_errors += u32::from(ran.routing_failed);
        if let Some(release) = ran.owes {
            // Its run has ended, and what comes now may take as long as a lease.
            ran.turn = None;
            // Boxed: this path is cold, and boxing keeps the hot future small.
            if Box::pin(shared.change_counts(&mut settle, &mut ran, release)).await.is_err() {
                // The stop has cut the message off, and it has not crashed: the next process is told so (G3).
                let delivery = &ran.delivery;
                let unmark = shared.refuted(ran.marked, delivery, Outcome::Unsettled, false);
                let ended = Box::pin(shared.cut_off(settle.into_inner(), delivery, unmark));
                return Fate { outcome: ended.await, route_errors };
            }
        }
        if let (Some(_), Disposition::Deferred { after }) = (&key, &ran.disposition) {
            // Given back, it would be overtaken by the next of its key. So it waits here, and its line with it.
            wait = Some(*after);
            let unmark = shared.refuted(ran.marked, &ran.delivery, Outcome::Deferred, false);
            // The run is over and the wait may be long: a process that dies meanwhile was not killed by this message (G3).
            if let Some(unmark) = unmark {
                settle.keep(Box::pin(shared.unmark(unmark))).await;
            }
            delivery = ran.delivery.with_crashes(known);
            continue;
        }
        let wanted = Outcome::of(&ran.disposition);
        // A duplicate's letter does no harm: its replay is a duplicate, too.
        let is_success = matches!(ran.disposition, Disposition::Succeeded);
        if is_success && shared.may_have_letter(&delivery) {
            // Boxed: this path is cold, and boxing keeps the hot future small.
            settle.keep(Box::pin(shared.resolve(&delivery))).await;
        }
        let outcome = shared.settle(settle, &delivery, ran.disposition).await;
        // After the settlement: a process that dies in between has not handled the message.
        let unmark = shared.refuted(ran.marked, &ran.delivery, wanted, outcome == wanted);
        if let Some(unmark) = unmark {
            shared.unmark(unmark).await;
        }
        // Good ends are kept until the broker has confirmed: without them a message that comes again would be a suspect.
        if outcome.is_over() && outcome == wanted {
            shared.forget_good_ends(&delivery).await;
        }
        return Fate { outcome, route_errors };
    }
}

/// The reason why a run did not come to its end.
enum Left {
    /// Another process has the message.
    Elsewhere,
    /// The deadline of the stop has passed. The mark that is to be removed, if one stands.
    CutOff(Option<Unmark>),
}

/// Waits until a suspect is not to go on.
async fn not_run(hand: &Hand) -> NotRun {
    match hand.suspect() {
        Some(suspect) => suspect.not_run().await,
        None => pending().await,
    }
}

impl Ran {
    /// A suspect that was not run, for it could not be marked.
    fn put_off(delivery: Delivery, turn: Option<Turn>) -> Self {
        Self {
            disposition: Disposition::Deferred { after: UNMARKED },
            delivery,
            has_begun: false,
            routing_failed: false,
            owes: None,
            turn,
            marked: Marked::default(),
        }
    }
}

impl ConsumerState {
    /// Does `work`, unless the consumer stops first.
    pub(super) async fn unless_stopped<F: Future>(&self, work: F) -> Result<F::Output, Stopping> {
        // The stop first: what has not started when it comes is not started.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Stopping),
            output = work => Ok(output),
        }
    }

    /// Runs the stack to its end.
    async fn run(
        self: &Arc<Self>,
        mut delivery: Delivery,
        (ticket, suspicion, turn): (Ticket, Suspicion, Turn),
        ordered: bool,
        unread: Option<Box<Failure>>,
    ) -> Result<Ran, Left> {
        let mut marked = Marked::default();
        let suspect =
            (suspicion != Suspicion::None).then(|| Suspect::new(self, suspicion, &delivery));
        if let Suspicion::Convicted(death, crashes) = suspicion {
            // Its mark is there: this is no run, and another mark would say that it was one. It is not acquitted where
            // something gives it back before it can be refused.
            (marked.death, marked.convicted) = (Some(death), Some(Conviction::Delivery));
            delivery = delivery.with_crashes(crashes);
        }
        if let (Suspicion::Marked(death), Some(suspect)) = (suspicion, &suspect)
            && suspect.is_marked()
        {
            // The mark is durable before the handler begins, so that a process which dies from here on is counted (G3).
            match suspect.begin(death).await {
                Ok(begun) => {
                    let known = delivery.crashes();
                    marked.death = Some(death);
                    let crashes = self.suspects.crashes(death, begun);
                    // A store counts lost claims, also of letters that only waited to run. There the marks decide.
                    let is_stored = delivery.delivered_from() == DeliveredFrom::Store;
                    delivery =
                        delivery.with_crashes(if is_stored { crashes } else { crashes.max(known) });
                }
                Err(error) => {
                    return match suspect.refused(&error) {
                        NotRun::Lost => Err(Left::Elsewhere),
                        NotRun::Unmarked => Ok(Ran::put_off(delivery, Some(turn))),
                    };
                }
            }
        }
        let runs = self.suspects.runs();
        let hand =
            Hand::new(&self.run_loop, ticket, (ordered, unread), runs, (Some(turn), suspect));
        let hand = Ending(hand);
        // The stages inside find this run through the extension, by `hand::of`.
        let delivery = delivery.with_run_extension(Arc::clone(&hand.0));
        let stack = self.program.stack.run(delivery.clone());
        let result = tokio::select! {
            biased;
            // The stack is polled first: a run that ends at the moment of the abort has ended, and is settled.
            result = stack => Some(result),
            () = self.abort.cancelled() => None,
            // A suspect that waited inside the stack belongs to another process by now, or could not be marked again.
            why = not_run(&hand) => {
                return match why {
                    NotRun::Lost => Err(Left::Elsewhere),
                    NotRun::Unmarked => Ok(Ran::put_off(delivery, None)),
                };
            }
        };
        marked.convicted = hand.convicted().or(marked.convicted);
        marked.earlier = hand.suspect().map_or(0, Suspect::earlier);
        let Some(result) = result else {
            // It did not crash; but what was given up for its crashes is not acquitted by that.
            let unmark = self.refuted(marked, &delivery, Outcome::Unsettled, false);
            return Err(Left::CutOff(unmark));
        };
        Ok(Ran { marked, ..self.ran(result, delivery, &hand) })
    }

    /// Marks that a run begins. How many marks there are of earlier ones that did not end.
    pub(super) async fn mark(&self, death: Death) -> Result<u32, StoreError> {
        let Some(marks) = &self.marks else { return Ok(0) };
        let begun = marks.begin(death.letter).await?;
        // Marks that this process could not remove are of runs that did end. They are no crashes.
        Ok(self.suspects.unended(death.letter, begun))
    }

    /// Returns the end of a run of `delivery`.
    pub(super) fn ran(&self, result: Ended, delivery: Delivery, hand: &Hand) -> Ran {
        let routing_failed = result.is_err();
        let disposition = match result {
            Ok(settlement) => {
                let disposition = settlement.into_disposition();
                hand.judge(&disposition);
                disposition
            }
            // Nothing is acknowledged: until its record is durable, the message stays with the broker (G1).
            Err(error) => Disposition::Deferred { after: self.routing_failed(&delivery, &error) },
        };
        let ((delivery, turn), marked) = (hand.continued(delivery), Marked::default());
        let owes = self.owes(&disposition, hand);
        Ran { disposition, delivery, has_begun: true, routing_failed, owes, turn, marked }
    }

    /// Nothing may be acknowledged. Says so, and slows down.
    fn routing_failed(&self, delivery: &Delivery, error: &RouteError) -> Duration {
        let why = report(error.store_error());
        // A letter that is refused holds up its own message only. A sink that is down holds up all, since all would fail (G4).
        let after = if error.is_refusal() {
            self.gate.letter_refused(death_of(delivery), delivery.origin(), why.clone())
        } else {
            self.gate.routing_failed(why.clone())
        };
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
        let outcome = self.will_be(delivery, &disposition);
        let settled = tokio::select! {
            biased;
            settled = settle.settle(disposition) => settled,
            // Whether the broker has heard is not known. If it has not, the message comes again.
            () = self.abort.cancelled() => return Outcome::Unsettled,
        };
        let outcome = self.settled(settled, outcome, delivery);
        // The next delivery goes to another process, which has to know that this one did not crash (G3).
        if outcome == Outcome::Deferred && self.stop.is_cancelled() {
            self.explain(delivery).await;
        }
        outcome
    }

    /// Returns the end of a message, unless the broker does not confirm it.
    pub(super) fn will_be(&self, delivery: &Delivery, disposition: &Disposition) -> Outcome {
        let outcome = Outcome::of(disposition);
        // A record is durable by now, whatever the broker will answer. That of a letter from the store is not: see `settled`.
        if outcome != Outcome::Deferred && delivery.delivered_from() != DeliveredFrom::Store {
            self.gate.message_over(|| death_of(delivery), outcome.is_recorded());
        }
        outcome
    }

    /// Returns the end of a message.
    pub(super) fn settled(
        &self,
        settled: Result<(), TransportError>,
        outcome: Outcome,
        delivery: &Delivery,
    ) -> Outcome {
        match settled {
            Ok(()) => {
                // The broker counts this delivery all the same. The count alone must not make a suspect of the message (G3).
                if outcome == Outcome::Deferred {
                    self.suspects.gave_back(delivery);
                }
                // The success is noted only when it is confirmed: until then the message may come again, and fail.
                if outcome == Outcome::Handled
                    && let Some(evidence) = &self.evidence
                {
                    evidence.note(delivery);
                }
                // The record of a letter is its row, which the settlement has written.
                if outcome != Outcome::Deferred && delivery.delivered_from() == DeliveredFrom::Store
                {
                    self.gate.message_over(|| death_of(delivery), outcome.is_recorded());
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
                // There is no second try, since the handle is used up. The message comes again, and what
                // was written is known (G2).
                Outcome::Unsettled
            }
        }
    }

    /// Ends a message that is not run, since its waiting has ended so: what is lost is left to whoever has it now.
    async fn not_run<T>(
        &self,
        ended: Result<Result<T, Stopping>, Lost>,
        settle: Leased,
        delivery: &Delivery,
        route_errors: u32,
    ) -> Fate {
        match ended {
            Ok(_) => {
                let death = death_of(delivery);
                if let Some(Owed { left, .. }) = self.suspects.owed(death.letter) {
                    // Who has the message next does not know of it. Boxed: this path is cold, and boxing keeps the
                    // hot future small.
                    let unmark = Unmark { death, left };
                    let _ = Box::pin(timeout(UNMARKING, self.unmark(unmark))).await;
                }
                self.give_back(settle, delivery, route_errors).await
            }
            Err(Lost) => Fate { outcome: Outcome::Unsettled, route_errors },
        }
    }

    /// Gives a message back uncounted, at once.
    async fn give_back(&self, settle: Leased, delivery: &Delivery, route_errors: u32) -> Fate {
        let now = Disposition::Deferred { after: Duration::ZERO };
        Fate { outcome: self.settle(settle, delivery, now).await, route_errors }
    }

    /// Returns the marks of an ended run to remove, if nothing speaks for them any more. For messages that were given
    /// up for their crashes it matters whether the broker has confirmed.
    pub(super) fn refuted(
        &self,
        marked: Marked,
        delivery: &Delivery,
        outcome: Outcome,
        is_confirmed: bool,
    ) -> Option<Unmark> {
        let death = marked.death?;
        let is_over = outcome == Outcome::Dead && is_confirmed;
        let stays = marked.convicted.filter(|_| !is_over);
        // Its marks are to stay, so that none of them is owed to the store any more.
        if stays.is_some() {
            self.suspects.paid(death.letter);
        }
        self.suspects.convicted(death, stays.map(|by| (delivery.crashes(), by)));
        // What is over leaves no mark. What comes again has crashed as often as before this run.
        let left = match outcome {
            Outcome::Handled | Outcome::Dead | Outcome::Retried => 0,
            Outcome::Deferred | Outcome::Unsettled => marked.earlier,
        };
        stays.is_none().then_some(Unmark { death, left })
    }

    /// Removes the mark of a run that has ended. Where that cannot be done, or is cut off, the next one does.
    pub(super) async fn unmark(&self, Unmark { death, left }: Unmark) {
        let Some(marks) = &self.marks else { return };
        // The debt is noted before the store is asked: callers bound this future, and may drop it before the answer.
        self.suspects.owes(death.letter, left);
        match marks.end(death.letter, left).await {
            Ok(()) => self.suspects.paid(death.letter),
            Err(error) => tracing::error!(
                letter = %death.letter,
                error = report(&error),
                "a crash mark could not be removed: another process counts it as a crash"
            ),
        }
    }
}
