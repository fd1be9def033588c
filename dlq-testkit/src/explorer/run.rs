use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::check::check;
use super::flaw::Flaw;
use super::gate::{MOST_STEPS, Process};
use super::handler::told;
use super::plan::Plan;
use super::program::{Parts, Program};
use super::scenario::Scenario;
use super::store::{SteppedSink, SteppedStore};
use super::transport::{SteppedLane, SteppedSource};
use super::world::{CONSUMER, World};

/// How long a world may take to come to rest.
const HORIZON: Duration = Duration::from_secs(48 * 3600);
/// How often a process may die or stop in one case.
const MOST_LIVES: usize = 40;
/// How long a world has to be at rest, so that calls which come after the last settlement are steps as well.
const STILL: Duration = Duration::from_secs(2);

/// What came of one case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// What each step was.
    pub(super) steps: Vec<&'static str>,
    /// Whether every fault of the plan has happened.
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
        check(&world);
        let steps = world.gate.log().clone();
        let met = world.gate.faults_met() == plan.faults().len();
        Case { steps, met, violations: world.violations() }
    })
}

/// How one life of the program ended.
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
        let mut running = JoinSet::new();
        running.spawn(program.run(parts(&process)));
        let end = tokio::select! {
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
            () = rest(world) => End::Rested,
        };
        match end {
            // It goes on beside the next one when it thaws.
            End::Froze => frozen.push((process, running)),
            End::Died | End::Stopped => kill(process, running).await,
            End::Rested => {
                kill(process, running).await;
                for (process, running) in frozen {
                    kill(process, running).await;
                }
                return;
            }
        }
        if world.gate.log().len() > MOST_STEPS {
            return world.violated(format!("G1: no rest after {MOST_STEPS} steps"));
        }
    }
    world.violated(format!("G1: no rest after {MOST_LIVES} lives"));
}

/// Whatever it still does has no effect any more.
async fn kill(process: Process, mut running: JoinSet<()>) {
    process.died().cancel();
    running.shutdown().await;
}

/// Waits until nothing happens any more, and the operator has nothing left to do.
async fn rest(world: &World) {
    loop {
        let stepped = world.gate.stepped.notified();
        if world.gate.log().len() > MOST_STEPS {
            world.violated(format!("G1: no rest after {MOST_STEPS} steps"));
            return;
        }
        if let Some(thaws) = world.thaws().filter(|thaws| *thaws > Instant::now()) {
            sleep_until(thaws).await;
            continue;
        }
        if !world.is_at_rest() {
            let _ = timeout(Duration::from_secs(3_600), stepped).await;
            continue;
        }
        let steps = world.gate.log().len();
        sleep(STILL).await;
        if world.gate.log().len() == steps && world.is_at_rest() && !world.obey() {
            return;
        }
    }
}

fn parts(process: &Process) -> Parts {
    let world = &process.world;
    let scenario = &world.scenario;
    Parts {
        source: SteppedSource::new(process.clone(), world.broker.source(CONSUMER)),
        handler: told(process),
        store: SteppedStore::new(process.clone(), world.store_of_program()),
        sink: SteppedSink::new(process.clone(), world.sink.clone()),
        feed: scenario.feed.map(|_| SteppedSink::feed(process.clone(), world.feed.clone())),
        lane: SteppedLane::new(process.clone(), world.broker.retry_lane()),
        record: scenario.record,
        schedule: scenario.schedule.clone(),
        clock: world.clock.clone(),
        stop: process.stop().clone(),
    }
}
