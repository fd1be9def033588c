//! A consumer that the tests kill: `victim FOLDER [--repaired] [--slow | --slower]`. It runs until nothing is left, or `SIGTERM`.

use std::path::PathBuf;
use std::time::Duration;

use dlq_sql::sqlite::SqliteStore;
use dlq_tests::{FileBroker, JOURNAL, Journal, Kind, START, STORE, kind};
use dlq_tower::consumer::{Consumer, signal};
use dlq_tower::core::store::Claims as _;
use dlq_tower::extract::{Attempt, Json, State};
use dlq_tower::{Classify, dlq_handler};

#[derive(Debug, thiserror::Error, Classify)]
enum WorkError {
    #[error("the other side is down")]
    #[classify(transient)]
    Down,
    #[error("this will never work")]
    #[classify(permanent)]
    Never,
}

#[derive(Clone)]
struct World {
    journal: Journal,
    repaired: bool,
    pause: Duration,
}

#[dlq_handler(
    name = "tests.work",
    max_attempts = 3,
    backoff = constant("5ms"),
    max_crashes = 5,
    idempotency_key = |n: &u64| n.to_string(),
)]
async fn work(
    Json(n): Json<u64>,
    attempt: Attempt,
    State(world): State<World>,
) -> Result<(), WorkError> {
    world.journal.note("run", n).map_err(|_| WorkError::Down)?;
    tokio::time::sleep(world.pause).await;
    match kind(n) {
        Kind::Flaky if attempt.number() == 1 => return Err(WorkError::Down),
        Kind::Down if !world.repaired => return Err(WorkError::Down),
        Kind::Permanent => return Err(WorkError::Never),
        Kind::Panics => panic!("message {n} panics"),
        Kind::Kills => std::process::abort(),
        _ => {}
    }
    world.journal.note("ok", n).map_err(|_| WorkError::Down)
}

/// Longer than a busy machine keeps a process waiting: one that ends while its process lives would count a crash.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    dlq_tests::log();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder =
        PathBuf::from(args.first().ok_or("usage: victim FOLDER [--repaired] [--slow | --slower]")?);
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let broker = FileBroker::open(&folder.join(JOURNAL))?;
    broker.journal().note(START, 0)?;
    let store = SqliteStore::open(folder.join(STORE)).await?;
    let pauses = [("--slower", 2_000), ("--slow", 50)].into_iter();
    let pause = pauses.filter(|(flag, _)| has(flag)).map(|(_, pause)| pause).next().unwrap_or(1);
    let pause = Duration::from_millis(pause);
    let world = World { journal: broker.journal(), repaired: has("--repaired"), pause };
    let handler = work::handler()
        .with_state(world)
        .idempotency(store.idempotency())
        .idempotency_lease(LEASE)
        .build()?;
    let consumer = Consumer::builder(broker.clone())
        .handler(handler)
        .dead_letters(store.clone())
        .claim_lease(LEASE)
        .poll(Duration::from_millis(20))
        .max_in_flight(32)
        .shutdown_deadline(Duration::from_secs(60))
        .build()?;
    let report = consumer
        .run(async {
            tokio::select! {
                () = signal() => {}
                () = idle(&broker, &store) => {}
            }
        })
        .await;
    println!("{report}");
    if report.unsettled > 0 { Err(report.to_string().into()) } else { Ok(()) }
}

/// Until every message is acknowledged and nothing in the store is due or being run.
async fn idle(broker: &FileBroker, store: &SqliteStore) {
    while !broker.is_empty() || !matches!(store.next_due(Vec::new()).await, Ok(None)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
