//! Outage protection: when most messages fail of what may pass, stop fetching instead of burying the backlog.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::health::Reporter;
use super::window::Window;
use crate::InvalidConfig;
use crate::backoff::Growing;
use crate::stage::instant_after;

/// When a consumer stops fetching because what its handlers depend on is down. See the [module docs](super).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct OutagePolicy {
    /// The share of messages that end in a transient failure from which on it is an outage; above 0, at most 1.
    pub ratio: f64,
    /// Number of messages that must have ended within the window for the share to mean anything.
    pub minimum: u32,
    /// Length of the window.
    pub window: Duration,
    /// Time for which fetching pauses before the first probes; doubles while probes fail.
    pub pause: Duration,
    /// Maximum time for which fetching pauses.
    pub max_pause: Duration,
    /// Number of different messages that are tried after a pause before the outage is confirmed.
    pub probes: u32,
}

impl Default for OutagePolicy {
    /// 80 % of at least 50 messages within 30 s; pauses of 5 s to 5 min; 3 probes.
    ///
    /// A consumer of fewer messages does not meet that by chance: what fails there is taken to be at fault itself, and dies
    /// of its attempts. Lower the minimum where an outage is to be noticed there, too.
    fn default() -> Self {
        Self {
            ratio: 0.8,
            minimum: 50,
            window: Duration::from_secs(30),
            pause: Duration::from_secs(5),
            max_pause: Duration::from_secs(300),
            probes: 3,
        }
    }
}

impl OutagePolicy {
    /// The policy with its defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets from which share of transient failures on it is an outage. Defaults to 0.8.
    pub const fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = ratio;
        self
    }

    /// Sets how many messages must have ended within the window. Defaults to 50.
    pub const fn minimum(mut self, minimum: u32) -> Self {
        self.minimum = minimum;
        self
    }

    /// Sets how far back is looked. Defaults to 30 s.
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets the first pause and the longest one. Defaults to 5 s and 5 min.
    pub const fn pause(mut self, first: Duration, longest: Duration) -> Self {
        self.pause = first;
        self.max_pause = longest;
        self
    }

    /// Sets how many different messages are tried after a pause. Defaults to 3.
    pub const fn probes(mut self, probes: u32) -> Self {
        self.probes = probes;
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidConfig> {
        // Written as a negation, so that NaN is refused as well.
        if !(self.ratio > 0.0 && self.ratio <= 1.0) {
            let text = format!("outage.ratio is {}; it must be above 0 and at most 1", self.ratio);
            return Err(InvalidConfig::consumer(text));
        }
        let zero = [
            ("minimum", self.minimum == 0),
            ("window", self.window.is_zero()),
            ("pause", self.pause.is_zero()),
            ("probes", self.probes == 0),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(InvalidConfig::consumer(format!("outage.{name} is 0; it must be more")));
        }
        if self.max_pause < self.pause {
            return Err(InvalidConfig::consumer(format!(
                "outage.max_pause ({:?}) is below outage.pause ({:?})",
                self.max_pause, self.pause
            )));
        }
        Ok(())
    }
}

/// End of a message, as far as an outage is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The dependency works.
    Success,
    /// It failed of what may pass.
    Failure,
    /// It says nothing: deferred, or at fault itself.
    Neutral,
}

/// Decision about a message that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    /// Its own fault: let the verdict stand.
    Stands,
    /// An outage: not now, nothing is counted.
    Defer(Duration),
}

#[derive(Debug)]
enum State {
    /// Everything is fetched, and counted.
    Closed { window: Window },
    /// Nothing is fetched.
    Open { until: Instant },
    /// Single messages are fetched, to see.
    HalfOpen {
        /// Probes that are out.
        out: u32,
        failed: u32,
        /// When the round is lost without further probes; set by the first one that failed.
        deadline: Option<Instant>,
    },
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Grows with each change of state, so that what began before is told apart.
    round: u64,
    pause: Growing,
}

/// The circuit of one consumer.
#[derive(Debug)]
pub(super) struct Outage {
    policy: Option<OutagePolicy>,
    inner: Mutex<Inner>,
    changed: Arc<watch::Sender<()>>,
    health: Reporter,
}

impl Outage {
    pub(super) fn new(
        policy: Option<OutagePolicy>,
        changed: Arc<watch::Sender<()>>,
        health: Reporter,
    ) -> Self {
        // Without a policy neither the window nor the pause is ever looked at.
        let like = policy.clone().unwrap_or_default();
        let state = State::Closed { window: Window::new(like.window) };
        let pause = Growing::new(like.pause, like.max_pause);
        Self { policy, inner: Mutex::new(Inner { state, round: 0, pause }), changed, health }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, inner: &mut Inner, state: State) {
        let open = !matches!(state, State::Closed { .. });
        inner.state = state;
        inner.round += 1;
        self.health.outage(open);
        self.changed.send_replace(());
    }

    fn open(&self, inner: &mut Inner) -> Duration {
        let pause = inner.pause.next();
        tracing::error!(?pause, "an outage: most messages fail of what may pass; fetching pauses");
        self.turn(inner, State::Open { until: instant_after(pause) });
        pause
    }

    fn close(&self, inner: &mut Inner, window: Duration) {
        tracing::info!("the outage is over: a probe succeeded");
        inner.pause.reset();
        self.turn(inner, State::Closed { window: Window::new(window) });
    }

    /// Returns true if it is uncertain that the handlers' dependencies work.
    pub(super) fn is_active(&self) -> bool {
        self.policy.is_some() && !matches!(self.lock().state, State::Closed { .. })
    }

    /// Returns `Ok` if a message may be fetched now; otherwise the time before which it may not, or nothing if
    /// something else has to happen first.
    pub(super) fn may_fetch(&self) -> Result<(), Option<Instant>> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let mut inner = self.lock();
        match &inner.state {
            State::Closed { .. } => Ok(()),
            // Probes that failed count as well: a round tries so many different messages, and no more.
            State::HalfOpen { out, failed, .. } if *out + *failed < policy.probes => Ok(()),
            // There is no time to wait for: the end of a probe wakes whoever waits for the gate.
            State::HalfOpen { .. } => Err(None),
            State::Open { until } if Instant::now() < *until => Err(Some(*until)),
            // The pause is over only when somebody wants to fetch: without a message there is nothing to probe with.
            State::Open { .. } => {
                self.turn(&mut inner, State::HalfOpen { out: 0, failed: 0, deadline: None });
                Ok(())
            }
        }
    }

    /// A ticket for a message that was fetched. Two sources that fetch at once may make one probe too many.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let (mut round, mut probe) = (0, false);
        if self.policy.is_some() {
            let mut inner = self.lock();
            round = inner.round;
            if let State::HalfOpen { out, .. } = &mut inner.state {
                *out += 1;
                probe = true;
                self.changed.send_replace(());
            }
        }
        let outage = self.policy.is_some().then(|| Arc::clone(self));
        Ticket { outage, round, probe }
    }

    /// The ticket comes back without having been used.
    fn give_back(&self, ticket: &Ticket) {
        if !ticket.probe {
            return;
        }
        let mut inner = self.lock();
        // The probes of a round that is over are counted no more.
        if inner.round == ticket.round
            && let State::HalfOpen { out, .. } = &mut inner.state
        {
            *out = out.saturating_sub(1);
            self.changed.send_replace(());
        }
    }

    /// Takes note of how a message ended. A probe that failed is told later, when the others have ended.
    fn note(&self, ticket: &Ticket, signal: Signal) -> Noted {
        let Some(policy) = &self.policy else { return Noted::Ruled(Ruling::Stands) };
        let failed = signal == Signal::Failure;
        let mut inner = self.lock();
        let ours = inner.round == ticket.round;
        match &mut inner.state {
            State::Closed { window } => {
                // A message that began before the latest change says nothing about the present.
                if !ours || signal == Signal::Neutral {
                    return Noted::Ruled(Ruling::Stands);
                }
                let (failures, total) = window.record(failed, Instant::now());
                let share = f64::from(failures) / f64::from(total.max(1));
                // Only a failure opens the circuit: a success while the share is still high is no news of an outage.
                if failed && total >= policy.minimum && share >= policy.ratio {
                    return Noted::Ruled(Ruling::Defer(self.open(&mut inner)));
                }
                Noted::Ruled(Ruling::Stands)
            }
            // It was in flight when the outage was found. Its failure is the outage's, so that nothing is counted (G10).
            State::Open { until } => {
                let left = until.saturating_duration_since(Instant::now());
                Noted::Ruled(if failed { Ruling::Defer(left) } else { Ruling::Stands })
            }
            State::HalfOpen { out, failed: lost, deadline } if ours && ticket.probe => {
                *out = out.saturating_sub(1);
                match signal {
                    Signal::Success => self.close(&mut inner, policy.window),
                    Signal::Neutral => {
                        self.changed.send_replace(());
                    }
                    Signal::Failure => {
                        *lost += 1;
                        if *lost >= policy.probes {
                            return Noted::Ruled(Ruling::Defer(self.open(&mut inner)));
                        }
                        // The first that failed does not wait without end for other probes: there may be no more messages.
                        let by = *deadline.get_or_insert(instant_after(policy.pause));
                        self.changed.send_replace(());
                        return Noted::Undecided(by);
                    }
                }
                Noted::Ruled(Ruling::Stands)
            }
            // It is no probe of this round. It decides nothing, and its failure may still be the outage's (G10).
            State::HalfOpen { .. } => Noted::Ruled(match failed {
                true => Ruling::Defer(policy.pause),
                false => Ruling::Stands,
            }),
        }
    }

    /// Returns the decision about the round of a failed probe, once there is one.
    fn ruling_on(&self, round: u64) -> Option<Ruling> {
        let mut inner = self.lock();
        match &inner.state {
            State::HalfOpen { deadline: Some(by), .. } if inner.round == round => {
                if Instant::now() < *by {
                    return None;
                }
                // The other probes did not come or did not end in time, and none has succeeded: the round is lost.
                Some(Ruling::Defer(self.open(&mut inner)))
            }
            // Another message succeeded: this one failed by itself.
            State::Closed { .. } => Some(Ruling::Stands),
            State::Open { until } => {
                Some(Ruling::Defer(until.saturating_duration_since(Instant::now())))
            }
            // Another round has begun, so that this one was lost. The message may come again at once.
            State::HalfOpen { .. } => Some(Ruling::Defer(Duration::ZERO)),
        }
    }
}

enum Noted {
    Ruled(Ruling),
    /// Known by then.
    Undecided(Instant),
}

/// Stands for one message that was let in.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Until it is judged; none without a policy.
    outage: Option<Arc<Outage>>,
    round: u64,
    probe: bool,
}

impl Ticket {
    /// Returns true if there is somebody to report to.
    pub(super) fn counts(&self) -> bool {
        self.outage.is_some()
    }

    /// Returns true if it shows whether an outage is over.
    pub(super) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Reports a message that did not fail.
    pub(super) fn passed(mut self, signal: Signal) {
        if let Some(outage) = self.outage.take() {
            let _ = outage.note(&self, signal);
        }
    }

    /// Reports a message that failed of what may pass, and says what is to become of it. For a probe the answer waits
    /// until other probes have ended: one that fails while another succeeds is at fault itself.
    pub(super) async fn failed(mut self) -> Ruling {
        let Some(outage) = self.outage.take() else { return Ruling::Stands };
        // The subscription comes before the note, so that no decision after it is missed.
        let mut changed = outage.changed.subscribe();
        let by = match outage.note(&self, Signal::Failure) {
            Noted::Ruled(ruling) => return ruling,
            Noted::Undecided(by) => by,
        };
        loop {
            // The value is marked as seen before the look: what changes meanwhile ends the wait below.
            changed.borrow_and_update();
            if let Some(ruling) = outage.ruling_on(self.round) {
                return ruling;
            }
            tokio::select! {
                () = sleep_until(by) => {}
                _ = changed.changed() => {}
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(outage) = self.outage.take() {
            // A probe that was cut off or not run makes room for another one, or the gate would stay closed.
            outage.give_back(self);
        }
    }
}
