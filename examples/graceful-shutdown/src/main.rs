//! Example of a graceful stop: a consumer finishes the messages that run and gives back the rest.
//!
//! `cargo run -p graceful-shutdown-example` publishes ten slow messages, stops the consumer as soon as four of them run, and
//! starts a second consumer that handles the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

/// Counts the runs that have begun.
type Begun = Arc<Semaphore>;

#[dlq_handler(name = "mail.send", max_attempts = 3, concurrency = 4)]
async fn send(Json(_number): Json<u32>, State(begun): State<Begun>) -> Result<(), std::io::Error> {
    begun.add_permits(1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

async fn consumer(
    broker: &MemoryBroker,
    begun: &Begun,
) -> Result<Consumer, Box<dyn std::error::Error>> {
    let consumer = Consumer::on(MemoryTransport::new("mail"), broker)
        .handler(send::handler().with_state(Arc::clone(begun)).build()?)
        .dead_letters(MemoryStore::new())
        // Less than the orchestrator gives: 30 s on Kubernetes, unless told otherwise.
        .shutdown_deadline(Duration::from_secs(20))
        .open()
        .await?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("mail");
    for number in 0..10 {
        broker.publish(Message::new("mail.new", number.to_string()));
    }
    let begun = Begun::new(Semaphore::new(0));

    // A service says `consumer.run_until_signal()`, which stops at SIGTERM and SIGINT. Here the signal is that four run.
    let four_run = async {
        let _ = begun.acquire_many(4).await;
    };
    let report = consumer(&broker, &begun).await?.run(four_run).await;
    println!(
        "the first consumer stopped: {} handled, {} unsettled",
        report.handled, report.unsettled
    );

    let report = consumer(&broker, &begun).await?.run(broker.idle("mail.send")).await;
    println!("the second one went on: {} handled, {} dead", report.handled, report.dead);
    Ok(())
}
