//! When the feed is consumed.

use std::time::Duration;

use tower_dlq::nats::async_nats::Client;
use tower_dlq::nats::async_nats::jetstream;

use crate::feed::STREAM;

/// Waits until every message is settled, and every record of the retry queue.
pub(crate) async fn until_idle(client: &Client) {
    let context = jetstream::new(client.clone());
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let left = async {
            let stream = context.get_stream_no_info(STREAM).await.ok()?;
            let main = stream.consumer_info("payments=2Echarge").await.ok()?;
            let retries = context.get_stream("DLQ_RETRY").await.ok()?;
            let records = retries.cached_info().state.messages;
            Some(main.num_pending + main.num_ack_pending as u64 + records)
        };
        if left.await == Some(0) {
            return;
        }
    }
}
