//! Every call that crosses the border of the process passes here: it is numbered, and the plan may make it go wrong.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlq_core::StoreErrorKind;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::plan::{Fault, Plan};
use super::world::World;

/// Duration of a call that hangs: longer than any lease.
const LONG: Duration = Duration::from_secs(40);

/// Duration for which a frozen process stands still.
const FROZEN: Duration = Duration::from_secs(100);

/// Past so many steps a case is taken to run for ever.
pub(super) const MOST_STEPS: usize = 1_000;

/// The calls that need the store. Whoever keeps idempotency keys is taken to be the same one.
const OF_THE_STORE: [&str; 14] = [
    "put",
    "enqueue",
    "claim",
    "extend claims",
    "finish",
    "schedule",
    "mark",
    "unmark",
    "look for a letter",
    "resolve a letter",
    "claim key",
    "extend key",
    "complete key",
    "release key",
];

/// Returns true if a call of this kind needs the store.
pub(super) fn is_of_the_store(what: &str) -> bool {
    OF_THE_STORE.contains(&what)
}

/// Makes the error of a call, of this kind where it is one of a store.
pub(super) type Failing<E> = fn(&'static str, StoreErrorKind) -> E;

/// Numbers the calls of a case, across all its processes.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) plan: Plan,
    log: Mutex<Vec<&'static str>>,
    /// When the store was gone for good.
    lost: Mutex<Option<Instant>>,
    /// Woken by every step.
    pub(super) stepped: Notify,
}

impl Gate {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, log: Mutex::default(), lost: Mutex::default(), stepped: Notify::new() }
    }

    /// Returns the name of each step, in order.
    pub(super) fn log(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of faults of the plan that have happened.
    pub(super) fn faults_met(&self) -> usize {
        let steps = self.log().len();
        self.plan.faults().iter().filter(|(step, _)| *step as usize <= steps).count()
    }

    /// Returns the number of repeats that the faults so far allow. A process that stands still may have a run under
    /// way, receive the message once more, and have left a record of it behind.
    pub(super) fn repeats(&self) -> usize {
        let steps = self.log().len();
        let met = self.plan.faults().iter().filter(|(step, _)| *step as usize <= steps);
        met.map(|(_, fault)| if *fault == Fault::Freeze { 3 } else { 1 }).sum()
    }

    /// Numbers a call, and says what goes wrong with it.
    fn step(&self, what: &'static str) -> Option<Fault> {
        let mut log = self.log();
        log.push(what);
        self.stepped.notify_waiters();
        let step = u32::try_from(log.len()).unwrap_or(u32::MAX);
        if self.plan.lost_store(step).is_some() {
            self.lost
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert_with(Instant::now);
        }
        self.plan.at(step)
    }

    /// Returns the kind of every error of the store, if it is gone for good.
    pub(super) fn lost_store(&self) -> Option<StoreErrorKind> {
        self.plan.lost_store(u32::try_from(self.log().len()).unwrap_or(u32::MAX))
    }

    /// Returns when the store was gone for good, if it is.
    pub(super) fn lost_at(&self) -> Option<Instant> {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A life of the program under test. After its death, no call that it makes has an effect or returns.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) world: Arc<World>,
    died: CancellationToken,
    stop: CancellationToken,
    froze: CancellationToken,
    thaws: Arc<Mutex<Option<Instant>>>,
}

impl Process {
    pub(super) fn new(world: Arc<World>) -> Self {
        let token = CancellationToken::new;
        Self { world, died: token(), stop: token(), froze: token(), thaws: Arc::default() }
    }

    /// Is cancelled when the process has died.
    pub(super) fn died(&self) -> &CancellationToken {
        &self.died
    }

    /// Is cancelled when the process is to stop orderly.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Dies: the caller does not go on.
    pub(super) async fn die<T>(&self) -> T {
        self.died.cancel();
        pending().await
    }

    /// Is cancelled when the process has been frozen.
    pub(super) fn froze(&self) -> &CancellationToken {
        &self.froze
    }

    /// Goes on as long as the process lives: not while it is frozen, and not when it has died.
    pub(super) async fn live(&self) {
        let thaws = *self.thaws.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thaws) = thaws {
            sleep_until(thaws).await;
        }
        if self.died.is_cancelled() {
            pending().await
        }
    }

    async fn freeze(&self) {
        let thaws = Instant::now() + FROZEN;
        *self.thaws.lock().unwrap_or_else(PoisonError::into_inner) = Some(thaws);
        self.world.frozen_until(thaws);
        self.froze.cancel();
        self.live().await;
    }

    /// A call of something outside the process.
    pub(super) async fn call<T, E, F>(
        &self,
        what: &'static str,
        effect: impl FnOnce() -> F,
        error: Failing<E>,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.live().await;
        let fault = self.world.gate.step(what);
        match fault {
            None => {}
            Some(Fault::CrashBefore) => return self.die().await,
            Some(Fault::Error) => return Err(error(what, StoreErrorKind::Unavailable)),
            Some(Fault::Hang) => {
                sleep(LONG).await;
                self.live().await;
                return Err(error(what, StoreErrorKind::Unavailable));
            }
            // The effect comes when another process may have the message already.
            Some(Fault::Slow) => sleep(LONG).await,
            Some(Fault::Stop) => self.stop.cancel(),
            Some(Fault::Freeze) => self.freeze().await,
            Some(Fault::CrashAfter | Fault::Unheard | Fault::Gone | Fault::Broken) => {}
        }
        // Looked up before others go on: a call that is on its way when the store goes still has its effect.
        let lost = self.world.gate.lost_store().filter(|_| is_of_the_store(what));
        // A request travels, and so does its answer: others go on meanwhile.
        yield_now().await;
        self.live().await;
        let answer = match lost {
            Some(kind) => Err(error(what, kind)),
            None => effect().await,
        };
        // Between the effect and its answer a crash leaves exactly this: G1 has to hold here.
        self.world.inspect(what);
        match fault {
            Some(Fault::CrashAfter) => self.die().await,
            Some(Fault::Unheard) => {
                yield_now().await;
                self.live().await;
                Err(error(what, StoreErrorKind::Unavailable))
            }
            _ => {
                yield_now().await;
                self.live().await;
                answer
            }
        }
    }

    /// A run of the handler: a call that has no errors of its own.
    pub(super) async fn run<T, F>(&self, effect: impl FnOnce() -> F) -> Result<T, Infallible>
    where
        F: Future<Output = Result<T, Infallible>>,
    {
        self.live().await;
        let fault = self.world.gate.step("handle");
        match fault {
            Some(Fault::CrashBefore) => return self.die().await,
            Some(Fault::Stop) => self.stop.cancel(),
            Some(Fault::Freeze) => self.freeze().await,
            Some(Fault::CrashAfter) => {
                let _ = effect().await;
                return self.die().await;
            }
            // Of the other faults `applies` leaves a handler only `Slow`.
            Some(_) => sleep(LONG).await,
            None => {}
        }
        yield_now().await;
        self.live().await;
        let answer = effect().await;
        self.live().await;
        answer
    }

    /// A message has arrived. Does not wait, so that it cannot be lost here; `Err` when it is as if it had not.
    pub(super) fn arrives(&self, what: &'static str) -> Result<(), Arrival> {
        if self.died.is_cancelled() {
            return Err(Arrival::Never);
        }
        match self.world.gate.step(what) {
            None => Ok(()),
            Some(Fault::Stop) => {
                self.stop.cancel();
                Ok(())
            }
            Some(Fault::CrashBefore | Fault::CrashAfter) => {
                self.died.cancel();
                Err(Arrival::Never)
            }
            // Every other fault makes the source fail once. It keeps the message for its next call.
            Some(_) => Err(Arrival::Later),
        }
    }
}

/// Reason why a message that arrived is not yielded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrival {
    /// The process has died.
    Never,
    /// The source failed; the next call yields it.
    Later,
}
