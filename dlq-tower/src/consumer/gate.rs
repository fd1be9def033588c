//! Gate before fetching: the outage protection, and the pause after dead-letter routing could not write.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::{Death, SharedClock};
use metrics::Gauge;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::health::Reporter;
use super::outage::{Outage, OutagePolicy, Ticket};
use super::refused::{Refusal, Refused};
use crate::backoff::Growing;

/// Pauses after dead-letter routing could not write.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Routing {
    until: Option<Instant>,
    pause: Growing,
}

/// Decides whether the next message may be fetched.
pub(super) struct Gate {
    outage: Arc<Outage>,
    routing: Mutex<Routing>,
    // Whether writes are known to fail; saves the lock when they do not. Changed under it, together with what health says.
    failing: AtomicBool,
    /// Letters that were refused one by one, and whether there are any: that saves the lock where there are none.
    refused: Mutex<Refused>,
    has_refused: AtomicBool,
    /// True if routing has ever failed: a part of it may be durable of messages that come again.
    // It never turns false again, since nobody knows which messages that come again have a letter.
    has_failed: AtomicBool,
    changed: Arc<watch::Sender<()>>,
    health: Reporter,
    /// Number of sources that wait here, and the gauge that shows it.
    paused: Mutex<(usize, Gauge)>,
}

/// Somebody waits, for as long as this lives.
struct Paused<'g>(&'g Mutex<(usize, Gauge)>);

impl<'g> Paused<'g> {
    fn new(waiting: &'g Mutex<(usize, Gauge)>) -> Self {
        let mut shown = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        shown.0 += 1;
        shown.1.set(1.0);
        Self(waiting)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.0 -= 1;
        if shown.0 == 0 {
            shown.1.set(0.0);
        }
    }
}

impl Gate {
    pub(super) fn new(policy: Option<OutagePolicy>, health: Reporter, paused: Gauge) -> Self {
        let changed = Arc::new(watch::Sender::new(()));
        let pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self {
            outage: Arc::new(Outage::new(policy, Arc::clone(&changed), health.clone())),
            routing: Mutex::new(Routing { until: None, pause }),
            failing: AtomicBool::new(false),
            refused: Mutex::new(Refused::new()),
            has_refused: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            changed,
            health,
            paused: Mutex::new((0, paused)),
        }
    }

    /// Sets what shows how many letters are refused, and the clock that says since when.
    pub(super) fn showing_refused(self, shown: Gauge, clock: SharedClock) -> Self {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).shown_by(shown, clock);
        self
    }

    /// Waits until a message may be fetched.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub(super) async fn admit(&self) {
        if self.look().is_ok() {
            return;
        }
        let _paused = Paused::new(&self.paused);
        // Subscribed before looking, so that no change is missed.
        let mut changed = self.changed.subscribe();
        while let Err(wait) = self.look() {
            match wait {
                Some(until) => {
                    tokio::select! {
                        () = sleep_until(until) => {}
                        _ = changed.changed() => {}
                    }
                }
                None => {
                    let _ = changed.changed().await;
                }
            }
        }
    }

    /// A ticket for a message that was fetched.
    pub(super) fn ticket(&self) -> Ticket {
        self.outage.ticket()
    }

    /// Returns true if more than one message may be fetched at once.
    pub(super) fn is_well(&self) -> bool {
        !self.failing.load(Ordering::Acquire) && !self.outage.is_active()
    }

    /// Returns true if dead-letter routing has ever failed, of one letter or of all.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn look(&self) -> Result<(), Option<Instant>> {
        match self.routing_pauses() {
            Some(until) => Err(Some(until)),
            None => self.outage.may_fetch(),
        }
    }

    fn routing_pauses(&self) -> Option<Instant> {
        if !self.failing.load(Ordering::Acquire) {
            return None;
        }
        let routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
        routing.until.filter(|until| *until > Instant::now())
    }

    /// Waits until nothing may be fetched.
    pub(super) async fn closed(&self) {
        let mut changed = self.changed.subscribe();
        while self.look().is_ok() {
            let _ = changed.changed().await;
        }
    }

    /// Waits until there is no outage. For work that is not itself a probe.
    pub(super) async fn no_outage(&self) {
        let mut changed = self.changed.subscribe();
        while self.outage.is_active() {
            let _ = changed.changed().await;
        }
    }

    /// Dead-letter routing could not write: fetching pauses. Returns for how long.
    pub(super) fn routing_failed(&self, why: String) -> Duration {
        self.has_failed.store(true, Ordering::Relaxed);
        let pause = {
            let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
            self.failing.store(true, Ordering::Release);
            self.health.route_failed(why);
            let now = Instant::now();
            match routing.until {
                // Messages that were in flight together fail together: that is one failure, not many.
                Some(until) if until > now => until - now,
                _ => {
                    let pause = routing.pause.next();
                    routing.until = Some(now + pause);
                    pause
                }
            }
        };
        // The lock is free by now, since those who wake take it to look.
        self.changed.send_replace(());
        pause
    }

    /// A sink refused one letter: its message waits, and nobody else. Returns for how long. Fetching pauses all the same
    /// where one letter after another is refused, for then the sink is down.
    pub(super) fn letter_refused(
        &self,
        death: Death,
        origin: impl fmt::Display,
        why: String,
    ) -> Duration {
        self.has_failed.store(true, Ordering::Relaxed);
        let Refusal { after, is_down } = {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            let refusal = refused.refused(death, origin, &why);
            self.has_refused.store(true, Ordering::Release);
            self.health.refused(refused.told());
            refusal
        };
        // The sink is taken to be down, so that the letter is not offered before the pause is over.
        if is_down { after.max(self.routing_failed(why)) } else { after }
    }

    /// The message of a death is settled, or about to be: nothing is refused of it any more. `is_written` where its letter
    /// or its retry record is.
    pub(super) fn message_over(&self, death: impl FnOnce() -> Death, is_written: bool) {
        // Only what was written says that writing works; a success had nothing to write.
        if is_written {
            self.routing_works();
        }
        if !self.has_refused.load(Ordering::Acquire) {
            return;
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // A death is a hash over the identity of the message, so that it is computed only where something is refused.
        if refused.over(death(), is_written) {
            self.health.refused(refused.told());
        }
        // Those that were refused in a row are counted also when they have been forgotten.
        self.has_refused.store(!refused.is_quiet(), Ordering::Release);
    }

    /// Dead-letter routing has written.
    fn routing_works(&self) {
        if !self.failing.load(Ordering::Acquire) {
            return;
        }
        {
            let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
            self.failing.store(false, Ordering::Release);
            self.health.route_works();
            routing.until = None;
            routing.pause.reset();
        }
        self.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::thread;

    use futures_util::poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_gauge_says_that_somebody_waits_and_no_longer_than_that() {
        let shown = Arc::new(AtomicU64::new(0));
        let gate = Gate::new(None, Reporter::new(), Gauge::from_arc(Arc::clone(&shown)));
        let shown = || f64::from_bits(shown.load(Ordering::Acquire));
        gate.admit().await;
        assert_eq!(shown(), 0.0);
        gate.routing_failed("the store is down".to_owned());
        let mut main = Box::pin(gate.admit());
        let mut queue = Box::pin(gate.admit());
        assert!(poll!(&mut main).is_pending() && poll!(&mut queue).is_pending());
        assert_eq!(shown(), 1.0);
        drop(queue);
        assert_eq!(shown(), 1.0, "the other waits");
        // As a stop does, or a consumer whose patience has passed.
        drop(main);
        assert_eq!(shown(), 0.0);
        gate.admit().await;
        assert_eq!(shown(), 0.0);
    }

    /// A write that works certainly clears a failure beside it: if two writers end at the same moment, nobody knows
    /// which was last.
    #[test]
    fn what_works_again_is_well_whatever_failed_beside_it() {
        const ROUNDS: u32 = 1_000;
        let reporter = Reporter::new();
        let gate = Gate::new(None, reporter.clone(), Gauge::noop());
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::Acquire) < round {
                        thread::yield_now();
                    }
                    gate.routing_failed(String::new());
                    ended.store(round, Ordering::Release);
                }
            });
            let mut ill = 0;
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::Release);
                while ended.load(Ordering::Acquire) < round {
                    gate.routing_works();
                }
                gate.routing_works();
                let told = reporter.handle().get().route_error;
                ill += u32::from(told.is_some() || !gate.is_well());
            }
            assert_eq!(ill, 0, "of {ROUNDS}");
        });
    }
}
