use std::sync::Arc;
use std::time::Duration;

use super::MemoryBroker;
use super::world::{Key, Lost};
use crate::{Disposition, Settle, TransportError, TransportErrorKind};

/// Ends a delivery of a [`MemorySource`](super::MemorySource).
///
/// It is good until the message is handed out again, also after the lease has ended; from then on it says `Lost`.
#[derive(Debug)]
pub struct MemorySettle {
    broker: MemoryBroker,
    group: Arc<str>,
    key: Key,
    fence: u64,
}

impl MemorySettle {
    pub(super) fn new(broker: MemoryBroker, group: Arc<str>, key: Key, fence: u64) -> Self {
        Self { broker, group, key, fence }
    }
}

impl Settle for MemorySettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        let place = (self.broker.stream_name(), &self.group);
        let settled = match disposition {
            Disposition::Deferred { after } => {
                let at = self.broker.now().after(after);
                self.broker.world().release(place, self.key, self.fence, at)
            }
            // A letter or a retry record is durable before its delivery is settled (G1), so all of these end alike.
            Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::DelayedRetry { .. } => {
                self.broker.world().acknowledge(place, self.key, self.fence)
            }
        };
        self.broker.notify();
        settled.map_err(|Lost| TransportError::new(TransportErrorKind::Lost, "settle a delivery"))
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let until = self.broker.lease_end();
        let place = (self.broker.stream_name(), &self.group);
        let extended = self.broker.world().extend(place, self.key, self.fence, until);
        extended.map_err(|Lost| TransportError::new(TransportErrorKind::Lost, "extend a lease"))
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.broker.lease_length())
    }
}
