use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::check::{check, check_without_store};
use super::flaw::Flaw;
use super::gate::Process;
use super::handler::told;
use super::plan::Plan;
use super::program::{Parts, Program, Pulse};
use super::scenario::Scenario;
use super::store::{SteppedSink, SteppedStore};
use super::transport::{SteppedRetryQueue, SteppedSource};
use super::world::{CONSUMER, World};

/// Maximum time for a world to come to rest.
// Time is paused, so that two days cost nothing.
const HORIZON: Duration = Duration::from_secs(48 * 3600);
/// Maximum number of times that a process may die or stop in one case.
const MOST_LIVES: usize = 40;
/// Time for which a world has to be at rest, so that calls after the last settlement are steps as well.
const STILL: Duration = Duration::from_secs(2);

/// Time for which a world is watched after its store is gone for good, and the last process after it was started:
/// longer than any lease, pause and standstill.
const BEREFT: Duration = Duration::from_secs(200);

/// Result of a case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Name of each step.
    pub(super) steps: Vec<&'static str>,
    /// True if every fault of the plan has happened.
    pub(super) met: bool,
    pub(super) violations: Vec<String>,
}

/// Runs a scenario by a plan, on a runtime of its own under paused time.
pub(super) fn run(
    program: &dyn Program,
    scenario: &Arc<Scenario>,
    (flaw, conflicts): (Option<Flaw>, Option<u64>),
    plan: &Plan,
) -> Case {
    // On one thread, and with time that passes only when all wait, the same plan takes the same steps.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be built");
    runtime.block_on(async {
        let world = World::new(Arc::clone(scenario), flaw, plan.clone()).with_conflicts(conflicts);
        let world = Arc::new(world);
        if timeout(HORIZON, live(program, &world)).await.is_err() {
            world.violated(format!("G1: no rest after {HORIZON:?}"));
        }
        match world.gate.lost_store() {
            Some(_) => check_without_store(&world),
            None => check(&world),
        }
        let steps = world.gate.log().clone();
        let met = world.gate.faults_met() == plan.faults().len();
        Case { steps, met, violations: world.violations() }
    })
}

/// End of a life of the program.
enum End {
    Died,
    Froze,
    Stopped,
    /// Everything has come to rest while it ran.
    Rested,
}

/// Starts the program again and again until everything has come to rest.
async fn live(program: &dyn Program, world: &Arc<World>) {
    let mut frozen = Vec::new();
    for _ in 0..MOST_LIVES {
        let process = Process::new(Arc::clone(world));
        // It is a task, so that a panic can be told from an end, and dropping the set is the death.
        let mut running = JoinSet::new();
        let health = Pulse::default();
        running.spawn(program.run(parts(&process, health.clone())));
        let end = tokio::select! {
            // A death comes first: the world may look at rest at the very step at which the process dies.
            biased;
            () = process.died().cancelled() => End::Died,
            () = process.froze().cancelled() => End::Froze,
            Some(ended) = running.join_next() => {
                if ended.is_err_and(|error| error.is_panic()) {
                    return world.violated("G9: the consumer panicked".to_owned());
                }
                if !process.stop().is_cancelled() {
                    return world.violated("G9: the consumer has ended by itself".to_owned());
                }
                End::Stopped
            }
            () = rest(world, Instant::now()) => End::Rested,
        };
        match end {
            // It goes on beside the next one when it thaws.
            End::Froze => frozen.push((process, running, health)),
            End::Died | End::Stopped => kill(process, running).await,
            End::Rested => {
                // One that stood still goes on with what it has.
                let are_well = health.is_well() && frozen.iter().all(|(.., one)| one.is_well());
                if world.gate.lost_store().is_some() && are_well && !world.is_settled() {
                    world.violated(
                        "G9: the store is gone, messages wait for it, and the consumer says that it is well"
                            .to_owned(),
                    );
                }
                kill(process, running).await;
                for (process, running, _) in frozen {
                    kill(process, running).await;
                }
                return;
            }
        }
        if world.is_restless() {
            return;
        }
    }
    // A world without its store does not come to rest, which is no fault of the consumer.
    if world.gate.lost_store().is_none() {
        world.violated(format!("G1: no rest after {MOST_LIVES} lives"));
    }
}

/// Whatever it still does has no effect any more.
async fn kill(process: Process, mut running: JoinSet<()>) {
    process.died().cancel();
    running.shutdown().await;
}

/// Waits until nothing happens any more, and the operator has nothing left to do.
async fn rest(world: &World, since: Instant) {
    loop {
        // The future is made before the world is looked at, so that no step in between is missed.
        let stepped = world.gate.stepped.notified();
        if world.is_restless() {
            return;
        }
        if let Some(lost) = world.gate.lost_at() {
            // What waits for the store waits for ever.
            sleep_until(lost.max(since) + BEREFT).await;
            return;
        }
        if let Some(thaws) = world.thaws().filter(|thaws| *thaws > Instant::now()) {
            sleep_until(thaws).await;
            continue;
        }
        if !world.is_at_rest() {
            // A world can also come to rest by time alone, without a step to wake this.
            let _ = timeout(Duration::from_secs(3_600), stepped).await;
            continue;
        }
        let steps = world.gate.log().len();
        sleep(STILL).await;
        // The operator acts only in a world that stays at rest, so that no order meets unfinished work.
        if world.gate.log().len() == steps && world.is_at_rest() && !world.obey() {
            return;
        }
    }
}

fn parts(process: &Process, health: Pulse) -> Parts {
    let world = &process.world;
    let scenario = &world.scenario;
    Parts {
        source: SteppedSource::new(process.clone(), world.broker.source(CONSUMER)),
        handler: told(process),
        store: SteppedStore::new(process.clone(), world.store_of_program()),
        sink: SteppedSink::new(process.clone(), world.sink.clone()),
        feed: scenario.feed.map(|_| SteppedSink::feed(process.clone(), world.feed.clone())),
        queue: SteppedRetryQueue::new(process.clone(), world.broker.retry_queue()),
        record: scenario.record,
        schedule: scenario.schedule.clone(),
        clock: world.clock.clone(),
        stop: process.stop().clone(),
        health,
    }
}
