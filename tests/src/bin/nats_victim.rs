//! A consumer on NATS that the tests kill: `nats-victim FOLDER REPLICAS URL…`. It runs until nothing is left.

use std::path::PathBuf;
use std::time::Duration;

use dlq_nats::NatsTransport;
use dlq_nats::async_nats::{self, jetstream};
use dlq_tests::work::{CONSUMER, work};
use dlq_tests::{JOURNAL, Journal, START, STREAM};
use dlq_tower::consumer::{Consumer, signal};

/// The stream in which messages wait for their next attempt.
const RETRIES: &str = "DLQ_RETRY";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    dlq_tests::log();
    const USAGE: &str = "usage: nats-victim FOLDER REPLICAS URL…";
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or(USAGE)?);
    let journal = Journal::open(&folder.join(JOURNAL))?;
    journal.note(START, 0)?;
    let replicas = args.next().ok_or(USAGE)?.parse()?;
    let client = async_nats::connect(args.collect::<Vec<_>>()).await?;
    let messages = NatsTransport::new(STREAM)
        .name(CONSUMER)
        .lease(Duration::from_secs(2))
        .prefetch(32)
        .replicas(replicas);
    let consumer = Consumer::on(messages, &client)
        .handler(work::handler().with_state(journal).build()?)
        .max_in_flight(64)
        .open()
        .await?;
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
