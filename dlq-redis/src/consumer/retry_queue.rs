use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::of_delayed_retry;
use dlq_core::{Binding, DelayedRetry, RetryQueue, SharedClock, StoreError, StoreErrorKind};

use super::calls::millis;
use super::keys::Keys;
use super::records::Body;
use super::scripts::WRITE_RECORD;
use super::written::WrittenFor;
use crate::client::RedisClient;

const OPERATION: &str = "write a retry record";

/// Delayed retries of one consumer group: a sorted set by the time when they are due, and a hash for each.
///
/// Any process of the group claims what is due with a lease and a fence, and nobody else hears of it. A record comes no
/// earlier than the wait that was asked for, by the server's clock. A record whose process dies comes again when its lease
/// ends.
///
/// A record is one hop of one death, replay and payload: writing it again changes nothing, also for some time after it is
/// done.
#[derive(Clone, Debug)]
pub struct RedisRetryQueue {
    pub(super) client: RedisClient,
    pub(super) keys: Keys,
    pub(super) group: Arc<str>,
    pub(super) clock: SharedClock,
    /// Time for which the name of a record is kept after it is done.
    pub(super) window: Duration,
}

impl RetryQueue for RedisRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let DelayedRetry { delivery, consumer, due, .. } = &delayed_retry;
        let message = delivery.message();
        let death = delivery.death(consumer);
        // The number of the hop is in the name, as the same death may wait several times.
        let hop = delivery.delayed_retries().saturating_add(1);
        // A letter that was sent back twice, or edited in between, is another message each time.
        let (replays, binding) = (delivery.replays(), Binding::of(&death.letter, message));
        let name = format!("{}.{}.{hop}.{replays}.{binding}", death.letter, death.generation);
        let body = Body::new(message, delivery.origin(), death, &of_delayed_retry(&delayed_retry));
        let body = serde_json::to_vec(&body).map_err(|error| {
            StoreError::new(StoreErrorKind::Refused, OPERATION).with_source(error)
        })?;
        let payload = message.payload().cloned().unwrap_or_default();
        let record = format!("{}{name}", self.keys.records(&self.group));
        let call = WRITE_RECORD
            .keys(&[&record, &self.keys.due(&self.group)])
            .arg(name)
            // The server gets a wait and adds it to its own clock, so that clocks may differ.
            .arg(millis(due.since(self.clock.now())))
            .arg("f")
            .arg(0)
            .arg("n")
            .arg(0)
            .arg("b")
            .arg(body)
            .arg("p")
            .arg(&payload[..]);
        let written = self.client.script(&call).await;
        written.map_err(|error| error.for_running_store(OPERATION))?;
        // From here on the acknowledgement of the message looks for this record in its own step (G1).
        let written_for = WrittenFor::Retry(Arc::clone(&self.group), delivery.origin().clone());
        self.client.written().note(written_for, record, self.window);
        Ok(())
    }
}
