use super::MemoryBroker;
use crate::{Escalation, RetryLane, StoreError};

/// Where messages of a stream wait for an attempt that is far away. Made by [`MemoryBroker::retry_lane`].
///
/// A record is handed out when it is due, by the sources of the consumer group that has the consumer's name, and by no
/// other. It keeps message, origin and identity of the delivery that failed, and its count of attempts goes on.
///
/// A record is one hop of one death: writing the hop again changes nothing, not even after the record was settled. One
/// that waits takes over what a later writer knows of more attempts.
#[derive(Clone, Debug)]
pub struct MemoryRetryLane {
    broker: MemoryBroker,
}

impl MemoryRetryLane {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self { broker }
    }
}

impl RetryLane for MemoryRetryLane {
    async fn escalate(&self, escalation: Escalation) -> Result<(), StoreError> {
        self.broker.world().escalate(self.broker.stream(), escalation);
        self.broker.notify();
        Ok(())
    }
}
