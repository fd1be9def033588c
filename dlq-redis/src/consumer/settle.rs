use std::sync::Arc;
use std::time::Duration;

use dlq_core::{Disposition, Settle, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep};

use super::calls::Word;
use super::shared::Shared;

/// Between two tries of what the server did not confirm.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For how long a word is tried, however long the lease.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends a delivery of a [`RedisSource`](super::RedisSource).
///
/// A word that the server did not confirm is said again until the lease has ended: saying it twice does no harm. Success,
/// and the end of a message whose letter or retry record is written, is acknowledged whoever owns the message by then.
/// Giving back and renewing the lease ask for the owner and its delivery counter, and answer `Lost`.
#[derive(Debug)]
pub struct RedisSettle {
    shared: Arc<Shared>,
    which: Which,
    ends: Instant,
}

/// The delivery.
#[derive(Clone, Debug)]
pub(super) enum Which {
    Entry { id: Arc<str>, count: u64 },
    Record { name: Arc<str>, fence: Arc<str> },
}

impl Which {
    fn done(&self) -> Word {
        match self {
            Self::Entry { id, .. } => Word::Ack { id: id.clone() },
            Self::Record { name, fence } => Word::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "done",
                time: Duration::ZERO,
            },
        }
    }

    fn later(&self, delay: Duration) -> Word {
        match self {
            Self::Entry { id, count } => Word::GiveBack { id: id.clone(), count: *count, delay },
            Self::Record { name, fence } => Word::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "later",
                time: delay,
            },
        }
    }

    fn extend(&self, lease: Duration) -> Word {
        match self {
            Self::Entry { id, count } => Word::Extend { id: id.clone(), count: *count },
            Self::Record { name, fence } => Word::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "extend",
                time: lease,
            },
        }
    }
}

impl RedisSettle {
    pub(super) fn new(shared: Arc<Shared>, which: Which, since: Instant) -> Self {
        let ends = since + shared.place.lease;
        Self { shared, which, ends }
    }

    /// Says it until it is heard or the lease has ended.
    async fn say(&self, operation: &'static str, word: Word) -> Result<(), TransportError> {
        let until = self.ends.min(Instant::now() + PATIENCE);
        let mut pause = PAUSE;
        loop {
            let error = match self.shared.calls.say(word.clone()).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(TransportError::new(TransportErrorKind::Lost, operation)),
                Err(error) => error,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left <= PAUSE {
                return Err(error.for_running_transport(operation));
            }
            sleep(pause.min(left - PAUSE)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Settle for RedisSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        match disposition {
            Disposition::Deferred { after } => {
                self.say("give a message back", self.which.later(after)).await?;
                if matches!(self.which, Which::Entry { .. }) {
                    self.shared.wake_after(after);
                }
                Ok(())
            }
            Disposition::Succeeded
            | Disposition::Duplicate
            | Disposition::Dead(_)
            | Disposition::Escalated { .. } => {
                self.say("acknowledge a message", self.which.done()).await
            }
        }
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let lease = self.shared.place.lease;
        let begun = Instant::now();
        self.say("extend a lease", self.which.extend(lease)).await?;
        self.ends = begun + lease;
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.shared.place.lease)
    }
}
