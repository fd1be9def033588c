//! Example of order by key: messages of one customer stay in order while one of them is retried.
//!
//! `cargo run -p order-by-key-example` handles changes of two accounts. The first change of `ana` fails once: her later
//! changes wait for it, and those of `ben` do not.

use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

#[derive(Deserialize)]
struct Change {
    account: String,
    number: u32,
}

#[derive(Debug, thiserror::Error, Classify)]
#[error("the database is busy")]
#[classify(transient)]
struct Busy;

type Applied = Arc<Mutex<Vec<String>>>;

#[dlq_handler(
    name = "accounts.apply",
    max_attempts = 3,
    backoff = constant("500ms"),
    order_by = |change: &Change| change.account.clone(),
)]
async fn apply(
    Json(change): Json<Change>,
    attempt: Attempt,
    State(applied): State<Applied>,
) -> Result<(), Busy> {
    if change.account == "ana" && change.number == 1 && attempt.number() == 1 {
        return Err(Busy);
    }
    let Change { account, number } = change;
    applied.lock().expect("no run panics with the lock").push(format!("{account} {number}"));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("accounts");
    for number in 1..=3 {
        for account in ["ana", "ben"] {
            let payload = format!(r#"{{"account":"{account}","number":{number}}}"#);
            broker.publish(Message::new("accounts.changed", payload));
        }
    }
    let applied = Applied::default();
    let consumer = Consumer::on(MemoryTransport::new("accounts"), &broker)
        .handler(apply::handler().with_state(applied.clone()).build()?)
        .dead_letters(MemoryStore::new())
        .open()
        .await?;
    let report = consumer.run(broker.idle("accounts.apply")).await;
    assert_eq!(report.handled, 6, "{report}");
    println!("{}", applied.lock().expect("no run panics with the lock").join(", "));
    Ok(())
}
