//! The quickstart's feed, published to a topic.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tower_dlq::kafka::rdkafka::ClientConfig;
use tower_dlq::kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use tower_dlq::kafka::rdkafka::client::DefaultClientContext;
use tower_dlq::kafka::rdkafka::producer::{FutureProducer, FutureRecord};

/// The topic of payments.
pub(crate) const TOPIC: &str = "payments";

const FEED: &str = include_str!("../../quickstart/feed.jsonl");

#[derive(Deserialize)]
struct Line {
    key: Option<String>,
    payload: Option<Box<serde_json::value::RawValue>>,
    payload_base64: Option<String>,
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

/// Makes sure of the topic.
pub(crate) async fn create(brokers: &str) -> Result<(), Box<dyn Error>> {
    let admin: AdminClient<DefaultClientContext> = config(brokers).create()?;
    let topic = NewTopic::new(TOPIC, 3, TopicReplication::Fixed(-1));
    // That it is there already is fine.
    let _ = admin.create_topics([&topic], &AdminOptions::new()).await?;
    Ok(())
}

/// Publishes every message of the feed, as a producer would, and returns how many there are.
pub(crate) async fn publish(brokers: &str) -> Result<u64, Box<dyn Error>> {
    let producer: FutureProducer = config(brokers).set("enable.idempotence", "true").create()?;
    let mut sent = Vec::new();
    for line in FEED.lines() {
        let line: Line = serde_json::from_str(line)?;
        let payload = match (line.payload, line.payload_base64) {
            (Some(json), _) => json.get().as_bytes().to_vec(),
            (None, Some(text)) => STANDARD.decode(text)?,
            (None, None) => Vec::new(),
        };
        let mut record = FutureRecord::to(TOPIC).payload(&payload);
        if let Some(key) = &line.key {
            record = record.key(key);
        }
        sent.push(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    let count = sent.len() as u64;
    for delivery in sent {
        delivery.await?.map_err(|(error, _)| error)?;
    }
    Ok(count)
}
