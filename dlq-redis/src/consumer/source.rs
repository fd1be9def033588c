use std::sync::Arc;
use std::time::Duration;

use dlq_core::protocol::{Incoming, split};
use dlq_core::{
    Capabilities, Cause, DeliveredFrom, Delivery, ErrorClass, Failure, Message, Ordering, Origin,
    Position, Recipients, Source, TransportError,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::calls;
use super::ready::{Fetched, Next, What};
use super::records::{self, Body};
use super::settle::{RedisSettle, SettleTarget};
use super::shared::SourceState;
use super::{reader, reclaim, wire};

/// Time limit for giving back.
const CLOSING: Duration = Duration::from_secs(10);

/// Messages of a stream for one consumer group, and its retry records when they are due. Made by
/// [`RedisTransport`](super::RedisTransport).
///
/// Reading begins with the first call of [`next`](Source::next). After a lost connection, a restart or a fail-over it goes
/// on; `next` fails with `Unavailable` meanwhile. It also does so while stream or group are gone (`FLUSHALL`, `DEL`,
/// `XGROUP DESTROY`), which is never set right in silence: see
/// [`recreate_group`](super::RedisTransport::recreate_group).
#[derive(Debug)]
pub struct RedisSource {
    shared: Arc<SourceState>,
    incoming: Incoming,
    cluster: Arc<str>,
    records: bool,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    closed: bool,
}

impl RedisSource {
    pub(super) fn new(
        shared: SourceState,
        incoming: Incoming,
        cluster: Arc<str>,
        records: bool,
    ) -> Self {
        Self {
            shared: Arc::new(shared),
            incoming,
            cluster,
            records,
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            closed: false,
        }
    }

    fn start(&mut self) {
        // Tasks begin with the first `next`: a source that is only opened takes no messages from other processes.
        if self.closed || !self.tasks.is_empty() {
            return;
        }
        let (shared, stop) = (&self.shared, &self.stop);
        self.tasks.spawn(reader::read(Arc::clone(shared), stop.clone()));
        self.tasks.spawn(reclaim::reclaim(Arc::clone(shared), stop.clone()));
        self.tasks.spawn(reclaim::renew(Arc::clone(shared), stop.clone()));
        if self.records {
            self.tasks.spawn(records::claim(Arc::clone(shared), stop.clone()));
        }
    }

    fn origin(&self, id: &str) -> Origin {
        let (millis, number) = wire::position(id).unwrap_or_default();
        let stream = Arc::clone(&self.shared.place.keys.stream);
        Origin::new("redis", stream, Position::Pair(millis, number))
            .with_cluster(Arc::clone(&self.cluster))
    }

    fn yielded(&self, fetched: Fetched) -> (Delivery, RedisSettle) {
        let Fetched { what, since, .. } = fetched;
        let place = &self.shared.place;
        let (delivery, target) = match what {
            What::Entry { id, count, pairs } => {
                let message = wire::read(&id, pairs, &place.fields, &place.subject);
                let delivery = self.incoming.message(message, self.origin(&id), split);
                (delivery.with_deliveries(small(count)), SettleTarget::Entry { id, count })
            }
            What::Record { name, fence, count, body, payload } => {
                let delivery = match Body::read(&body, payload.clone(), Arc::clone(&place.subject))
                {
                    // A record has no entry in the stream, so nothing stands at the place that it is given.
                    Some(record) => self.incoming.record(record, || self.origin("0-0")),
                    None => self.damaged(&name, payload),
                };
                (delivery.with_deliveries(small(count)), SettleTarget::Record { name, fence })
            }
        };
        // Of a retry record it is the origin of the message, by which `Written` knows what was written for it.
        let origin = delivery.origin().clone();
        (delivery, RedisSettle::new(Arc::clone(&self.shared), target, origin, since))
    }

    /// A record that cannot be read: its letter keeps what is known.
    fn damaged(&self, name: &str, payload: bytes::Bytes) -> Delivery {
        let text = format!("the retry record `{name}` was not written by this version");
        let failure =
            // It is permanent, so that it becomes a letter: another attempt would read the same bytes.
            Failure::new(ErrorClass::Permanent, Cause::Malformed, "unreadable retry record", &text);
        let message = Message::new(Arc::clone(&self.shared.place.subject), payload);
        Delivery::to(Arc::clone(self.incoming.addressee.name()), message, self.origin("0-0"))
            .with_delivered_from(DeliveredFrom::Retry)
            .with_refusal(failure)
    }
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Source for RedisSource {
    type Settle = RedisSettle;

    /// No order: what comes again comes after what was added meanwhile. A delivery that was given back does not count.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .with_ordering(Ordering::None)
            .with_counts_deliveries(true)
            .with_counts_stops(false)
            .with_delayed_release(true)
    }

    fn bind(&mut self, recipients: Arc<dyn Recipients>) {
        let addressee = &mut self.incoming.addressee;
        *addressee = addressee.clone().with_recipients(recipients);
    }

    async fn next(&mut self) -> Result<Option<(Delivery, RedisSettle)>, TransportError> {
        self.start();
        // The demand ends with the call, also where that is dropped: leases are not renewed for long for a consumer that
        // has stopped asking.
        let _asking = self.shared.asking();
        match self.shared.ready.next(self.shared.place.lease).await {
            Next::Fetched(fetched) => Ok(Some(self.yielded(fetched))),
            Next::Failed(error) => Err(error),
            Next::Closed => Ok(None),
        }
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        Some(self.shared.place.lease / 4)
    }

    async fn keep_alive(&mut self) {
        // A demand counts for some time after its end, during which leases are renewed.
        drop(self.shared.asking());
    }

    /// Stops reading, gives back what was fetched, and waits for acknowledgements that nobody awaited. Takes 10 seconds at
    /// most; the log tells what did not succeed. A blocked read is ended; where the user may not run `CLIENT UNBLOCK`, it is
    /// waited for, up to a second.
    async fn close(&mut self) {
        self.closed = true;
        // This comes first, so that no acknowledgement is posted any more while those that are open are waited for.
        self.shared.close();
        self.stop.cancel();
        let shared = Arc::clone(&self.shared);
        let until = Instant::now() + CLOSING;
        let ended = timeout_at(until, async {
            // The tasks end before what is ready is given back, since each may still add what it has just fetched.
            while self.tasks.join_next().await.is_some() {}
            let requests: Vec<_> =
                shared.ready.drain().iter().map(|fetched| fetched.what.give_back()).collect();
            calls::send_all(&shared.client, &shared.place, &requests).await
        });
        let is_heard = ended.await.is_ok_and(|answers| answers.iter().all(Result::is_ok));
        let _ = timeout_at(until, shared.calls.heard()).await;
        let open = shared.calls.open();
        if open > 0 {
            tracing::warn!(
                stream = &*shared.place.keys.stream,
                open,
                "messages were handled whose acknowledgement is not confirmed yet: they may come again"
            );
        }
        if !is_heard {
            tracing::warn!(
                stream = &*shared.place.keys.stream,
                "fetched messages could not be given back in time: they come again when their lease ends"
            );
        }
        // Tasks are left only where the time was over. What one of them was just handed comes again when its lease ends.
        self.tasks.abort_all();
        shared.ready.close();
    }
}
