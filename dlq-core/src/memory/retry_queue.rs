use std::sync::Arc;

use super::MemoryBroker;
use crate::{DelayedRetry, RetryQueue, StoreError, StoreErrorKind};

/// Retry queue of a stream in memory. [`MemoryBroker::retry_queue`] makes it.
///
/// A record is handed out when it is due, by the sources of one consumer group and by no other, under the name of the
/// consumer that failed: of the group that has its name, or else of the one that had the message in flight. It keeps
/// message, origin and identity of the delivery that failed, and its count of attempts goes on.
///
/// A record is one hop of one death, replay and payload: writing the hop again changes nothing, not even after the record was settled. One
/// that waits takes over what a later writer knows of more attempts.
#[derive(Clone, Debug)]
pub struct MemoryRetryQueue {
    broker: MemoryBroker,
    group: Option<Arc<str>>,
}

impl MemoryRetryQueue {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self { broker, group: None }
    }

    /// Sets whose records these are. Defaults to the group that has the consumer's name, or else to the one that has the
    /// message in flight; where several have, it cannot be told, and writing the record fails.
    #[must_use]
    pub fn for_group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }
}

impl RetryQueue for MemoryRetryQueue {
    async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
        let stream = self.broker.stream_name();
        {
            let mut world = self.broker.world();
            let group = self.group.clone().or_else(|| world.group_of(stream, &delayed_retry));
            let group = group.ok_or_else(|| unknown(&delayed_retry))?;
            world.enqueue(stream, &group, delayed_retry);
        }
        self.broker.notify();
        Ok(())
    }
}

/// A record that nobody would ever read.
fn unknown(delayed_retry: &DelayedRetry) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidConfig, "write a retry record").with_detail(format!(
        "it cannot be told which consumer group `{}` belongs to; name it with `retry_queue().for_group(…)`",
        delayed_retry.consumer
    ))
}
