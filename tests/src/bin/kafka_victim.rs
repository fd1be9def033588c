//! A consumer on Kafka that the tests kill: `kafka-victim FOLDER BOOTSTRAP`. It runs until nothing is left, or until it is
//! told to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlq_tests::kafka::{Group, brokers, consumer};
use dlq_tests::work::work;
use dlq_tests::{JOURNAL, Journal, START};
use dlq_tower::consumer::{Consumer, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    dlq_tests::log();
    const USAGE: &str = "usage: kafka-victim FOLDER BOOTSTRAP";
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or(USAGE)?);
    let bootstrap = args.next().ok_or(USAGE)?;
    let journal = Journal::open(&folder.join(JOURNAL))?;
    journal.note(START, 0)?;
    let consumer = Consumer::on(consumer(), &brokers(&bootstrap))
        .handler(work::handler().with_state(journal).build()?)
        .max_in_flight(64)
        .open()
        .await?;
    let group = Arc::new(Group::at(&bootstrap)?);
    let report = consumer
        .run(async {
            tokio::select! {
                () = signal() => {}
                () = idle(&group) => {}
            }
        })
        .await;
    println!("{report}");
    Ok(())
}

/// Until every message is done and none waits for a retry.
async fn idle(group: &Arc<Group>) {
    for round in 0_u32.. {
        let group = Arc::clone(group);
        let left = tokio::task::spawn_blocking(move || group.left()).await;
        if matches!(left, Ok(Ok(None))) {
            return;
        }
        if round % 100 == 99 {
            eprintln!("left to do: {left:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
