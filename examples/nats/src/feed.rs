//! The quickstart's feed, published to a stream.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tower_dlq::nats::async_nats::jetstream::{self, stream};
use tower_dlq::nats::async_nats::{Client, HeaderMap};

/// The stream of payments.
pub(crate) const STREAM: &str = "PAYMENTS";
/// The header that carries the customer.
pub(crate) const KEY: &str = "key";

const FEED: &str = include_str!("../../quickstart/feed.jsonl");

#[derive(Deserialize)]
struct Line {
    subject: String,
    key: Option<String>,
    payload: Option<Box<serde_json::value::RawValue>>,
    payload_base64: Option<String>,
}

/// Publishes every message of the feed, as a producer would, and returns how many there are.
pub(crate) async fn publish(client: &Client) -> Result<u64, Box<dyn Error>> {
    let context = jetstream::new(client.clone());
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["payments.>".to_owned()],
        ..stream::Config::default()
    };
    context.get_or_create_stream(config).await?;
    let mut count = 0;
    for line in FEED.lines() {
        let line: Line = serde_json::from_str(line)?;
        let payload = match (line.payload, line.payload_base64) {
            (Some(json), _) => json.get().as_bytes().to_vec(),
            (None, Some(text)) => STANDARD.decode(text)?,
            (None, None) => Vec::new(),
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = line.key {
            headers.insert(KEY, key);
        }
        context.publish_with_headers(line.subject, headers, payload.into()).await?.await?;
        count += 1;
    }
    Ok(count)
}
