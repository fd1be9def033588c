//! The quickstart's feed, added to a stream.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tower_dlq::core::Message;
use tower_dlq::redis::RedisTransport;
use tower_dlq::redis::redis::{self, aio::MultiplexedConnection};

/// The stream of payments.
pub(crate) const STREAM: &str = "payments";

const FEED: &str = include_str!("../../quickstart/feed.jsonl");

#[derive(Deserialize)]
struct Line {
    id: String,
    subject: String,
    key: Option<String>,
    payload: Option<Box<serde_json::value::RawValue>>,
    payload_base64: Option<String>,
}

/// Adds every message of the feed, as a producer would, and returns how many there are.
pub(crate) async fn publish(
    connection: &mut MultiplexedConnection,
    payments: &RedisTransport,
) -> Result<u64, Box<dyn Error>> {
    let mut count = 0;
    for line in FEED.lines() {
        let line: Line = serde_json::from_str(line)?;
        let payload = match (line.payload, line.payload_base64) {
            (Some(json), _) => json.get().as_bytes().to_vec(),
            (None, Some(text)) => STANDARD.decode(text)?,
            (None, None) => Vec::new(),
        };
        let mut message = Message::new(line.subject, payload).with_id(line.id);
        if let Some(key) = line.key {
            message = message.with_key(key);
        }
        let mut add = redis::cmd("XADD");
        add.arg(STREAM).arg("*").arg(payments.entry(&message));
        add.query_async::<String>(connection).await?;
        count += 1;
    }
    Ok(count)
}
