//! When the feed is consumed.

use std::time::Duration;

use tower_dlq::core::store::Claims as _;
use tower_dlq::redis::redis::AsyncCommands as _;
use tower_dlq::redis::redis::aio::MultiplexedConnection;
use tower_dlq::redis::redis::streams::{StreamInfoGroupsReply, StreamInfoStreamReply};
use tower_dlq::redis::store::RedisStore;

use crate::CONSUMER;
use crate::feed::STREAM;

/// Waits until every message is settled, every retry is done, and nothing in the store is due or being run.
pub(crate) async fn until_idle(connection: MultiplexedConnection, store: &RedisStore) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // In the order in which a message passes through them. A server that does not answer has work left, as far as we know.
        if is_read(connection.clone()).await == Some(true)
            && is_retried(connection.clone()).await == Some(true)
            && matches!(store.next_due(Vec::new()).await, Ok(None))
        {
            return;
        }
    }
}

/// Returns true if the group was given every message of the stream, and has settled it.
async fn is_read(mut connection: MultiplexedConnection) -> Option<bool> {
    let stream: StreamInfoStreamReply = connection.xinfo_stream(STREAM).await.ok()?;
    let groups: StreamInfoGroupsReply = connection.xinfo_groups(STREAM).await.ok()?;
    let group = groups.groups.into_iter().find(|group| group.name == CONSUMER)?;
    Some(group.pending == 0 && group.last_delivered_id == stream.last_generated_id)
}

/// Returns true if no message waits for a retry.
async fn is_retried(mut connection: MultiplexedConnection) -> Option<bool> {
    let due = format!("{{{STREAM}}}:retry:{CONSUMER}:due");
    let waiting: u64 = connection.zcard(due).await.ok()?;
    Some(waiting == 0)
}
