//! What a stage inside the stack may know of the message in hand, besides the delivery: found through the task.

use std::future::pending;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::{Delivery, Disposition, ErrorClass, History};

use super::outage::{Ruling, Signal, Ticket};
use super::probation::Turn;
use crate::retry;
use crate::stage::{Done, Postponed, Verdict};

tokio::task_local! {
    pub(super) static HAND: Arc<Hand>;
}

/// One run of the stack for one message.
#[derive(Debug)]
pub(super) struct Hand {
    /// Given up by whoever judges first.
    ticket: Mutex<Option<Ticket>>,
    /// Whether it makes a difference how it is judged.
    counts: bool,
    /// Whether later messages of its key wait for it.
    ordered: bool,
    held: Mutex<Held>,
    /// The handler has ended: nobody is to wait for its turn any more.
    has_run: AtomicBool,
    /// A [`Conviction`], or 0.
    convicted: AtomicU8,
    /// Attempts of this run that its idempotency key has counted, and how many of them are to be taken back.
    counted: AtomicU32,
    forgiven: AtomicU32,
}

/// What is left when a run has ended.
#[derive(Debug, Default)]
struct Held {
    /// Attempts made in this run, when it goes on here.
    made: Option<(History, u32)>,
    /// The right to run, where the message is not handled where it was received.
    turn: Option<Turn>,
}

/// Notes for the message in hand that its idempotency key has counted an attempt.
pub(crate) fn attempt_counted() {
    let _ = HAND.try_with(|hand| hand.counted.fetch_add(1, Ordering::Relaxed));
}

/// By what a message was found to crash too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conviction {
    /// By the crashes that came with it.
    Delivery = 1,
    /// By those of its idempotency key, which the delivery does not show.
    Key = 2,
}

impl Conviction {
    /// Notes it for the message in hand: before its letter is written, which may be cut off.
    pub(crate) fn note(self) {
        let _ = HAND.try_with(|hand| hand.convicted.store(self as u8, Ordering::Relaxed));
    }

    /// What is noted of the message in hand.
    pub(crate) fn noted() -> Option<Self> {
        HAND.try_with(|hand| hand.convicted()).ok().flatten()
    }
}

/// Notes that the message in hand is not run: what was decided about it before is written again. So it says nothing about
/// what its handler depends on, and holds up nobody who waits to run (G4).
pub(crate) fn routed_again(convicted: Option<Conviction>) {
    let _ = HAND.try_with(|hand| {
        hand.ends_run();
        if let Some(ticket) = hand.ticket() {
            ticket.passed(Signal::Neutral);
        }
    });
    if let Some(by) = convicted {
        by.note();
    }
}

impl Hand {
    pub(super) fn new(ticket: Ticket, ordered: bool, turn: Option<Turn>) -> Arc<Self> {
        let (counts, ticket) = (ticket.counts(), Mutex::new(Some(ticket)));
        let held = Mutex::new(Held { made: None, turn });
        let (has_run, convicted) = (AtomicBool::new(false), AtomicU8::new(0));
        let (counted, forgiven) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { ticket, counts, ordered, held, has_run, convicted, counted, forgiven })
    }

    /// How many attempts that the message's idempotency key has counted were an outage's.
    pub(super) fn forgiven(&self) -> u32 {
        self.forgiven.load(Ordering::Relaxed)
    }

    /// Whether the message was given up for its crashes in this run, and so not run.
    pub(super) fn convicted(&self) -> Option<Conviction> {
        let found = self.convicted.load(Ordering::Relaxed);
        [Conviction::Delivery, Conviction::Key].into_iter().find(|by| *by as u8 == found)
    }

    /// The same for another message, in the place of one that has ended where nobody knows of it any more.
    pub(super) fn again(ended: Option<Arc<Self>>, ticket: Ticket, ordered: bool) -> Arc<Self> {
        let Some(mut hand) = ended else { return Self::new(ticket, ordered, None) };
        match Arc::get_mut(&mut hand) {
            None => Self::new(ticket, ordered, None),
            Some(Self {
                ticket: of,
                counts,
                ordered: is_ordered,
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

    /// Judges what became of the message, when no guard inside the stack has.
    pub(super) fn judge(&self, disposition: &Disposition) {
        let Some(ticket) = self.ticket() else { return };
        ticket.passed(match disposition {
            Disposition::Succeeded | Disposition::Duplicate => Signal::Success,
            Disposition::Dead(letter) if letter.class == ErrorClass::Transient => Signal::Failure,
            Disposition::Escalated { .. } => Signal::Failure,
            Disposition::Dead(_) | Disposition::Deferred { .. } => Signal::Neutral,
        });
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the right to run until the handler has ended, as it may have already.
    pub(super) fn keep(self: &mut Arc<Self>, turn: Turn) {
        // Whoever else has it waits for a ruling.
        if let Some(Self { held, has_run, .. }) = Arc::get_mut(self)
            && !*has_run.get_mut()
        {
            held.get_mut().unwrap_or_else(PoisonError::into_inner).turn = Some(turn);
        }
    }

    /// The handler has ended. A ruling may take as long as other probes, and a letter as long as its sink: whoever waits to
    /// run does not wait for them (G4).
    fn ends_run(&self) {
        self.has_run.store(true, Ordering::Relaxed);
        self.held().turn = None;
    }

    /// The delivery that goes on where this run of `delivery` stopped, and the right to run if it is not given back yet.
    pub(super) fn continued(&self, delivery: Delivery) -> (Delivery, Option<Turn>) {
        let Held { made, turn } = mem::take(&mut *self.held());
        let delivery = match made {
            None => delivery,
            Some((history, attempts)) => {
                delivery.with_history(history).with_attempt(attempts.saturating_add(1))
            }
        };
        (delivery, turn)
    }

    /// Whether the verdict can be passed on at once. Judges it if so.
    pub(super) fn passes(&self, verdict: &Verdict) -> bool {
        let signal = match verdict {
            Verdict::Done(Done::Succeeded | Done::Duplicate) => Signal::Success,
            Verdict::Defer { .. } => Signal::Neutral,
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

    /// What is to become of a message that failed of what may pass.
    pub(super) async fn rule(self: Arc<Self>, verdict: Verdict) -> Verdict {
        let ruling = match self.ticket() {
            None => Ruling::Stands,
            Some(ticket) => {
                // A stop does not wait for other probes. What is itself at fault comes again, and dies in the next process.
                tokio::select! {
                    biased;
                    ruling = ticket.failed() => ruling,
                    () = until_stopped() => Ruling::Defer(Duration::ZERO),
                }
            }
        };
        match (ruling, verdict) {
            (Ruling::Defer(after), _) => {
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
        self.held().made = Some((history, attempts));
        Verdict::Defer { after, why: "later messages of its key wait" }
    }
}

/// Waits until the run loop stops, which is known where a stack runs.
async fn until_stopped() {
    match retry::stopped() {
        Some(stopped) => stopped.await,
        None => pending().await,
    }
}
