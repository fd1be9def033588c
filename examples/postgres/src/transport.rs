//! Source of messages: the only file that knows about transports.

use std::error::Error;

use tower_dlq::core::memory::MemoryBroker;
use tower_dlq::nats::{NatsTransport, async_nats};
use tower_dlq::sql::postgres::PostgresStore;

#[cfg(feature = "kafka")]
#[path = "../../kafka/src/feed.rs"]
mod kafka;
#[path = "../../quickstart/src/feed.rs"]
mod memory;
#[path = "../../nats/src/feed.rs"]
mod nats;

use crate::{CONSUMER, consume};

/// Publishes the feed where the environment says, and consumes it from there.
pub(crate) async fn publish_and_consume(store: PostgresStore) -> Result<(), Box<dyn Error>> {
    if let Ok(at) = std::env::var("KAFKA_BROKERS") {
        return from_kafka(at, store).await;
    }
    if let Ok(url) = std::env::var("NATS_URL") {
        let client = async_nats::connect(url).await?;
        println!("{} messages on NATS JetStream", nats::publish(&client).await?);
        let payments = NatsTransport::new(nats::STREAM)
            .name(CONSUMER)
            .subject("payments.>")
            .key_header(nats::KEY);
        return consume(payments.source(&client).await?, store).await;
    }
    let broker = MemoryBroker::new().stream("payments");
    println!("{} messages in memory", memory::publish(&broker)?);
    consume(broker.source("payments"), store).await
}

#[cfg(feature = "kafka")]
async fn from_kafka(at: String, store: PostgresStore) -> Result<(), Box<dyn Error>> {
    kafka::create(&at).await?;
    println!("{} messages on Kafka", kafka::publish(&at).await?);
    let brokers = tower_dlq::kafka::Brokers::at(at);
    // Letters and retries are in the store.
    let payments =
        tower_dlq::kafka::KafkaTransport::new(kafka::TOPIC).name(CONSUMER).without_retries();
    consume(payments.source(&brokers).await?, store).await
}

#[cfg(not(feature = "kafka"))]
async fn from_kafka(_: String, _: PostgresStore) -> Result<(), Box<dyn Error>> {
    Err("KAFKA_BROKERS is set, and this was built without Kafka: cargo run -p postgres-example --features kafka".into())
}
