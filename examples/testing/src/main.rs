//! Example of tests of a consumer: of its function, its policy, and its dead letters.
//!
//! `cargo run -p testing-example` handles three orders. `cargo test -p testing-example` is what this example is about: the
//! tests below need no broker and do not sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

#[derive(Deserialize)]
struct Order {
    id: u32,
    parcels: u32,
}

#[derive(Debug, thiserror::Error, Classify)]
enum ShipError {
    #[error("the carrier does not respond")]
    #[classify(transient)]
    NoResponse,
    #[error("order {0} has no parcels")]
    #[classify(permanent)]
    Empty(u32),
}

/// A carrier that does not respond to the first calls.
#[derive(Clone, Default)]
struct Carrier {
    failures: u32,
    calls: Arc<AtomicU32>,
}

impl Carrier {
    fn failing(failures: u32) -> Self {
        Self { failures, ..Self::default() }
    }

    async fn ship(&self, _order: u32) -> Result<(), ShipError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call < self.failures { Err(ShipError::NoResponse) } else { Ok(()) }
    }
}

#[dlq_handler(name = "orders.ship", max_attempts = 3, backoff = constant("1ms"))]
async fn ship(Json(order): Json<Order>, State(carrier): State<Carrier>) -> Result<(), ShipError> {
    if order.parcels == 0 {
        return Err(ShipError::Empty(order.id));
    }
    carrier.ship(order.id).await
}

/// Handles these payloads as the consumer in production does, and returns where its dead letters are.
async fn consume(
    carrier: Carrier,
    payloads: &[&'static str],
) -> Result<DeadLetters, Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("orders");
    for payload in payloads {
        broker.publish(Message::new("orders.created", *payload));
    }
    let store = MemoryStore::new();
    let consumer = Consumer::on(MemoryTransport::new("orders"), &broker)
        .handler(ship::handler().with_state(carrier).build()?)
        .dead_letters(store.clone())
        .open()
        .await?;
    // Resolves when every message is settled.
    let report = consumer.run(broker.idle("orders.ship")).await;
    assert_eq!(report.unsettled, 0, "{report}");
    Ok(DeadLetters::new(store))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orders = [r#"{"id":1,"parcels":2}"#, r#"{"id":2,"parcels":0}"#, "not JSON"];
    let letters = consume(Carrier::failing(2), &orders).await?;
    println!("3 orders, {} dead letters", letters.count(Filter::new()).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tower_dlq::core::{Cause, PageRequest, Reason};

    use super::*;

    #[tokio::test]
    async fn the_function_ships_an_order() {
        let order = Order { id: 1, parcels: 2 };
        assert!(ship(Json(order), State(Carrier::default())).await.is_ok());
    }

    #[tokio::test]
    async fn a_carrier_that_comes_back_loses_nothing() {
        let carrier = Carrier::failing(2);
        let letters = consume(carrier.clone(), &[r#"{"id":1,"parcels":2}"#]).await.unwrap();
        assert_eq!(letters.count(Filter::new()).await.unwrap(), 0);
        assert_eq!(carrier.calls.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn an_order_dies_of_its_third_failure() {
        let letters = consume(Carrier::failing(3), &[r#"{"id":1,"parcels":2}"#]).await.unwrap();
        let page = letters.list(Filter::new(), PageRequest::new()).await.unwrap();
        assert_eq!(page.letters[0].reason, Reason::Exhausted);
        let letter = letters.get(page.letters[0].id).await.unwrap();
        assert_eq!(letter.error(), "the carrier does not respond");
    }

    #[tokio::test]
    async fn an_empty_order_is_not_tried_again() {
        let carrier = Carrier::default();
        let letters = consume(carrier.clone(), &[r#"{"id":1,"parcels":0}"#]).await.unwrap();
        let permanent = Filter::new().with_reason(Reason::Permanent);
        assert_eq!(letters.count(permanent).await.unwrap(), 1);
        assert_eq!(carrier.calls.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn bytes_that_are_no_order_are_kept() {
        let letters = consume(Carrier::default(), &["not JSON"]).await.unwrap();
        let page = letters.list(Filter::new().with_cause(Cause::Decode), PageRequest::new());
        let letter = letters.get(page.await.unwrap().letters[0].id).await.unwrap();
        assert_eq!(letter.message.payload().unwrap(), "not JSON");
    }
}
