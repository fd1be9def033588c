//! A payments consumer whose dead letters are in a file. Nothing to install.
//!
//! Run with `cargo run -p quickstart`. It reads the shipped feed, charges each payment with a provider that is having a
//! bad day, and writes what it has to give up on to `./dlq.db`. Then look at the letters with the `dlq` command, send
//! some back, and run it again with `-- --repaired`: the provider works again, and what was sent back is handled.

mod feed;
mod payment;
mod provider;
mod summary;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tower_dlq::consumer::Consumer;
use tower_dlq::core::memory::MemoryBroker;
use tower_dlq::dlq_handler;
use tower_dlq::extract::{Attempt, Json, State};
use tower_dlq::sql::sqlite::SqliteStore;

use payment::Payment;
use provider::{ChargeError, Provider};
use summary::{Progress, Summary};

const FILE: &str = "dlq.db";

#[dlq_handler(
    name = "payments.charge",
    max_attempts = 3,
    backoff = exponential("20ms", max = "200ms", jitter = full),
    timeout = "250ms",
    idempotency_key = |payment: &Payment| payment.id.clone(),
)]
async fn charge(
    Json(payment): Json<Payment>,
    attempt: Attempt,
    State(provider): State<Provider>,
) -> Result<(), ChargeError> {
    provider.charge(&payment.card, payment.amount_cents, attempt.number()).await
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            let mut inner = error.source();
            while let Some(error) = inner {
                eprintln!("  because: {error}");
                inner = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let repaired = std::env::args().any(|arg| arg == "--repaired");
    payment::accept_amounts_as_text(repaired);
    let store = SqliteStore::open(FILE).await?;
    let provider = Provider::new(repaired);
    let broker = MemoryBroker::new().stream("payments");
    let messages = if repaired { 0 } else { feed::publish(&broker)? };
    let summary = Summary::begin(&store).await?;

    let charge =
        charge::handler().with_state(provider.clone()).idempotency(store.idempotency()).build()?;
    let consumer = Consumer::builder(broker.source(summary::GROUP))
        .handler(charge)
        .dead_letters(store.clone())
        .shutdown_deadline(Duration::from_secs(10))
        .build()?;

    // A handler's panic ends up in its letter; the hook would print it across the progress line as well.
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // It runs until the feed is consumed and nothing that was sent back is left.
    let progress = Progress::new(messages);
    let report = consumer.run(progress.until_idle(&broker, &store)).await;
    progress.done();
    std::panic::set_hook(loud);
    summary.print(&store, messages, provider.charged(), &report).await?;
    if report.unsettled > 0 {
        return Err(format!("{report}").into());
    }
    Ok(())
}
