//! [`Records`]: the retry records of one consumer, when they are due.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::Context;
use dlq_core::protocol::RetryRecord;
use dlq_core::{
    Addressee, Cause, Delivery, ErrorClass, Failure, StoreError, Timestamp, TransportError,
    TransportErrorKind,
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use crate::client::leader::{self, Which};
use crate::client::message_meta::MessageMeta;
use crate::client::publish::{Whole, receive};
use crate::client::wire;
use crate::consumer::pull::Puller;
use crate::consumer::ready::Fetched;
use crate::consumer::settle::{NatsSettle, Server, nak};
use crate::consumer::source::Reading;

/// Time before its due time at which the server is to hand a record out. It looks at its schedules every 250 ms at most, so that
/// whatever it is told comes up to that much later; the rest of the time is waited for here.
pub(crate) const LEAD: Duration = Duration::from_millis(300);
/// Time for which a record waits here, at most, until it is due. One that is due later is given back to the server until half of
/// that is left: each time that it is handed out counts, and what is handed out often is a suspect, so that a process with a
/// clock that is behind had better not give it back once more.
const HOLD: Duration = Duration::from_millis(500);
/// Interval at which a record that waits makes way for others that have come meanwhile and are due before it.
const LOOK: Duration = Duration::from_millis(10);
/// The header of what the server's own schedule has handed out.
const SCHEDULER: &str = "Nats-Scheduler";

/// Time for which a record is given back that cannot be read now. Of those that come meanwhile the log tells.
const UNREADABLE: Duration = Duration::from_secs(10);
const TELLING: Duration = Duration::from_secs(60);

const READING: &str = "read a retry record";

/// A delivery, when it is due, and which messages of the retry stream are parts of it.
type Record = (Delivery, Option<Timestamp>, Vec<u64>);
/// `None` for a record that has gone.
type Read = Result<Option<Record>, StoreError>;

/// The retry records of one consumer, when they are due.
///
/// Every future of it can be dropped at any time. A record stays with the puller, which keeps its lease and gives it
/// back at the end, until it is yielded or given back; and what is read of it is kept here, so that it goes on with
/// the next call.
#[derive(Debug)]
pub(crate) struct Records {
    server: Arc<Server>,
    reading: Reading,
    puller: Puller,
    opening: Option<Opening>,
    /// When it was last told of one that cannot be read.
    told: Option<Instant>,
}

/// The record in front, on its way from the messages that it stands in.
struct Opening {
    reply: Subject,
    record: BoxFuture<'static, Read>,
}

impl Records {
    pub(crate) fn new(server: Arc<Server>, reading: Reading, puller: Puller) -> Self {
        let puller = puller.by_due();
        Self { server, reading, puller, opening: None, told: None }
    }

    /// Sets the handlers that the deliveries are for.
    pub(crate) fn bind(&mut self, addressee: Addressee) {
        self.reading.incoming.addressee = addressee;
    }

    /// Returns true if a record is being read; reading goes on when the next one is asked for.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// The next record that is due; `None` once closed.
    pub(crate) async fn next(&mut self) -> Result<Option<(Delivery, NatsSettle)>, TransportError> {
        loop {
            let patience = self.puller.keep_alive_interval();
            let Some(front) = self.puller.front().await? else { return Ok(None) };
            // One whose lease was lost meanwhile is no longer in front.
            let opening = match self.opening.take() {
                Some(opening) if opening.reply == front.reply => opening,
                _ => Opening::of(&self.reading, &self.server.context, front),
            };
            let opening = self.opening.insert(opening);
            // With each turn of this loop the puller renews the lease. `timeout` only borrows the future, so that a
            // slow read goes on.
            let Ok(record) = timeout(patience, &mut opening.record).await else { continue };
            let reply = opening.reply.clone();
            self.opening = None;
            let (after, damage) = match record {
                Ok(None) => {
                    self.puller.pop();
                    continue;
                }
                Ok(Some((delivery, due, aside))) => {
                    let now = self.reading.clock.now();
                    let early = due.map_or(Duration::ZERO, |due| due.since(now));
                    if early.is_zero() {
                        // From here on nothing is awaited, so that a record which is taken is yielded.
                        let front = self.puller.pop().and_then(|fetched| fetched.unreadable);
                        let held = front.map(|unreadable| unreadable.held);
                        let (server, lease) = (Arc::clone(&self.server), self.puller.lease());
                        let settle = NatsSettle::new(server, reply, aside).with_lease(lease);
                        let settle = settle.with_held(held);
                        return Ok(Some((delivery, settle)));
                    }
                    if early <= HOLD {
                        // The record is kept as it was read: the next call neither asks for its parts again nor loses it.
                        let record: Read = Ok(Some((delivery, due, aside)));
                        self.opening = Some(Opening { reply, record: Box::pin(ready(record)) });
                        sleep(early.min(LOOK)).await;
                        continue;
                    }
                    (early - HOLD / 2, None)
                }
                Err(error) => (UNREADABLE, Some(error)),
            };
            // The word comes before the record is popped: if this future is dropped in between, the record is still in
            // front.
            // If this is not heard it comes again when its lease ends, and is looked at again.
            let _ = self.server.client.publish(reply, nak(after)).await;
            if let (Some(fetched), Some(error)) = (self.puller.pop(), damage) {
                let error = unreadable(&fetched, &error);
                if self.told.is_none_or(|told| told.elapsed() >= TELLING) {
                    self.told = Some(Instant::now());
                    // One error a minute is returned, so that the consumer is seen to be in trouble and still reads
                    // the rest.
                    return Err(error);
                }
                tracing::error!(%error, "another retry record cannot be read");
            }
        }
    }

    /// See [`Puller`].
    pub(crate) fn keep_alive_interval(&self) -> Duration {
        self.puller.keep_alive_interval()
    }

    pub(crate) async fn keep_alive(&mut self) {
        self.puller.keep_alive().await;
    }

    pub(crate) async fn close(&mut self) {
        self.opening = None;
        self.puller.close().await;
    }
}

impl Opening {
    fn of(reading: &Reading, context: &Context, fetched: &Fetched) -> Self {
        // The future owns what it needs: it outlives calls of `next` that are dropped while parts are read.
        let record = read(reading.clone(), context.clone(), fetched.clone());
        Self { reply: fetched.reply.clone(), record: Box::pin(record) }
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("reply", &self.reply).finish_non_exhaustive()
    }
}

fn unreadable(fetched: &Fetched, error: &StoreError) -> TransportError {
    let (subject, MessageMeta { stream, sequence, .. }) =
        (&fetched.message.subject, &fetched.place);
    let text = format!("record {sequence} of stream `{stream}`, on `{subject}`: {error}");
    TransportError::new(TransportErrorKind::Unavailable, READING).with_detail(text)
}

/// A record that can never be read whole, since its parts have gone or its header is forged. Nobody can handle it, and to
/// keep it would help nobody: its letter says what is known.
fn damaged(reading: &Reading, fetched: Fetched, error: &StoreError) -> Delivery {
    let MessageMeta { stream, sequence, .. } = &fetched.place;
    let text = format!(
        "record {sequence} of stream `{stream}` can never be read whole ({error}): its message is lost unless its producer \
         has it"
    );
    let failure =
        Failure::new(ErrorClass::Permanent, Cause::Malformed, "damaged retry record", &text);
    reading.main(fetched).with_refusal(failure)
}

async fn read(reading: Reading, context: Context, fetched: Fetched) -> Read {
    // Its headers were read from the stream as they stand, and no handler runs: it gets a letter that says so.
    if fetched.unreadable.is_some() {
        return Ok(Some((reading.main(fetched), None, Vec::new())));
    }
    let headers = fetched.message.headers.clone().unwrap_or_default();
    let payload = fetched.message.payload.clone();
    let read = match receive(&context, &fetched.place.stream, &headers, payload).await {
        Err(error) if !error.is_transient() => {
            // Whoever has settled it in the meantime has removed its parts, and the record before them.
            let (stream, at) = (&fetched.place.stream, Which::At(fetched.place.sequence));
            if leader::get(&context, READING, stream, at).await?.is_none() {
                return Ok(None);
            }
            return Ok(Some((damaged(&reading, fetched, &error), None, Vec::new())));
        }
        read => read?,
    };
    let Some(Whole { read, aside }) = read else {
        tracing::error!(
            subject = %fetched.message.subject,
            "something else than a retry record is in the retry stream; it is handled as a message"
        );
        return Ok(Some((reading.main(fetched), None, Vec::new())));
    };
    let wire::Unpacked { message, decoded, rest } = read;
    // Where the server has kept the record its clock counts.
    // It is due within `LEAD` then. A clock that is behind would give it back again, and each time counts as a delivery
    // (G3).
    let latest = headers.get(SCHEDULER).map(|_| reading.clock.now().after(LEAD));
    let due = decoded.due.map(|due| latest.map_or(due, |latest| due.min(latest)));
    let (origin, death) = (rest.origin, Some(rest.death));
    let stage = Arc::from(fetched.message.subject.as_str());
    let retry = RetryRecord { message, decoded, origin, death, stage };
    let delivery = reading.incoming.record(retry, || reading.stands(&fetched.place));
    Ok(Some((delivery.with_deliveries(fetched.place.delivered), due, aside)))
}
