//! Two handlers that call one provider, within its rate limit. Nothing to install.
//!
//! Run with `cargo run -p rate-limit-example`.

use std::error::Error;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tower::limit::RateLimitLayer;
use tower::timeout::{TimeoutLayer, error::Elapsed};
use tower_dlq::classify::ClassifyErrorsLayer;
use tower_dlq::core::{BoxError, PageRequest};
use tower_dlq::handler::ShareLayer;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

/// Number of calls that the provider allows in one window.
const CALLS: u64 = 10;
const WINDOW: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct Payment {
    card: String,
}

#[derive(Debug, thiserror::Error, Classify)]
#[error("the provider is offline")]
#[classify(transient)]
struct Offline;

/// Calls the provider, which does not answer for one bank.
async fn call(card: &str) -> Result<(), Offline> {
    if card == "silent-bank" {
        std::future::pending::<()>().await;
    }
    Ok(())
}

#[dlq_handler(name = "payments.charge", max_attempts = 3)]
async fn charge(Json(payment): Json<Payment>) -> Result<(), Offline> {
    call(&payment.card).await
}

#[dlq_handler(name = "payments.refund", max_attempts = 3)]
async fn refund(Json(payment): Json<Payment>) -> Result<(), Offline> {
    call(&payment.card).await
}

/// Judges what a layer fails with. Errors of the handlers are judged by their own `Classify`.
fn judge(error: &BoxError) -> ErrorClass {
    // Money may have moved: somebody has to look before it is tried again.
    if error.is::<Elapsed>() { ErrorClass::Permanent } else { ErrorClass::Transient }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new());
    let payments = broker.clone().stream("payments");
    let cards = std::iter::repeat_n("visa", 40).chain(["silent-bank"]);
    for (number, card) in (0..).zip(cards) {
        let subject = if number % 4 == 3 { "payments.refund" } else { "payments.charge" };
        payments.publish(Message::new(subject, format!(r#"{{"card":"{card}"}}"#)));
    }

    // Each handler has a service of the first layer; both have the one service of the second.
    let hangs = TimeoutLayer::new(Duration::from_millis(100));
    let router = Router::new()
        .name("payments")
        .route("payments.charge", charge::handler())
        .route("payments.refund", refund::handler())
        .layer((ClassifyErrorsLayer::new(judge), hangs))
        .layer(ShareLayer::new(RateLimitLayer::new(CALLS, WINDOW)))
        .build()?;
    let consumer = Consumer::on(MemoryTransport::new("payments"), &broker)
        .handler(router)
        .dead_letters(store.clone())
        .open()
        .await?;

    let began = Instant::now();
    let report = consumer.run(payments.idle("payments")).await;
    let took = began.elapsed();
    println!(
        "41 messages in {:.1} s: {} handled, {} dead",
        took.as_secs_f64(),
        report.handled,
        report.dead
    );
    let letters = DeadLetters::new(store).list(Filter::new(), PageRequest::default()).await?;
    for letter in letters.letters {
        println!("{}: {}, {}", letter.consumer, letter.reason, letter.error);
    }
    // 41 calls are four whole windows and one call.
    if took < WINDOW * 4 {
        return Err(format!("the provider was called too often: 41 times in {took:?}").into());
    }
    Ok(())
}
