//! [`Records`]: the retry records of one consumer, when they are due.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::Context;
use dlq_core::{
    Addressee, Delivery, Lane, StoreError, Timestamp, TransportError, TransportErrorKind,
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use crate::place::Place;
use crate::publish::{Whole, receive};
use crate::pull::Puller;
use crate::ready::Fetched;
use crate::settle::{NatsSettle, Server, nak};
use crate::source::Reading;
use crate::wire;

/// How much before its time a record may come: less than clocks differ.
const EARLY: Duration = Duration::from_millis(20);

/// For how long a record is given back that cannot be read now, and one that can never be: until somebody sees it. Of
/// those that come meanwhile the log tells.
const UNREADABLE: Duration = Duration::from_secs(10);
const DAMAGED: Duration = Duration::from_secs(60);

/// A delivery, when it is due, and which messages of the retry stream are parts of it.
type Record = (Delivery, Option<Timestamp>, Vec<u64>);

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
    record: BoxFuture<'static, Result<Record, StoreError>>,
}

impl Records {
    pub(crate) fn new(server: Arc<Server>, reading: Reading, puller: Puller) -> Self {
        Self { server, reading, puller, opening: None, told: None }
    }

    /// Whom its deliveries are for.
    pub(crate) fn yields_to(&mut self, addressee: Addressee) {
        self.reading.addressee = addressee;
    }

    /// Whether one is being read: it goes on when the next is asked for.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// The next record that is due; `None` once closed.
    pub(crate) async fn next(&mut self) -> Result<Option<(Delivery, NatsSettle)>, TransportError> {
        loop {
            let patience = self.puller.patience();
            let Some(front) = self.puller.front().await? else { return Ok(None) };
            // One whose lease was lost meanwhile is no longer in front.
            let opening = match self.opening.take() {
                Some(opening) if opening.reply == front.reply => opening,
                _ => Opening::of(&self.reading, &self.server.context, front),
            };
            let opening = self.opening.insert(opening);
            // Asked again now and then, the puller keeps the lease.
            let Ok(record) = timeout(patience, &mut opening.record).await else { continue };
            let reply = opening.reply.clone();
            self.opening = None;
            let (after, damage) = match record {
                Ok((delivery, due, aside)) => {
                    let now = self.reading.clock.now();
                    let early = due.map_or(Duration::ZERO, |due| due.since(now));
                    if early <= EARLY {
                        let front = self.puller.pop().and_then(|fetched| fetched.unreadable);
                        let held = front.map(|unreadable| unreadable.held);
                        let (server, lease) = (Arc::clone(&self.server), self.puller.lease());
                        let settle = NatsSettle::new(server, reply, aside).with_lease(lease);
                        let settle = settle.with_held(held);
                        return Ok(Some((delivery, settle)));
                    }
                    (early, None)
                }
                Err(error) if error.is_transient() => (UNREADABLE, Some(error)),
                Err(error) => (DAMAGED, Some(error)),
            };
            // If this is not heard it comes again when its lease ends, and is looked at again.
            let _ = self.server.client.publish(reply, nak(after)).await;
            if let (Some(fetched), Some(error)) = (self.puller.pop(), damage) {
                let error = unreadable(&fetched, &error);
                if self.told.is_none_or(|told| told.elapsed() >= DAMAGED) {
                    self.told = Some(Instant::now());
                    return Err(error);
                }
                tracing::error!(%error, "another retry record cannot be read");
            }
        }
    }

    /// See [`Puller`].
    pub(crate) fn patience(&self) -> Duration {
        self.puller.patience()
    }

    pub(crate) async fn keep(&mut self) {
        self.puller.keep().await;
    }

    pub(crate) async fn close(&mut self) {
        self.opening = None;
        self.puller.close().await;
    }
}

impl Opening {
    fn of(reading: &Reading, context: &Context, fetched: &Fetched) -> Self {
        let record = read(reading.clone(), context.clone(), fetched.clone());
        Self { reply: fetched.reply.clone(), record: Box::pin(record) }
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("reply", &self.reply).finish_non_exhaustive()
    }
}

/// One that can never be read nobody could handle, or write its letter: somebody has to see what can be done.
fn unreadable(fetched: &Fetched, error: &StoreError) -> TransportError {
    const READING: &str = "read a retry record";
    let (subject, Place { stream, sequence, .. }) = (&fetched.message.subject, &fetched.place);
    if error.is_transient() {
        let text = format!("record {sequence} of stream `{stream}`, on `{subject}`: {error}");
        return TransportError::new(TransportErrorKind::Unavailable, READING).with_detail(text);
    }
    let text = format!(
        "record {sequence} of stream `{stream}`, on `{subject}`, can never be read whole ({error}): its message is lost unless \
         its producer has it; see what its headers tell, then remove it (`nats stream rmm {stream} {sequence}`)"
    );
    TransportError::new(TransportErrorKind::Corrupt, READING).with_detail(text)
}

async fn read(reading: Reading, context: Context, fetched: Fetched) -> Result<Record, StoreError> {
    if fetched.unreadable.is_some() {
        return Ok((reading.main(fetched), None, Vec::new()));
    }
    let headers = fetched.message.headers.clone().unwrap_or_default();
    let payload = fetched.message.payload.clone();
    let read = receive(&context, &fetched.place.stream, &headers, payload).await?;
    let Some(Whole { read, aside }) = read else {
        tracing::error!(
            subject = %fetched.message.subject,
            "something else than a retry record is in the retry stream; it is handled as a message"
        );
        return Ok((reading.main(fetched), None, Vec::new()));
    };
    let wire::Unpacked { message, decoded, rest } = read;
    let delivery = Delivery::new(message, rest.origin)
        // By the name of the handler that failed, which is the one to run it again.
        .with_consumer(
            decoded.consumer.map_or_else(|| Arc::clone(reading.addressee.name()), Arc::from),
        )
        .with_lane(Lane::Retry)
        .with_previous(&*fetched.message.subject)
        .with_death(rest.death)
        .with_history(decoded.history.unwrap_or_default())
        .with_attempt(decoded.attempts.unwrap_or(0).saturating_add(1))
        .with_escalations(decoded.escalations.unwrap_or(1))
        .with_replays(decoded.replays.unwrap_or(0))
        .with_deliveries(fetched.place.delivered);
    Ok((delivery, decoded.due, aside))
}
