use std::sync::Arc;
use std::time::Duration;

use dlq_core::{Disposition, Origin, Settle, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep};

use super::calls::Request;
use super::shared::SourceState;
use super::written::WrittenFor;

/// Pause between two tries of a request that the server did not confirm.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time for which a request is tried, however long the lease.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// Ends a delivery of a [`RedisSource`](super::RedisSource).
///
/// A request that the server did not confirm is sent again until the lease has ended: sending it twice does no harm.
/// Success, and the end of a message whose letter or retry record is written, is acknowledged whoever owns the message by
/// then. Giving back and renewing the lease ask for the owner and its delivery counter, and answer `Lost`.
///
/// [`settle_now`](Settle::settle_now) sends the acknowledgement of a message that succeeded and does not wait for the answer,
/// unless the source was told to [confirm](super::RedisTransport::confirm_acks), 1,024 are open, or it is closed. Closing
/// the source waits for those that are open.
///
/// A letter or retry record that a clone of the same client has written to this server is looked for in the step that
/// acknowledges its message. Where a fail-over has forgotten it, the answer is `Lost`, and the message comes again.
#[derive(Debug)]
pub struct RedisSettle {
    shared: Arc<SourceState>,
    target: SettleTarget,
    origin: Origin,
    ends: Instant,
}

/// The delivery.
#[derive(Clone, Debug)]
pub(super) enum SettleTarget {
    Entry { id: Arc<str>, count: u64 },
    Record { name: Arc<str>, fence: Arc<str> },
}

impl SettleTarget {
    /// Acknowledges it, where this key exists if one is given.
    fn done(&self, proof: Option<Arc<str>>) -> Request {
        match self {
            Self::Entry { id, .. } => Request::Ack { id: id.clone(), proof },
            Self::Record { name, fence } => Request::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "done",
                time: Duration::ZERO,
                proof,
            },
        }
    }

    fn later(&self, delay: Duration) -> Request {
        match self {
            Self::Entry { id, count } => Request::GiveBack { id: id.clone(), count: *count, delay },
            Self::Record { name, fence } => Request::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "later",
                time: delay,
                proof: None,
            },
        }
    }

    fn extend(&self, lease: Duration) -> Request {
        match self {
            Self::Entry { id, count } => Request::Extend { id: id.clone(), count: *count },
            Self::Record { name, fence } => Request::Record {
                name: name.clone(),
                fence: fence.clone(),
                verb: "extend",
                time: lease,
                proof: None,
            },
        }
    }
}

impl RedisSettle {
    pub(super) fn new(
        shared: Arc<SourceState>,
        target: SettleTarget,
        origin: Origin,
        since: Instant,
    ) -> Self {
        // The end is told by the clock of this process, so that a clock of the server that differs does not matter.
        let ends = since + shared.place.lease;
        Self { shared, target, origin, ends }
    }

    async fn acknowledge(&self, proof: Option<String>) -> Result<(), TransportError> {
        self.send("acknowledge a message", self.target.done(proof.map(Arc::from))).await
    }

    /// Sends it until it is heard or the lease has ended.
    async fn send(&self, operation: &'static str, request: Request) -> Result<(), TransportError> {
        // A lease may be an hour long, and a shutdown waits for what is being settled.
        let until = self.ends.min(Instant::now() + SETTLE_LIMIT);
        let mut pause = PAUSE;
        loop {
            let error = match self.shared.calls.send(request.clone()).await {
                Ok(true) => return Ok(()),
                // The owner or the counter is another, or there is no proof: saying it again would not change that.
                Ok(false) => return Err(TransportError::new(TransportErrorKind::Lost, operation)),
                Err(error) => error,
            };
            let left = until.saturating_duration_since(Instant::now());
            // Once the lease has ended the message comes again anyway, so that the request has lost its use.
            if left <= PAUSE {
                return Err(error.for_running_transport(operation));
            }
            // The last try leaves time for its answer before the lease ends.
            sleep(pause.min(left - PAUSE)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for RedisSettle {
    fn drop(&mut self) {
        if let SettleTarget::Entry { id, .. } = &self.target {
            // It runs here no more. Where it is still pending, a recovery of a lost read may hand it out again.
            self.shared.taken_over().remove(id);
        }
    }
}

impl Settle for RedisSettle {
    async fn settle(self, disposition: Disposition) -> Result<(), TransportError> {
        match disposition {
            Disposition::Deferred { after } => {
                self.send("give a message back", self.target.later(after)).await?;
                // Records need no wake-up: the task that claims them looks at the due set at least twice a second.
                if matches!(self.target, SettleTarget::Entry { .. }) {
                    self.shared.wake_after(after);
                }
                Ok(())
            }
            Disposition::Succeeded | Disposition::Duplicate => self.acknowledge(None).await,
            Disposition::Dead(letter) => {
                // `take` finds nothing where the letter stands in another store. Its sink has confirmed it there, and no
                // key of this server could prove it.
                let mark = self.shared.place.keys.death(&letter);
                self.acknowledge(self.shared.client.written().take(&WrittenFor::Letter(mark))).await
            }
            Disposition::DelayedRetry { .. } => {
                let written_for =
                    WrittenFor::Retry(Arc::clone(&self.shared.place.group), self.origin.clone());
                self.acknowledge(self.shared.client.written().take(&written_for)).await
            }
            unknown => Err(unknown.unsupported()),
        }
    }

    fn settle_now(&mut self, disposition: &Disposition) -> Option<Result<(), TransportError>> {
        let is_success = matches!(disposition, Disposition::Succeeded | Disposition::Duplicate);
        let is_entry = matches!(self.target, SettleTarget::Entry { .. });
        // Only success of an entry is posted: whoever owns the entry may say it, and a lost one costs no more than a
        // duplicate.
        if !is_success || !is_entry || !self.shared.posts() {
            return None;
        }
        let until = self.ends.min(Instant::now() + SETTLE_LIMIT);
        self.shared.calls.post(self.target.done(None), until).then_some(Ok(()))
    }

    async fn extend(&mut self) -> Result<(), TransportError> {
        let lease = self.shared.place.lease;
        // The time is taken before the call: the server begins the lease anew at some moment after it.
        let begun = Instant::now();
        self.send("extend a lease", self.target.extend(lease)).await?;
        self.ends = begun + lease;
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.shared.place.lease)
    }
}
