//! A partition moves to another consumer of the group while records of it wait for their time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dlq_kafka::{Brokers, KafkaTransport, Ladder};
use dlq_tower::consumer::{Consumer, Ended, Report};
use dlq_tower::core::policy::Backoff;
use dlq_tower::core::protocol::split;
use dlq_tower::core::{SystemClock, Timestamp};
use dlq_tower::extract::{Attempt, Json, State};
use dlq_tower::handler::{HandlerConfig, HandlerOverrides};
use dlq_tower::{Classify, dlq_handler};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kafka::{Kafka, create, letters, publish, read};
use crate::servers::Servers;

const TOPIC: &str = "moving";
/// Both partitions of the stage have half of the messages, about.
const MESSAGES: u64 = 240;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error, Classify)]
#[error("the other side is down")]
#[classify(transient)]
struct Down;

/// A run of a message.
#[derive(Clone, Copy, Debug)]
struct Run {
    n: u64,
    attempt: u32,
    by: char,
    at: Timestamp,
}

type Runs = (char, mpsc::UnboundedSender<Run>);

#[dlq_handler(name = "tests.moving", max_attempts = 2, max_in_process_delay = "1ms")]
async fn fail(
    Json(n): Json<u64>,
    attempt: Attempt,
    State((by, runs)): State<Runs>,
) -> Result<(), Down> {
    let run = Run { n, attempt: attempt.number(), by, at: SystemClock::shared().now() };
    runs.send(run).map_err(|_| Down)?;
    Err(Down)
}

/// A consumer that runs until it is told to stop, and waits for so many seconds before it tries again.
async fn start(
    tasks: &mut JoinSet<Report>,
    bootstrap: &str,
    wait: u64,
    runs: Runs,
) -> oneshot::Sender<()> {
    let brokers = Brokers::at(bootstrap).with("heartbeat.interval.ms", "100");
    let messages = KafkaTransport::new(TOPIC)
        .name("tests.moving")
        .ladder(Ladder::of([Duration::from_secs(wait)]))
        .create_missing_topics();
    let mut waits = HandlerOverrides::default();
    waits.backoff = Some(Backoff::constant(Duration::from_secs(wait)));
    let waits = HandlerConfig::new().with("tests.moving", waits);
    let consumer = Consumer::on(messages, &brokers)
        .handler(fail::handler().with_state(runs).configure(&waits).build().unwrap())
        // Every record fails, which would be one.
        .without_outage_protection()
        .open()
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel();
    tasks.spawn(consumer.run(async {
        let _ = stopped.await;
    }));
    stop
}

/// So many runs.
async fn take(runs: &mut mpsc::UnboundedReceiver<Run>) -> Vec<Run> {
    let mut taken = Vec::new();
    while taken.len() < MESSAGES as usize {
        taken.push(timeout(PATIENCE, runs.recv()).await.expect("a message runs").unwrap());
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_in_a_partition_that_moves_runs_once_and_never_early() {
    // A machine so busy that nothing moves before it is due is given more time.
    for wait in [3, 12, 48] {
        let Some(broker) = Kafka::one() else { return };
        if moves(broker, wait).await {
            return;
        }
    }
    panic!("the partitions do not move while anything waits");
}

/// Whether partitions moved while records waited for so many seconds, of which none was lost, early, or run twice.
async fn moves(broker: Servers, wait: u64) -> bool {
    let bootstrap = broker.urls().join(",");
    create(&bootstrap, TOPIC, 2, 1).await;
    publish(&bootstrap, TOPIC, 2, MESSAGES).await;
    let (noted, mut runs) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();

    let one = start(&mut tasks, &bootstrap, wait, ('a', noted.clone())).await;
    let first = take(&mut runs).await;
    if first.iter().any(|run| run.attempt != 1) {
        return false;
    }
    let two = start(&mut tasks, &bootstrap, wait, ('b', noted)).await;
    let second = take(&mut runs).await;
    drop((one, two));
    while let Some(report) = tasks.join_next().await {
        let report = report.unwrap();
        assert_eq!((report.ended, report.unsettled), (Ended::Stopped, 0));
    }
    assert!(runs.recv().await.is_none(), "none runs more often");

    let mut due = BTreeMap::new();
    for record in read(&bootstrap, &format!("moving.tests.moving.retry.{wait}s"), 2) {
        let n: u64 = std::str::from_utf8(&record.value.unwrap()).unwrap().parse().unwrap();
        let before = due.insert(n, split(&record.headers).1.due.unwrap());
        assert_eq!(before, None, "message {n} was written twice");
    }
    let late = second.iter().map(|run| {
        assert!((run.attempt, run.at >= due[&run.n]) == (2, true), "{run:?}, due {}", due[&run.n]);
        run.at.since(due[&run.n])
    });
    let late = late.max().unwrap();
    let moved = second.iter().filter(|run| run.by == 'b').count();
    let all: BTreeSet<u64> = (0..MESSAGES).collect();
    let ran: BTreeSet<u64> = second.iter().map(|run| run.n).collect();
    assert_eq!(ran, all);
    let letters = letters(&bootstrap, "moving.dlq", 2);
    let dead: BTreeSet<_> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!((letters.len(), dead.len()), (all.len(), all.len()), "each has one letter");
    println!(
        "{MESSAGES} wait for {wait} s, {moved} of them move: none lost, none early, at most {late:?} late"
    );
    moved >= 100
}
