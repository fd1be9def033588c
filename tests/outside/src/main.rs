//! A consumer in memory with a rate limit, then a router of two handlers on NATS whose letters are sent back to one of them.

mod nats;

use std::time::Duration;

use serde::Deserialize;
use tower::limit::RateLimitLayer;
use tower_dlq::handler::ShareLayer;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

#[derive(Deserialize)]
struct Payment {
    cents: i64,
}

#[derive(Debug, thiserror::Error, Classify)]
#[error("amount must be positive")]
#[classify(permanent)]
struct BadAmount;

#[dlq_handler(name = "payments.charge", max_attempts = 3)]
async fn charge(Json(payment): Json<Payment>) -> Result<(), BadAmount> {
    if payment.cents > 0 { Ok(()) } else { Err(BadAmount) }
}

async fn in_memory() -> Result<(), Box<dyn std::error::Error>> {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new());
    let payments = broker.clone().stream("payments");
    for cents in [5, -5, 7] {
        let body = format!(r#"{{"cents":{cents}}}"#);
        payments.publish(Message::new("payments.requested", body));
    }
    let limit = ShareLayer::new(RateLimitLayer::new(1, Duration::from_millis(50)));
    let began = std::time::Instant::now();
    let consumer = Consumer::on(MemoryTransport::new("payments"), &broker)
        .handler(charge::handler().layer(limit).build()?)
        .dead_letters(store)
        .open()
        .await?;
    let report = consumer.run(payments.idle("payments.charge")).await;
    if began.elapsed() < Duration::from_millis(100) {
        return Err("three charges have kept to no rate limit".into());
    }
    println!("in memory: {} handled, {} dead", report.handled, report.dead);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    in_memory().await?;
    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    nats::run(&url).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_negative_amount_is_refused() {
        assert!(charge(Json(Payment { cents: 5 })).await.is_ok());
        assert!(charge(Json(Payment { cents: -5 })).await.is_err());
    }
}
