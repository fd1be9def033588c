//! What stands before fetching: the outage protection, and the pause after dead-letter routing could not write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::Gauge;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::backoff::Growing;
use super::health::Reporter;
use super::outage::{Outage, OutagePolicy, Ticket};

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
    // Whether writes are known to fail; saves the lock when they do not.
    failing: AtomicBool,
    changed: Arc<watch::Sender<()>>,
    health: Reporter,
    paused: Gauge,
}

impl Gate {
    pub(super) fn new(policy: Option<OutagePolicy>, health: Reporter, paused: Gauge) -> Self {
        let changed = Arc::new(watch::Sender::new(()));
        let pause = Growing::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self {
            outage: Arc::new(Outage::new(policy, Arc::clone(&changed), health.clone())),
            routing: Mutex::new(Routing { until: None, pause }),
            failing: AtomicBool::new(false),
            changed,
            health,
            paused,
        }
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
        self.paused.set(1.0);
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
        self.paused.set(0.0);
    }

    /// A ticket for a message that was fetched.
    pub(super) fn ticket(&self) -> Ticket {
        self.outage.ticket()
    }

    /// How many of these messages may be fetched without looking again: one while it is not certain that all is well.
    pub(super) fn at_once(&self, most: usize) -> usize {
        let is_well = !self.failing.load(Ordering::Acquire) && !self.outage.is_active();
        if is_well { most } else { most.min(1) }
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
        let pause = {
            let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            match routing.until {
                // Messages that were in hand together fail together: that is one failure, not many.
                Some(until) if until > now => until - now,
                _ => {
                    let pause = routing.pause.next();
                    routing.until = Some(now + pause);
                    pause
                }
            }
        };
        self.failing.store(true, Ordering::Release);
        self.health.route_failed(why);
        self.changed.send_replace(());
        pause
    }

    /// Dead-letter routing has written.
    pub(super) fn routing_works(&self) {
        if !self.failing.swap(false, Ordering::AcqRel) {
            return;
        }
        {
            let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
            routing.until = None;
            routing.pause.reset();
        }
        self.health.route_works();
        self.changed.send_replace(());
    }
}
