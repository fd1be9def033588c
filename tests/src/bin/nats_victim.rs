//! A consumer on NATS that the tests kill: `nats-victim FOLDER REPLICAS URL…`. It runs until nothing is left.

use std::path::PathBuf;
use std::time::Duration;

use dlq_nats::async_nats::{self, jetstream};
use dlq_nats::{DlqStream, NatsConsumer, NatsCrashMarks, NatsSink, RetryStream};
use dlq_tests::nats::{CONSUMER, Kind, STREAM, kind};
use dlq_tests::{JOURNAL, Journal, START};
use dlq_tower::consumer::{Consumer, signal};
use dlq_tower::extract::{Attempt, Json, State};
use dlq_tower::{Classify, dlq_handler};

/// The stream in which messages wait for their next attempt.
const RETRIES: &str = "DLQ_RETRY";

#[derive(Debug, thiserror::Error, Classify)]
enum WorkError {
    #[error("the other side is down")]
    #[classify(transient)]
    Down,
    #[error("this will never work")]
    #[classify(permanent)]
    Never,
}

// Every retry takes the way through the retry lane.
#[dlq_handler(
    name = "tests.work",
    max_attempts = 3,
    backoff = constant("50ms"),
    hold_limit = "1ms",
    max_crashes = 3
)]
async fn work(
    Json(n): Json<u64>,
    attempt: Attempt,
    State(journal): State<Journal>,
) -> Result<(), WorkError> {
    journal.note("run", n).map_err(|_| WorkError::Down)?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    match kind(n) {
        Kind::Flaky if attempt.number() == 1 => return Err(WorkError::Down),
        Kind::Poison => return Err(WorkError::Never),
        Kind::Kills => std::process::abort(),
        _ => {}
    }
    journal.note("ok", n).map_err(|_| WorkError::Down)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "usage: nats-victim FOLDER REPLICAS URL…";
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or(USAGE)?);
    let journal = Journal::open(&folder.join(JOURNAL))?;
    journal.note(START, 0)?;
    let replicas = args.next().ok_or(USAGE)?.parse()?;
    let client = async_nats::connect(args.collect::<Vec<_>>()).await?;
    let messages = NatsConsumer::new(STREAM, CONSUMER)
        .with_lease(Duration::from_secs(2))
        .with_prefetch(32)
        .with_retries(RetryStream::new().with_replicas(replicas));
    let handler = work::handler().with_state(journal).build()?;
    let consumer = Consumer::builder(messages.source(&client).await?)
        .handler(handler)
        .retry_lane(messages.retry_lane(&client).await?)
        .sink(NatsSink::open(&client, DlqStream::new().with_replicas(replicas)).await?)
        .crash_marks(NatsCrashMarks::open(&client, "dlq-marks", replicas).await?)
        .max_in_hand(64)
        .build()?;
    let context = jetstream::new(client);
    let report = consumer
        .run(async {
            tokio::select! {
                () = signal() => {}
                () = idle(&context) => {}
            }
        })
        .await;
    println!("{report}");
    Ok(())
}

/// Until every message is acknowledged and none waits for a retry.
async fn idle(context: &jetstream::Context) {
    while !matches!(nothing_is_left(context).await, Ok(true)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn nothing_is_left(context: &jetstream::Context) -> Result<bool, async_nats::Error> {
    let stream = context.get_stream(STREAM).await?;
    let durable = CONSUMER.replace('.', "=2E");
    let main = stream.consumer_info(&durable).await?;
    let waiting = context.get_stream(RETRIES).await?.cached_info().state.messages;
    Ok(main.num_pending == 0 && main.num_ack_pending == 0 && waiting == 0)
}
