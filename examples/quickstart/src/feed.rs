//! The shipped feed: one JSON document a line, as a producer wrote it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tower_dlq::core::memory::MemoryBroker;
use tower_dlq::core::{Message, Timestamp};

const FEED: &str = include_str!("../feed.jsonl");

#[derive(Deserialize)]
struct Line {
    id: String,
    subject: String,
    published_at_ms: i64,
    key: Option<String>,
    payload: Option<Box<serde_json::value::RawValue>>,
    payload_base64: Option<String>,
}

/// Publishes every message of the feed and returns how many there are.
pub(crate) fn publish(broker: &MemoryBroker) -> Result<u64, Box<dyn std::error::Error>> {
    let mut count = 0;
    for line in FEED.lines() {
        let line: Line = serde_json::from_str(line)?;
        let payload = match (line.payload, line.payload_base64) {
            (Some(json), _) => json.get().as_bytes().to_vec(),
            (None, Some(text)) => STANDARD.decode(text)?,
            (None, None) => Vec::new(),
        };
        let mut message = Message::new(line.subject, payload)
            .with_id(line.id)
            .with_published_at(Timestamp::from_millis(line.published_at_ms));
        if let Some(key) = line.key {
            message = message.with_key(key);
        }
        broker.publish(message);
        count += 1;
    }
    Ok(count)
}
