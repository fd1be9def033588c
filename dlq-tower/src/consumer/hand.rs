//! Facts about the message in flight that the stages of its stack may know. They travel with its delivery, as an extension.

use std::future::{Future, pending};
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{Attempt, Cause, Delivery, Disposition, ErrorClass, Failure, History, Reason};

use super::outage::{Ruling, Signal, Ticket};
use super::suspect::{NotRun, Suspect};
use super::suspects::{Runs, Suspicion, Turn};
use crate::retry::RunLoop;
use crate::stage::{Done, GivenUp, Postponed, Verdict};

/// A run of the stack for one message.
#[derive(Debug)]
pub(crate) struct Hand {
    run_loop: Arc<RunLoop>,
    /// Given up by whoever judges first.
    ticket: Mutex<Option<Ticket>>,
    /// True if the judgement makes a difference.
    counts: bool,
    /// True if later messages of its key wait for it.
    ordered: bool,
    /// The panic of its order key.
    unread: Option<Box<Failure>>,
    /// The source of its turn.
    runs: Runs,
    /// Its mark, if it does not run beside others.
    suspect: Option<Suspect>,
    held: Mutex<Held>,
    /// The handler has ended: nobody is to wait for its turn any more.
    has_run: AtomicBool,
    /// A [`Conviction`], or 0.
    convicted: AtomicU8,
    /// Attempts of this run that its idempotency key has counted, and how many of them are to be taken back.
    counted: AtomicU32,
    forgiven: AtomicU32,
}

/// Facts that are left when a run has ended.
#[derive(Debug, Default)]
struct Held {
    /// Attempts made in this run, when it goes on here.
    made: Option<(History, u32)>,
    /// The right to run, where the message is not handled where it was received.
    turn: Option<Turn>,
    /// It waits for its next attempt, and has no turn.
    rests: bool,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The run that `delivery` is of, where a [`Consumer`](super::Consumer) has it in flight.
#[inline]
pub(crate) fn of(delivery: &Delivery) -> Option<&Hand> {
    delivery.extension()
}

/// Lets others run while the message waits for its next attempt (G4). Returns what has to be done for that, if it cannot be
/// done at once; dropped, it is done when the run ends.
pub(crate) fn rest(delivery: &Delivery) -> Option<Boxed<()>> {
    let hand = of(delivery)?;
    let Some(marked) = hand.suspect.as_ref().filter(|suspect| suspect.is_marked()) else {
        hand.rests();
        return None;
    };
    let (hand, unmark) = (delivery.extension_shared::<Hand>()?, marked.unmark());
    Some(Box::pin(async move {
        // What runs next may kill the process, and the mark would say that this one did (G3).
        unmark.await;
        hand.rests();
    }))
}

/// Takes the turn of the message again, for its next attempt: a suspect is alone by then, and marked. Returns what has to be
/// waited for, if anything; an error is how long the message had better be kept from running.
pub(crate) fn resume(delivery: &Delivery) -> Option<Boxed<Result<(), Duration>>> {
    let hand = of(delivery).filter(|hand| hand.held().rests)?;
    if hand.suspect.is_none()
        && let Some(turn) = hand.runs.turn_now()
    {
        hand.resumes(turn);
        return None;
    }
    let hand = delivery.extension_shared::<Hand>()?;
    Some(Box::pin(async move {
        let turn = match &hand.suspect {
            None => hand.runs.turn(Suspicion::None).await,
            Some(suspect) => {
                // It is marked only once it is alone: a process that dies before that was killed by another message (G3).
                let turn = hand.runs.turn(suspect.suspicion()).await;
                suspect.mark().await?;
                turn
            }
        };
        hand.resumes(turn);
        Ok(())
    }))
}

/// The verdict on a message that must not run, which ends its run and says nothing of an outage.
#[inline]
pub(crate) fn refuses(delivery: &Delivery) -> Option<Verdict> {
    let hand = of(delivery)?;
    let verdict = hand.refuses(delivery)?;
    // The verdict is permanent, so that this judges it as neutral at once and is true.
    let _ = hand.passes(&verdict);
    Some(verdict)
}

/// Evidence by which a message was found to crash too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conviction {
    /// Crashes that came with the delivery.
    Delivery = 1,
    /// Crashes of its idempotency key, which the delivery does not show.
    Key = 2,
}

impl Conviction {
    /// Notes it for the run of a message: before its letter is written, which may be cut off.
    pub(crate) fn note(self, delivery: &Delivery) {
        if let Some(hand) = of(delivery) {
            hand.convicted.store(self as u8, Ordering::Relaxed);
        }
    }

    /// Returns what is noted of the run.
    pub(crate) fn noted(delivery: &Delivery) -> Option<Self> {
        of(delivery).and_then(Hand::convicted)
    }
}

/// Notes that the message is not run: what was decided about it before is written again. So it says nothing about what its
/// handler depends on, and holds up nobody who waits to run (G4).
pub(crate) fn routed_again(delivery: &Delivery, convicted: Option<Conviction>) {
    if let Some(hand) = of(delivery) {
        hand.ends_run();
        if let Some(ticket) = hand.ticket() {
            ticket.passed(Signal::Neutral);
        }
    }
    if let Some(by) = convicted {
        by.note(delivery);
    }
}

/// Gives the message up for now, since it could not be marked before it began. Never returns.
pub(super) async fn put_off(delivery: &Delivery) {
    if let Some(suspect) = of(delivery).and_then(Hand::suspect) {
        suspect.is_over(NotRun::Unmarked);
    }
    pending().await
}

/// Ends a run when it is dropped, however that comes: what the message held is given back, whoever still has its delivery.
#[derive(Debug)]
pub(super) struct Ending(pub(super) Arc<Hand>);

impl Deref for Ending {
    type Target = Hand;

    fn deref(&self) -> &Hand {
        &self.0
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ends_run();
        // A ticket that nobody has judged goes back, and its place among the probes with it.
        drop(self.0.ticket());
    }
}

impl Hand {
    pub(super) fn new(
        run_loop: &Arc<RunLoop>,
        ticket: Ticket,
        (ordered, unread): (bool, Option<Box<Failure>>),
        runs: &Runs,
        (turn, suspect): (Option<Turn>, Option<Suspect>),
    ) -> Arc<Self> {
        let (counts, ticket) = (ticket.counts(), Mutex::new(Some(ticket)));
        let held = Mutex::new(Held { made: None, turn, rests: false });
        let runs = runs.clone();
        let (has_run, convicted) = (AtomicBool::new(false), AtomicU8::new(0));
        let (counted, forgiven) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self {
            run_loop: Arc::clone(run_loop),
            ticket,
            counts,
            ordered,
            unread,
            runs,
            suspect,
            held,
            has_run,
            convicted,
            counted,
            forgiven,
        })
    }

    pub(crate) fn run_loop(&self) -> &RunLoop {
        &self.run_loop
    }

    /// Returns true if others wait for what becomes of the message, since it shows whether an outage is over.
    pub(crate) fn is_probe(&self) -> bool {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        ticket.as_ref().is_some_and(Ticket::is_probe)
    }

    /// Notes that its idempotency key has counted an attempt.
    pub(crate) fn attempt_counted(&self) {
        self.counted.fetch_add(1, Ordering::Relaxed);
    }

    /// The verdict on a message whose order key cannot be read: run anywhere, it could overtake others of its key (G5).
    fn refuses(&self, delivery: &Delivery) -> Option<Verdict> {
        let failure = (**self.unread.as_ref()?).clone();
        tracing::error!(
            origin = %delivery.origin(),
            panic = failure.message(),
            "an order key could not be read, since `order_by` panicked: its message is given up, unrun"
        );
        let (consumer, number) = (delivery.consumer_shared().clone(), delivery.attempt());
        let mut history = delivery.history().clone();
        history.push(Attempt { number, generation: delivery.generation(), failure });
        let given_up = GivenUp::unattempted(delivery, consumer, Reason::Permanent);
        let cause = Some(Cause::Panic);
        let given_up = GivenUp { cause, history, ..given_up };
        Some(Verdict::Dead(Box::new(given_up)))
    }

    pub(super) fn suspect(&self) -> Option<&Suspect> {
        self.suspect.as_ref()
    }

    /// Returns the number of attempts, counted by the message's idempotency key, that were an outage's.
    pub(super) fn forgiven(&self) -> u32 {
        self.forgiven.load(Ordering::Relaxed)
    }

    /// Returns the evidence if the message was given up for its crashes in this run, and so not run.
    pub(super) fn convicted(&self) -> Option<Conviction> {
        let found = self.convicted.load(Ordering::Relaxed);
        [Conviction::Delivery, Conviction::Key].into_iter().find(|by| *by as u8 == found)
    }

    /// The same for another message that runs beside others, in the place of one that has ended where nobody knows of it
    /// any more.
    pub(super) fn again(
        ended: Option<Arc<Self>>,
        run_loop: &Arc<RunLoop>,
        ticket: Ticket,
        ordered: bool,
        runs: &Runs,
    ) -> Arc<Self> {
        let new = |ticket| Self::new(run_loop, ticket, (ordered, None), runs, (None, None));
        let Some(mut hand) = ended else { return new(ticket) };
        match Arc::get_mut(&mut hand) {
            // Somebody still holds the delivery of the message before, and this run with it.
            None => new(ticket),
            // The pattern has no `..`: a field that is added does not compile until it is reset here.
            Some(Self {
                run_loop: _,
                ticket: of,
                counts,
                ordered: is_ordered,
                unread,
                runs: _,
                suspect,
                held,
                has_run,
                convicted,
                counted,
                forgiven,
            }) => {
                *counts = ticket.counts();
                *of.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
                *held.get_mut().unwrap_or_else(PoisonError::into_inner) = Held::default();
                *has_run.get_mut() = false;
                (*suspect, *unread) = (None, None);
                *is_ordered = ordered;
                *convicted.get_mut() = 0;
                (*counted.get_mut(), *forgiven.get_mut()) = (0, 0);
                hand
            }
        }
    }

    fn ticket(&self) -> Option<Ticket> {
        if !self.counts {
            return None;
        }
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Judges what became of the message, where dead-letter routing has not: a layer around it may hand on a delivery that is
    /// not this one's.
    pub(super) fn judge(&self, disposition: &Disposition) {
        let Some(ticket) = self.ticket() else { return };
        ticket.passed(match disposition {
            Disposition::Succeeded | Disposition::Duplicate => Signal::Success,
            Disposition::Dead(letter) if letter.class == ErrorClass::Transient => Signal::Failure,
            Disposition::DelayedRetry { .. } => Signal::Failure,
            _ => Signal::Neutral,
        });
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the right to run until the handler has ended or waits, as it may already.
    pub(super) fn keep(&self, turn: Turn) {
        let mut held = self.held();
        // A turn that comes too late is dropped here, since nobody would give it back later.
        if !held.rests && !self.has_run.load(Ordering::Relaxed) {
            held.turn = Some(turn);
        }
    }

    fn rests(&self) {
        let mut held = self.held();
        (held.rests, held.turn) = (true, None);
    }

    fn resumes(&self, turn: Turn) {
        let mut held = self.held();
        (held.rests, held.turn) = (false, Some(turn));
    }

    /// The handler has ended. A ruling may take as long as other probes, and a letter as long as its sink: whoever waits to
    /// run does not wait for them (G4).
    fn ends_run(&self) {
        // The flag is set before the lock is taken: a `keep` that misses it puts a turn where the next line takes it away.
        self.has_run.store(true, Ordering::Relaxed);
        self.held().turn = None;
    }

    /// The delivery that goes on where this run of `delivery` stopped, and the right to run if it is not given back yet.
    pub(super) fn continued(&self, delivery: Delivery) -> (Delivery, Option<Turn>) {
        let Held { made, turn, .. } = mem::take(&mut *self.held());
        let delivery = match made {
            None => delivery,
            Some((history, attempts)) => {
                delivery.with_history(history).with_attempt(attempts.saturating_add(1))
            }
        };
        (delivery, turn)
    }

    /// Returns true if the verdict can be passed on at once; judges it if so.
    pub(crate) fn passes(&self, verdict: &Verdict) -> bool {
        let signal = match verdict {
            Verdict::Done(Done::Succeeded | Done::Duplicate) => Signal::Success,
            Verdict::Defer { .. } => Signal::Neutral,
            // A permanent failure is the message's own, and says nothing about what its handler depends on.
            Verdict::Dead(dead) if dead.class == ErrorClass::Permanent => {
                self.ends_run();
                Signal::Neutral
            }
            Verdict::Dead(_) | Verdict::Retry(_) => {
                self.ends_run();
                return false;
            }
        };
        if let Some(ticket) = self.ticket() {
            ticket.passed(signal);
        }
        true
    }

    /// Decides about a message that failed with a transient error.
    pub(crate) async fn rule(self: Arc<Self>, verdict: Verdict) -> Verdict {
        let ruling = match self.ticket() {
            None => Ruling::Stands,
            Some(ticket) => {
                // A stop does not wait for other probes. What is itself at fault comes again, and dies in the next process.
                tokio::select! {
                    biased;
                    ruling = ticket.failed() => ruling,
                    () = self.run_loop.stopped() => Ruling::Defer(Duration::ZERO),
                }
            }
        };
        match (ruling, verdict) {
            (Ruling::Defer(after), _) => {
                // The key has counted these attempts already. `change_counts` takes them back before the
                // message is given back (G10).
                self.forgiven.store(self.counted.load(Ordering::Relaxed), Ordering::Relaxed);
                Verdict::Defer { after, why: "outage" }
            }
            (Ruling::Stands, Verdict::Retry(postponed)) if self.ordered => self.hold(*postponed),
            (Ruling::Stands, verdict) => verdict,
        }
    }

    /// Later messages of the key must not overtake: the wait is spent here, however long it is.
    fn hold(&self, postponed: Postponed) -> Verdict {
        let Postponed { after, history, attempts, .. } = postponed;
        // `continued` begins the next run with these attempts, so that a deferral does not forget them (G3).
        self.held().made = Some((history, attempts));
        Verdict::Defer { after, why: "later messages of its key wait" }
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::{Message, Origin, Position};
    use futures_util::FutureExt as _;
    use metrics::Gauge;
    use tokio_util::sync::CancellationToken;

    use super::super::OutagePolicy;
    use super::super::gate::Gate;
    use super::super::health::Reporter;
    use super::super::suspects::Suspects;
    use super::*;

    /// A handler may keep its delivery for as long as it likes, also in a task of its own.
    #[test]
    fn g4_a_run_that_is_cut_off_holds_up_nobody_whoever_keeps_its_delivery() {
        let (gate, suspects) = (
            Gate::new(Some(OutagePolicy::new()), Reporter::new(), Gauge::noop()),
            Suspects::new(3, false),
        );
        let (run_loop, runs) = (Arc::new(RunLoop::new(CancellationToken::new())), suspects.runs());
        let hand =
            Hand::new(&run_loop, gate.ticket(), (false, None), runs, (runs.turn_now(), None));
        let origin = Origin::new("memory", "orders", Position::Offset(1));
        let kept = Delivery::new(Message::new("orders", ""), origin);
        let kept = kept.with_extension(Arc::clone(&hand));
        assert!(runs.turn(Suspicion::Alone).now_or_never().is_none(), "it runs");
        drop(Ending(hand));
        assert!(runs.turn(Suspicion::Alone).now_or_never().is_some());
        assert!(of(&kept).is_some_and(|hand| hand.ticket().is_none()));
    }
}
