//! Example of a router: several handlers share one consumer, and each message goes to one of them.
//!
//! `cargo run -p router-example` routes five messages: two by subject, one by event, one by a wider subject, and one that
//! nobody takes.

use tower_dlq::core::PageRequest;
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;
use tower_dlq::router::event;

#[dlq_handler(name = "orders.created", max_attempts = 5)]
async fn created(Json(order): Json<u32>) -> Result<(), std::io::Error> {
    println!("orders.created   order {order} is new");
    Ok(())
}

/// Takes what is left of the orders. It has a policy of its own.
#[dlq_handler(name = "orders.audit", max_attempts = 2, concurrency = 1)]
async fn audit(message: Message) -> Result<(), std::io::Error> {
    println!("orders.audit     {} is noted", message.subject());
    Ok(())
}

#[dlq_handler(name = "payments.paid", max_attempts = 8)]
async fn paid(Json(payment): Json<u32>) -> Result<(), std::io::Error> {
    println!("payments.paid    payment {payment} has arrived");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("shop");
    broker.publish(Message::new("orders.created", "1"));
    broker.publish(Message::new("orders.created", "2"));
    broker.publish(Message::new("orders.cancelled", "1"));
    broker.publish(Message::new("from-the-bank", "7").with_event("payment.paid"));
    broker.publish(Message::new("nobody.takes.this", "0"));

    let router = Router::new()
        .name("shop")
        // The narrowest pattern wins, whatever the order of these lines.
        .route("orders.>", audit::handler())
        .route("orders.created", created::handler())
        .route(event("payment.paid"), paid::handler())
        .build()?;
    let store = MemoryStore::new();
    let consumer = Consumer::on(MemoryTransport::new("shop"), &broker)
        .handler(router)
        .dead_letters(store.clone())
        .open()
        .await?;
    let report = consumer.run(broker.idle("shop")).await;

    println!("{} handled, {} dead", report.handled, report.dead);
    for letter in DeadLetters::new(store).list(Filter::new(), PageRequest::new()).await?.letters {
        println!("{} of consumer {}: {}", letter.subject, letter.consumer, letter.reason);
    }
    Ok(())
}
